"""The dual encoder of transformers: joint models, colours, pooling, padding and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize, pad

from itrpipe.encoders import encoder
from tests.models.toys import built, close, encoded, kept_values, toys
from tests.waits import Waits

CLIP_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
CLIP_STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
IMAGES, TEXTS = toys(3, 3)
PIXELS, LENGTHS, WIDTH = IMAGES.pixels, TEXTS.lengths, TEXTS.tokens.shape[1]
assert PIXELS is not None
TEXTS = replace(TEXTS, tokens=TEXTS.tokens + (TEXTS.tokens == 2))  # they end with 3, as those of the saved CLIP do


def saved(root: Path, vision: str, text: str, **options: Any) -> Any:
    """A dual encoder of two saved ones that does not project unless it is told to."""
    return built("dual-encoder", vision=str(root / vision), text=str(root / text), **{"embed_dim": 0} | options)


def masked(width: int = WIDTH) -> dict[str, Tensor]:
    """The captions padded to a width with zeros, and the mask of what is real, as transformers takes them."""
    tokens = pad(TEXTS.tokens, (0, width - WIDTH))
    mask = torch.arange(width) < LENGTHS[:, None]
    return {"input_ids": tokens.masked_fill(~mask, 0), "attention_mask": mask.long()}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_joint_models_embed_as_transformers_does(kind: str, saved_encoders: Path) -> None:
    reference: Any = transformers.AutoModel.from_pretrained(saved_encoders / kind).eval()
    mean, std = (CLIP_MEAN, CLIP_STD) if kind == "clip" else (0.5, 0.5)
    read = masked() if kind == "clip" else {"input_ids": masked(16)["input_ids"]}  # SigLIP reads padding, up to its end
    expected = reference(pixel_values=(PIXELS / 255 - mean) / std, **read)
    image, text = encoded(saved(saved_encoders, kind, kind), IMAGES, TEXTS)
    close(image.embedding, expected.image_embeds)
    close(text.embedding, expected.text_embeds)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["mean", "mean-all", "mean-all in a step", "cls", "last", "own"])
def test_captions_are_pooled_as_by_hand(pool: str, saved_encoders: Path) -> None:
    training = pool.endswith("a step")  # FNE's code pads to 30 outside training
    setting = pool.partition(" ")[0]
    model = saved(saved_encoders, "vit", "bert", text_pool=setting)
    bert = transformers.BertModel.from_pretrained(saved_encoders / "bert").eval()
    read = bert(**masked(30 if pool == "mean-all" else WIDTH))
    states = read.last_hidden_state
    rows = list(zip(states, LENGTHS, strict=True))
    expected = {
        "mean": torch.stack([each[:length].mean(dim=0) for each, length in rows]),
        "mean-all": states.mean(dim=1),
        "cls": states[:, 0],
        "last": torch.stack([each[length - 1] for each, length in rows]),
        "own": read.pooler_output,
    }[setting]
    close(model.encode_texts(replace(TEXTS, in_training=training)).embedding, normalize(expected))


@pytest.mark.parametrize("text", ["bert", "clip", "siglip"])
def test_encoding_and_comparing_never_wait_for_a_device(text: str, saved_encoders: Path) -> None:
    model = saved(saved_encoders, "vit", text, embed_dim=8).train()
    with Waits() as waits:
        model.score_matrix(*encoded(model, IMAGES, TEXTS)).sum().backward()
    assert not waits.seen


def test_projections_have_a_bias_unless_both_sides_are_poolers(saved_encoders: Path) -> None:
    for vision, bias in (("own", False), ("mean", True)):
        model = saved(saved_encoders, "vit", "bert", image_pool=vision, text_pool="own", embed_dim=8)
        assert ("project_images.bias" in model.state_dict()) == ("project_texts.bias" in model.state_dict()) == bias


@pytest.mark.parametrize(("options", "share"), [({"dropout": 0.3}, 0.3), ({}, 0.0)])
def test_heads_read_a_part_of_their_vectors_in_a_step(options: dict[str, Any], share: float) -> None:
    model = built("dual-encoder", images="global", embed_dim=8, **options)
    whole = encoded(model, IMAGES, TEXTS)
    model.text.eval()
    seen: list[Tensor] = []
    for head in (model.project_images, model.project_texts):
        head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model.project_images.train()
    model.dropout.train()
    for side, before in zip(encoded(model, IMAGES, TEXTS), whole, strict=True):
        assert torch.equal(side.embedding, before.embedding) == (share == 0)
    for vectors in seen:
        assert (vectors == 0).float().mean().item() == pytest.approx(share, abs=0.2)


def test_blocks_of_images_are_encoded_in_parts_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built("dual-encoder")
    whole, sizes = model.encode_images(IMAGES).embedding, []
    image_outputs = model.vision.image_outputs
    monkeypatch.setattr(
        model.vision, "image_outputs", lambda frames: sizes.append(len(frames)) or image_outputs(frames)
    )
    monkeypatch.setattr(encoder, "_IMAGES_AT_ONCE", {"cpu": 2})
    close(model.encode_images(IMAGES).embedding, whole)
    model.train().encode_images(IMAGES)
    assert sizes == [2, 1, 3]


def test_gradient_checkpointing_keeps_less_and_changes_no_gradient() -> None:
    gradients, kept = [], []
    for less in (False, True):
        model = built("dual-encoder", gradient_checkpointing=less).train()
        torch.manual_seed(3)
        scores, values = kept_values(lambda model=model: model.score_matrix(*encoded(model, IMAGES, TEXTS)))
        scores.diagonal().sum().backward()
        gradients.append([weights.grad for weights in model.parameters() if weights.grad is not None])
        kept.append(values)
    assert kept[1] < kept[0]
    for plain, anew in zip(*gradients, strict=True):
        close(anew, plain, 1e-4)
