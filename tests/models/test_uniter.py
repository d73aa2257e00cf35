"""UNITER against reference numbers; its compact sequences, tiles and heads; and published state dicts of any form."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from itrpipe.errors import DataError
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter import network as uniter
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import UniterEncoder, build, load_published, translate

REFERENCE = Path(__file__).resolve().parents[1] / "reference" / "uniter_forward.npz"
SIZES = Uniter(embed_dim=48, layers=2, heads=4, feed_forward_dim=96, max_words=40)
IMAGE_DIM, VOCABULARY = 32, 120


@pytest.fixture(scope="module")
def reference() -> dict[str, Tensor]:
    with np.load(REFERENCE, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays}


def published(reference: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[3:]: tensor.clone() for name, tensor in reference.items() if name.startswith("sd/")}


@pytest.fixture
def model(reference: dict[str, Tensor], tmp_path: Path) -> UniterEncoder:
    return loaded(published(reference), tmp_path)


def loaded(state: dict[str, Tensor], folder: Path) -> UniterEncoder:
    save_file(state, folder / "published.safetensors")
    made = UniterEncoder(SIZES, IMAGE_DIM, VOCABULARY).eval()
    load_published(made, folder / "published.safetensors")
    return made


def batches(reference: dict[str, Tensor], ids: str = "in/input_ids") -> tuple[ImageBatch, TextBatch]:
    images = ImageBatch(reference["in/img_feat"], reference["in/num_bbs"], boxes=reference["in/img_pos_feat"][..., :4])
    return images, TextBatch(reference[ids], reference["in/txt_lens"])


@torch.no_grad()
def last_states(model: UniterEncoder, images: ImageBatch, texts: TextBatch) -> tuple[Tensor, Tensor]:
    """States [4, 15, 48] of pairs, and which of them are real."""
    rows, sizes = torch.arange(4), texts.lengths + images.count
    sides = model.encode_images(images), model.encode_texts(texts)
    return model.read_at(*sides, rows, rows, 15, lambda states: states), torch.arange(15) < sizes[:, None]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_states_of_compact_sequences_match_the_reference(model, reference):
    states, real = last_states(model, *batches(reference))
    assert real.sum(dim=1).tolist() == (reference["in/txt_lens"] + reference["in/num_bbs"]).tolist()
    close(states[real], reference["out/sequence_output"][real])
    first = UniterEncoder(SIZES.model_copy(update={"layers": 1}), IMAGE_DIM, VOCABULARY).eval()
    first.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if ".1." not in name})
    close(last_states(first, *batches(reference))[0][real], reference["out/layer1"][real])


def test_heads_match_the_reference(model, reference):
    states, _ = last_states(model, *batches(reference))
    close(model.pooled(states[:, 0]), reference["out/pooled"])
    logits = model.match_logits(states[:, 0])
    close(logits, reference["out/itm_logits"])
    losses = F.cross_entropy(logits, reference["itm/targets"], reduction="none")
    close(losses, reference["itm/ce_loss"])
    for row, length in enumerate(reference["in/txt_lens"]):
        close(model.masked_word_logits(states[row, :length]), reference["out/mlm_logits"][row, :length])


def random_model(dropout: float = 0.1, **changed: object) -> UniterEncoder:
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "layers": 2, "heads": 2, "feed_forward_dim": 24, "max_words": 12, "dropout": dropout}
    made = build(Uniter(**{**sizes, **changed}), 6, 20)  # pyright: ignore
    for name, weights in made.named_parameters():
        if name.endswith("weight") and weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.4)  # so that what can be seen is seen
    return made.eval()


def random_sides(count: list[int], lengths: list[int], room: int = 6, width: int = 9) -> tuple[ImageBatch, TextBatch]:
    generator = torch.Generator().manual_seed(len(count) + 31 * sum(lengths))
    corners = torch.rand(len(count), room, 2, 2, generator=generator).sort(dim=2).values.flatten(2)
    regions = torch.randn(len(count), room, 6, generator=generator)
    tokens = torch.randint(4, 20, (len(lengths), width), generator=generator)
    return ImageBatch(regions, torch.tensor(count), boxes=corners), TextBatch(tokens, torch.tensor(lengths))


def test_tiles_hold_every_pair_once_and_little_padding():
    model, random = random_model(), torch.Generator().manual_seed(0)
    count, lengths = torch.randint(10, 100, (50,), generator=random), torch.randint(7, 30, (200,), generator=random)
    rows, columns = (torch.randint(0, len(of), (3000,), generator=random) for of in (count, lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(uniter._TILE_SIZES, "cpu", 16 * 20_000)
        tiles = list(model._tiles(count, lengths, rows, columns))
    sizes = count[rows] + lengths[columns]
    assert sorted(torch.cat([pairs for pairs, _, _ in tiles]).tolist()) == list(range(3000))
    for pairs, longest, padded in tiles:
        assert int(sizes[pairs].max()) == longest
        assert padded == bool((sizes[pairs] < longest).any())
        assert len(pairs) * longest <= 20_000
    assert sizes.sum() > 0.94 * sum(len(pairs) * longest for pairs, longest, _ in tiles)
    assert len(tiles) < 2.5 * sizes.sum() / 20_000


@settings(max_examples=15)
@given(
    count=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    tile=st.sampled_from([1, 400, 1 << 20]),
    width=st.integers(1, 16),
    layers=st.integers(1, 3),
)
def test_states_that_are_read_are_those_of_the_pair_alone(count, lengths, tile, width, layers):
    """Also where more positions are read than the pairs of a tile have."""
    model = random_model(layers=layers)
    images, texts = random_sides(count, lengths)
    pairs = torch.cartesian_prod(torch.arange(len(count)), torch.arange(len(lengths))).flip(0)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setitem(uniter._TILE_SIZES, "cpu", tile)
        encoded, words = model.encode_images(images), model.encode_texts(texts)
        read = model.read_at(encoded, words, pairs[:, 0], pairs[:, 1], width, lambda states: states)
        scores = model.read_at(encoded, words, pairs[:, 0], pairs[:, 1], 1, lambda states: states[:, 0])
        close(model.rank_score(scores), model.score_at(encoded, words, pairs[:, 0], pairs[:, 1]))
        assert read.shape == (len(pairs), width, 16)
        for found, (image, text) in zip(read, pairs.tolist(), strict=True):
            parts = [words.words[text, : lengths[text]], encoded.regions[image, : count[image]]]
            expected = model.through_layers(torch.cat(parts)[None], None)[0]
            close(found[: len(expected)], expected[:width], 2e-5)


def test_dropout_of_embeddings_falls_on_every_pair_anew_and_before_the_first_layer():
    model = random_model(dropout=0.3).train()
    for layer in model.layers:
        layer.dropout = 0.0  # pyright: ignore
    images, texts = random_sides([6], [9])
    encoded = model.encode_images(images), model.encode_texts(texts)
    rows = torch.zeros(6, dtype=torch.int64)
    torch.manual_seed(3)
    scores = model.score_at(*encoded, rows, rows)
    torch.manual_seed(3)
    states = torch.cat([encoded[1].words, encoded[0].regions], dim=1).expand(6, -1, -1)
    states = model.through_layers(F.dropout(states.contiguous(), 0.3), None)
    close(scores, model.rank_score(states[:, 0]))
    assert len(scores.unique()) == 6


def test_a_model_without_boxes_or_positions_says_so():
    model = random_model()
    images, _ = random_sides([3], [4])
    with pytest.raises(DataError, match="boxes of regions"):
        model.encode_images(ImageBatch(images.regions))
    with pytest.raises(DataError, match="a caption has 13 tokens and the model 12 positions"):
        model.encode_texts(TextBatch(torch.ones(1, 13, dtype=torch.int64), torch.tensor([13])))


def test_fresh_heads_start_from_others():
    model = random_model()
    fresh = build(model.settings, 6, 20)
    assert torch.equal(fresh.rank.weight, fresh.match.weight[1:])
    assert torch.equal(fresh.word_match.weight, fresh.match.weight)
    assert torch.equal(fresh.correction.transform.weight, fresh.masked_word.transform.weight)
    assert fresh.rank.weight.data_ptr() != fresh.match.weight[1:].data_ptr()
    assert fresh.text.word.num_embeddings == 21  # [MASK]
    assert fresh.text.word.weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_weight_decay_spares_biases_and_layer_norms_but_two():
    spared = random_model().undecayed()
    named = {name for name, _ in random_model().named_parameters()}
    assert spared <= named
    expected = {name for name in named if re.search(r"bias$|norm\.weight$", name)}
    assert spared == expected - {"image.region_norm.weight", "image.box_norm.weight"}
    assert {"image.norm.weight", "text.norm.weight", "masked_word.bias"} <= spared


@pytest.mark.parametrize("form", ["bert", "gamma and beta", "half precision", "data parallel"])
def test_other_spellings_load_alike(model, reference, tmp_path, form):
    state = published(reference)
    if form == "gamma and beta":
        state = {
            re.sub(
                r"(?<=LayerNorm\.)(weight|bias)$", lambda at: {"weight": "gamma", "bias": "beta"}[at[0]], name
            ): tensor
            for name, tensor in state.items()
        }
        assert "uniter.img_embeddings.LayerNorm.gamma" in state
    if form == "bert":
        state = {name.replace("uniter", "bert"): tensor for name, tensor in state.items()}
    if form == "half precision":
        state = {name: tensor.half() for name, tensor in state.items()}
    if form == "data parallel":
        state = {f"module.{name}": tensor for name, tensor in state.items()}
    for name, tensor in loaded(state, tmp_path).state_dict().items():
        close(tensor, model.state_dict()[name], 1e-3 if form == "half precision" else 0.0)


def test_heads_of_tags_load_and_start_from_others_where_missing(model, reference, tmp_path):
    state = published(reference)
    assert torch.equal(model.rank.weight, state["itm_output.weight"][1:])
    assert torch.equal(model.rank.bias, state["itm_output.bias"][1:])
    assert torch.equal(model.word_match.weight, state["itm_output.weight"])
    assert torch.equal(model.correction.transform.weight, state["cls.predictions.transform.dense.weight"])
    more = {"disc_output.weight": torch.ones(2, 48), "disc_output.bias": torch.ones(2)}
    more |= {"rank_output.weight": torch.full((1, 48), 0.5), "rank_output.bias": torch.tensor([0.25])}
    more |= {
        name.replace("cls.", "correction_output."): tensor + 1.0
        for name, tensor in state.items()
        if name.startswith("cls.") and "decoder" not in name
    }
    found = loaded({**state, **more}, tmp_path)
    assert torch.equal(found.rank.weight, more["rank_output.weight"])
    assert torch.equal(found.word_match.weight, more["disc_output.weight"])
    assert torch.equal(found.correction.bias, more["correction_output.predictions.bias"])
    assert torch.equal(found.masked_word.bias, state["cls.predictions.bias"])


def test_weights_of_bert_leave_the_image_side_as_it_was(reference, tmp_path):
    wanted = ("uniter.embeddings", "uniter.encoder", "uniter.pooler", "cls.")
    state = {name.replace("uniter", "bert"): t for name, t in published(reference).items() if name.startswith(wanted)}
    state["cls.seq_relationship.weight"] = torch.zeros(2, 48)
    save_file(state, tmp_path / "bert.safetensors")
    model = UniterEncoder(SIZES, IMAGE_DIM, VOCABULARY)
    before = model.image.region.weight.clone()
    said = load_published(model, tmp_path / "bert.safetensors")
    assert torch.equal(model.image.region.weight, before)
    assert torch.equal(model.masked_word.bias, reference["sd/cls.predictions.bias"])
    assert "not in this file: correction, image, match, rank, word_match" in said
    assert "not used: 2 weights" in said


def test_a_torch_file_loads_and_code_in_it_does_not_run(model, reference, tmp_path):
    torch.save(published(reference), tmp_path / "uniter.pt")
    made = UniterEncoder(SIZES, IMAGE_DIM, VOCABULARY)
    load_published(made, tmp_path / "uniter.pt")
    assert torch.equal(made.pooler.weight, model.pooler.weight)
    torch.save({"weights": Path("x")}, tmp_path / "objects.pt")
    with pytest.raises(DataError, match="never loaded"):
        load_published(made, tmp_path / "objects.pt")


@pytest.mark.parametrize(
    ("value", "change", "expected"),
    [
        (float("nan"), {}, r"published\.safetensors: 'layers\.0\..*' holds 48 values that are no finite"),
        (float("inf"), {}, r"'layers\.0\..*' holds 48 values that are no finite"),
        (0.0, {"layers": 3}, "has no weights for 'layers.2"),
        (0.0, {"layers": 1}, "has weights for 'layers.1"),
        (0.0, {"max_words": 30}, r"'text.position.weight' have shape \(40, 48\), .* need \(30, 48\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(reference, tmp_path, value, change, expected):
    state = published(reference) | {"uniter.encoder.layer.0.output.dense.bias": torch.full((48,), value)}
    save_file(state, tmp_path / "published.safetensors")
    model = UniterEncoder(SIZES.model_copy(update=change), IMAGE_DIM, VOCABULARY)
    with pytest.raises(DataError, match=expected) as caught:
        load_published(model, tmp_path / "published.safetensors")
    assert len(str(caught.value).splitlines()) == 1


def test_every_weight_of_the_model_has_a_published_name(reference):
    found, ignored = translate(published(reference))
    heads = ("rank.", "word_match.", "correction.")
    names = {name for name, _ in UniterEncoder(SIZES, IMAGE_DIM, VOCABULARY).named_parameters()}
    assert found.keys() == {name for name in names if not name.startswith(heads)}
    assert {name.split(".")[0] for name in ignored} == {"uniter", "cls", "feat_regress", "region_classifier"}
    assert [name for name in ignored if name.startswith(("uniter", "cls"))] == [
        "uniter.img_embeddings.mask_embedding.weight",
        "cls.predictions.decoder.weight",
    ]
