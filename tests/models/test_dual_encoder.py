"""The dual encoder of transformers: pretrained and random encoders, joint models, pooling, masks, rebuilding."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from torch.nn.functional import normalize

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.dual_encoder import network as dual_encoder
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.network import TransformerDualEncoder, build, open_encoders, restored
from itrpipe.models.registry import backbone_family, backbones

CLIP_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
CLIP_STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
SMALL = {"image_size": (32, 48), "width": 16, "heads": 2, "vision_layers": 2, "text_layers": 2}
LENGTHS = torch.tensor([9, 4, 6])
POOLED: dict[str, Any] = {"image_pool": "own", "text_pool": "own", "embed_dim": 8}


def of_random(**values: Any) -> TransformerDualEncoder:
    torch.manual_seed(0)
    settings = DualEncoder(**{"vision": "random", "text": "random", **SMALL, **values})  # pyright: ignore
    return build(settings, 12, 40).eval()


def of_saved(root: Path, vision: str, text: str, **values: Any) -> TransformerDualEncoder:
    settings = DualEncoder(vision=str(root / vision), text=str(root / text), **values)
    return build(settings, 0, 0).eval()


def pictures(height: int = 32, width: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (3, 3, height, width), dtype=torch.uint8, generator=generator)


def images(pixels: torch.Tensor) -> ImageBatch:
    return ImageBatch(torch.empty(len(pixels), 0, 0), pixels=pixels)


def captions() -> TextBatch:
    """Three captions between 2 and 3, the first of them with the width of the batch, and noise behind the others."""
    tokens = torch.randint(4, 20, (3, 9), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = 2
    tokens[torch.arange(3), LENGTHS - 1] = 3
    return TextBatch(tokens, LENGTHS)


def real_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """The captions padded with 0, and the mask of what is real."""
    mask = torch.arange(9) < LENGTHS[:, None]
    return captions().tokens.masked_fill(~mask, 0), mask


def test_backbones_have_the_names_of_their_files_with_hyphens() -> None:
    assert backbones()["dual-encoder"] is DualEncoder
    assert {"vsepp", "vsrn", "scan", "bfan", "ssamt"} <= backbones().keys()
    names = ("scan-i2t", "dual-encoder", "dual-encoder-clip", "dual-what")
    assert [backbone_family(name) for name in names] == ["scan", "dual-encoder", "dual-encoder", "dual-what"]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_joint_models_embed_as_transformers_does(kind: str, saved_encoders: Path) -> None:
    model = of_saved(saved_encoders, kind, kind)
    tokens, mask = real_tokens()
    reference: Any = transformers.AutoModel.from_pretrained(saved_encoders / kind).eval()
    if kind == "clip":
        colours = (pictures() / 255 - CLIP_MEAN) / CLIP_STD
        expected = reference(input_ids=tokens, attention_mask=mask.long(), pixel_values=colours)
    else:  # captions are padded to the length of the model, and all their tokens are read
        tokens = torch.nn.functional.pad(tokens, (0, 7))
        expected = reference(input_ids=tokens, pixel_values=(pictures() / 255 - 0.5) / 0.5)
    image, text = model.encode_images(images(pictures())).embedding, model.encode_texts(captions()).embedding
    torch.testing.assert_close(image, expected.image_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(text, expected.text_embeds, atol=1e-5, rtol=0)
    assert model.embed_dim == image.shape[1]


@torch.no_grad()
@pytest.mark.parametrize("pool", ["mean", "mean-all", "cls", "eot"])
def test_captions_are_pooled_as_by_hand(pool: str, saved_encoders: Path) -> None:
    model = of_saved(saved_encoders, "vit", "bert", text_pool=pool)
    bert = transformers.BertModel.from_pretrained(saved_encoders / "bert").eval()
    tokens, mask = real_tokens()
    if pool == "mean-all":  # FNE's code pads to 30 outside training
        tokens, mask = (torch.nn.functional.pad(each, (0, 21)) for each in (tokens, mask))
    states = bert(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    expected = {
        "mean": torch.stack([each[:length].mean(dim=0) for each, length in zip(states, LENGTHS, strict=True)]),
        "mean-all": states.mean(dim=1),
        "cls": states[:, 0],
        "eot": torch.stack([each[length - 1] for each, length in zip(states, LENGTHS, strict=True)]),
    }[pool]
    torch.testing.assert_close(model.encode_texts(captions()).embedding, normalize(expected), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_counted_padding_is_that_of_the_batch_in_a_training_step_whatever_the_mode(
    training: bool, saved_encoders: Path
) -> None:
    model = of_saved(saved_encoders, "vit", "bert", text_pool="mean-all").train(training)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    tokens, mask = real_tokens()
    wide, wide_mask = (torch.nn.functional.pad(each, (0, 21)) for each in (tokens, mask))
    for batch, ids, real in ((replace(captions(), in_training=True), tokens, mask), (captions(), wide, wide_mask)):
        states = model.text.network(ids, attention_mask=real.long()).last_hidden_state
        expected = normalize(states.mean(dim=1))
        torch.testing.assert_close(model.encode_texts(batch).embedding, expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(("pool", "normalisation"), [("mean", "auto"), ("cls", "own")])
def test_images_are_normalised_and_pooled_as_by_hand(pool: str, normalisation: str, saved_encoders: Path) -> None:
    model = of_saved(saved_encoders, "vit", "bert", image_pool=pool, normalisation=normalisation)
    vit = transformers.ViTModel.from_pretrained(saved_encoders / "vit").eval()
    mean, std = (CLIP_MEAN, CLIP_STD) if normalisation == "auto" else (0.5, 0.5)
    states = vit(pixel_values=(pictures() / 255 - mean) / std).last_hidden_state  # [B, 5, D], the class token first
    expected = states.mean(dim=1) if pool == "mean" else states[:, 0]
    torch.testing.assert_close(
        model.encode_images(images(pictures())).embedding, normalize(expected), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("vision", "text", "sets"),
    [("vit", "bert", {}), ("clip", "bert", {"embed_dim": 8}), ("siglip", "siglip", {}), ("vit", "bert", POOLED)],
)
def test_a_model_is_built_again_from_its_description_without_its_files(
    vision: str, text: str, sets: dict[str, Any], saved_encoders: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(saved_encoders, tmp_path / "moved"))
    model = of_saved(root, vision, text, **sets)
    description = json.loads(json.dumps(model.description()))
    assert str(tmp_path) not in json.dumps(description)
    shutil.rmtree(root)
    again = build(model.settings, 0, 0, restored(description)).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(
        again.encode_images(images(pictures())).embedding, model.encode_images(images(pictures())).embedding
    )
    assert torch.equal(again.encode_texts(captions()).embedding, model.encode_texts(captions()).embedding)
    assert again.embed_dim == model.embed_dim == (8 if sets else 16)


def test_blocks_of_images_are_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = of_random(), images(pictures(32, 48))
    whole = model.encode_images(batch).embedding
    sizes: list[int] = []
    assert model.vision is not None
    model.vision.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr(dual_encoder, "_IMAGES_AT_ONCE", 2)
    torch.testing.assert_close(model.encode_images(batch).embedding, whole)
    model.train().encode_images(batch)
    assert sizes == [2, 1, 3]


def test_random_encoders_are_trained_and_may_keep_less_in_memory() -> None:
    gradients = []
    for less in (False, True):
        model = of_random(gradient_checkpointing=less).train()
        twin = copy.deepcopy(model)
        torch.manual_seed(3)
        encoded = model.encode_images(images(pictures(32, 48))), model.encode_texts(captions())
        model.score_pairs(*encoded).sum().backward()
        assert all(weights.grad is not None and weights.grad.abs().sum() > 0 for weights in model.vision.parameters())  # pyright: ignore
        assert all(weights.grad is None for weights in twin.parameters())
        gradients.append([weights.grad for weights in model.parameters() if weights.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for plain, anew in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, anew, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["regions", "global"])
def test_frozen_features_are_averaged_and_projected(kind: str) -> None:
    model = of_random(images=kind, embed_dim=6)
    assert model.vision is None
    regions = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(4))
    regions[1, 2] = 0.0
    vectors = torch.stack([regions[0].mean(dim=0), regions[1, :2].mean(dim=0)])
    batch = ImageBatch(regions, torch.tensor([3, 2])) if kind == "regions" else ImageBatch(regions, global_=vectors)
    expected = normalize(vectors @ model.project_images.weight.T + model.project_images.bias)  # pyright: ignore
    torch.testing.assert_close(model.encode_images(batch).embedding, expected)
    assert model.encode_texts(captions()).embedding.shape == (3, 6)


def boxed(count: torch.Tensor | None = None) -> ImageBatch:
    generator = torch.Generator().manual_seed(4)
    corners = torch.rand(2, 3, 2, 2, generator=generator).sort(dim=2).values.flatten(2)
    return ImageBatch(torch.randn(2, 3, 12, generator=generator), count, boxes=corners)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_region_tokens_look_at_each_other_and_at_their_boxes(pool: str) -> None:
    model, batch = of_random(images="region-tokens", image_pool=pool), boxed()
    for part in model.vision.modules():  # pyright: ignore
        if isinstance(part, torch.nn.Linear):
            part.weight.mul_(20)  # those of a start are so small that regions hardly differ
    assert batch.boxes is not None
    found = model.encode_images(batch).embedding
    turned = replace(batch, regions=batch.regions.flip(1), boxes=batch.boxes.flip(1))
    torch.testing.assert_close(model.encode_images(turned).embedding, found)
    exchanged = model.encode_images(replace(batch, boxes=batch.boxes.flip(1))).embedding
    assert (exchanged - found).abs().max() > 1e-2
    alone = [model.encode_images(ImageBatch(batch.regions[:, [k]], boxes=batch.boxes[:, [k]])) for k in range(3)]
    apart = normalize(torch.stack([each.embedding for each in alone]).sum(dim=0))
    assert (apart - found).abs().max() > 1e-2
    with pytest.raises(DataError, match="trained on features with boxes, which these have not"):
        model.encode_images(replace(batch, boxes=None))


@torch.no_grad()
@pytest.mark.parametrize("boxes", [True, False])
def test_region_tokens_are_built_again_from_the_description(boxes: bool) -> None:
    settings = DualEncoder(**{**SMALL, "images": "region-tokens", "text": "random", "embed_dim": 6})  # pyright: ignore
    model = build(settings, 12, 40, open_encoders(settings, 0, boxes)).eval()
    again = build(settings, 12, 40, restored(json.loads(json.dumps(model.description())))).eval()
    again.load_state_dict(model.state_dict())
    batch = boxed(torch.tensor([3, 2]))
    assert torch.equal(again.encode_images(batch).embedding, model.encode_images(batch).embedding)
    assert settings.pretrained() == {}
    assert [*model.encoders()] == ["text"]
    assert not model.has_word_maps


def test_region_tokens_have_no_vector_of_their_own_and_frozen_features_need_a_projection() -> None:
    with pytest.raises(ValueError, match=r"has no image vector of its own; give --set model.image_pool=mean"):
        DualEncoder(images="region-tokens", image_pool="own", text="random")
    with pytest.raises(ValueError, match=r"needs a projection; give --set model.embed_dim"):
        DualEncoder(images="regions", text="random")


def test_encoders_of_different_widths_need_a_projection(saved_encoders: Path) -> None:
    with pytest.raises(
        UsageError, match=r"width 12 and text vectors .* 16; project both with --set model.embed_dim=16"
    ):
        of_saved(saved_encoders, "clip", "bert")


def test_encoders_without_a_pooler_have_no_vector_of_their_own(saved_encoders: Path, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_layers": 1, "n_heads": 2, "dim": 16, "hidden_dim": 32}
    shutil.copytree(saved_encoders / "bert", tmp_path / "text")
    transformers.DistilBertModel(transformers.DistilBertConfig(**sizes)).save_pretrained(tmp_path / "text")
    shutil.copytree(saved_encoders / "vit", tmp_path / "image")
    config = transformers.ViTMSNConfig(**json.loads((saved_encoders / "vit" / "config.json").read_text()))
    transformers.ViTMSNModel(config).save_pretrained(tmp_path / "image")
    for side in ("image", "text"):
        with pytest.raises(UsageError, match=rf"has no {side} vector of its own.*give --set model.{side}_pool=mean"):
            of_saved(tmp_path, "image", "text", **{f"{side}_pool": "own"})


@torch.no_grad()
@pytest.mark.parametrize("vision", ["vit", "siglip"])
def test_poolers_and_projections_are_those_of_a_vision_text_dual_encoder(vision: str, saved_encoders: Path) -> None:
    model = of_saved(saved_encoders, vision, "bert", **POOLED)
    made = transformers.AutoModel.from_pretrained(saved_encoders / vision)
    reference: Any = transformers.VisionTextDualEncoderModel(
        vision_model=getattr(made, "vision_model", made),
        text_model=transformers.BertModel.from_pretrained(saved_encoders / "bert"),
    )
    reference.visual_projection, reference.text_projection = model.project_images, model.project_texts
    tokens, mask = real_tokens()
    assert isinstance(model.vision, dual_encoder.VisionTower)
    colours = (pictures() - model.vision.mean) / model.vision.std
    expected = reference.eval()(input_ids=tokens, attention_mask=mask.long(), pixel_values=colours)
    torch.testing.assert_close(
        model.encode_images(images(pictures())).embedding, expected.image_embeds, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(model.encode_texts(captions()).embedding, expected.text_embeds, atol=1e-5, rtol=0)
    assert [name for name in model.state_dict() if name.startswith("project")] == [
        "project_images.weight",
        "project_texts.weight",
    ]


def test_a_pooler_that_a_checkpoint_lacks_starts_at_random_and_is_told(saved_encoders: Path, tmp_path: Path) -> None:
    shutil.copytree(saved_encoders / "vit", tmp_path / "vit")
    bare = transformers.ViTModel.from_pretrained(saved_encoders / "vit", add_pooling_layer=False)
    bare.save_pretrained(tmp_path / "vit")
    settings = DualEncoder(vision=str(tmp_path / "vit"), text=str(saved_encoders / "bert"), **POOLED)
    opened = [(torch.manual_seed(seed), open_encoders(settings))[1] for seed in (0, 0, 1)]
    assert opened[0].notes == (
        f"{tmp_path / 'vit'}: no weights of its pooler, which starts at random; where the encoder is frozen or adapted "
        "it stays so",
    )
    first, same, other = (each.vision.network.pooler.dense.weight for each in opened if each.vision is not None)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_random_encoders_have_poolers_where_they_are_asked_for() -> None:
    model = of_random(**POOLED).train()
    encoded = model.encode_images(images(pictures(32, 48))), model.encode_texts(captions())
    model.score_pairs(*encoded).sum().backward()
    assert all(weights.grad is not None for weights in model.parameters())
    assert any("pooler" in name for name in model.state_dict())
    assert not any("pooler" in name for name in of_random().state_dict())


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        ("bert/tokenizer.json", MissingInputError, "has no tokenizer.json nor vocab.txt"),
        ("bert/config.json", MissingInputError, "has no config.json"),
        ("bert/model.safetensors", MissingInputError, "has no model.safetensors"),
        ("vit/preprocessor_config.json", MissingInputError, "has no preprocessor_config.json"),
        ("vit", MissingInputError, "vit is not a folder"),
    ],
)
def test_what_is_missing_is_named_in_one_line(
    broken: str, error: type[Exception], message: str, saved_encoders: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(saved_encoders, tmp_path / "encoders"))
    path = root / broken
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(error, match=message) as raised:
        open_encoders(DualEncoder(vision=str(root / "vit"), text=str(root / "bert")))
    assert "\n" not in str(raised.value)


def test_damaged_files_and_foreign_tokenizers_are_refused(saved_encoders: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(saved_encoders, tmp_path / "encoders"))
    settings = DualEncoder(vision="random", text=str(root / "bert"), **SMALL)  # pyright: ignore
    tokenizer = json.loads((root / "bert" / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"new{number}": len(tokenizer["model"]["vocab"]) + number for number in range(5)}
    (root / "bert" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DataError, match="the tokenizer has 43 tokens and the network embeds 38"):
        open_encoders(settings)
    (root / "bert" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        open_encoders(settings)


def test_a_vision_model_is_no_text_encoder(saved_encoders: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(saved_encoders / "vit", tmp_path / "vit"))
    shutil.copy(saved_encoders / "bert" / "tokenizer.json", root)
    with pytest.raises(UsageError, match="model type 'vit' is not supported, supported are bert, "):
        open_encoders(DualEncoder(vision="random", text=str(root), **SMALL))  # pyright: ignore


def test_encoders_of_the_hub_are_downloaded_with_all_that_they_need(
    saved_encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Path(shutil.copytree(saved_encoders / "bert", tmp_path / "0123abc"))
    asked: list[tuple[str, str, set[str]]] = []

    def download(model: str, revision: str, allow_patterns: list[str]) -> str:
        asked.append((model, revision, set(allow_patterns)))
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    settings = DualEncoder(vision="random", text="bert-base-uncased", text_revision="v2", **SMALL)  # pyright: ignore
    opened = open_encoders(settings)
    assert opened.notes == ("bert-base-uncased is at commit 0123abc",)
    assert len(opened.tokenizer) == 38  # pyright: ignore
    assert asked[0][:2] == ("bert-base-uncased", "v2")
    needed = {"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "merges.txt", "model.safetensors"}
    assert needed <= asked[0][2]
    assert len(asked) == 1


@torch.no_grad()
@pytest.mark.parametrize("dim", [0, 8])
@pytest.mark.parametrize(("vision", "text"), [("", ""), ("vit", "bert"), ("siglip", "siglip")])
def test_the_mean_of_the_word_maps_is_the_score(vision: str, text: str, dim: int, saved_encoders: Path) -> None:
    values: dict[str, Any] = {"embed_dim": dim, "image_pool": "mean", "text_pool": "mean"}
    model = of_saved(saved_encoders, vision, text, **values) if vision else of_random(**values)
    for side in (model.project_images, model.project_texts):
        if isinstance(side, torch.nn.Linear):
            torch.nn.init.normal_(side.bias)  # else too small to matter
    batch, texts = images(pictures(*model.vision.frame)), captions()  # pyright: ignore
    maps = model.word_maps(batch, texts)
    found = torch.stack([each[:, :length].mean() for each, length in zip(maps, LENGTHS, strict=True)])
    expected = model.score_pairs(model.encode_images(batch), model.encode_texts(texts))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert maps.shape[2] == 9
    assert ((maps != 0) == (torch.arange(9) < LENGTHS[:, None])[:, None]).all()


@torch.no_grad()
@pytest.mark.parametrize(("row", "column"), [(0, 2), (1, 1)])
def test_patches_of_word_maps_come_row_by_row_behind_the_class_token(row: int, column: int) -> None:
    """Without positions equal patches have equal tokens, so the one patch that is painted has a value of its own."""
    model = of_random()
    torch.nn.init.zeros_(model.vision.network.embeddings.position_embeddings)  # pyright: ignore
    assert tuple(model.vision.grid()) == (2, 3, 16, 16)  # pyright: ignore
    pixels = torch.zeros(1, 3, 32, 48, dtype=torch.uint8)
    pixels[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = 255
    maps = model.word_maps(images(pixels), TextBatch(torch.tensor([[5]]), torch.tensor([1])))[0, :, 0]
    patches = maps[1:].view(2, 3)
    unlike = (patches - patches[1 - row, 0]).abs() > 1e-4
    assert unlike.nonzero().tolist() == [[row, column]]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"image_pool": "cls"}, "image_pool=cls and text_pool=mean"),
        ({"text_pool": "mean-all"}, "image_pool=mean and text_pool=mean-all"),
        ({"images": "regions", "embed_dim": 8}, "model.images=regions, image_pool=none"),
    ],
)
def test_other_scores_are_no_means_over_words_and_places(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        of_random(**values).word_maps(ImageBatch(torch.zeros(3, 2, 12)), captions())
