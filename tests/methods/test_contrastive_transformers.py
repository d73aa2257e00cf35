"""Our fine-tuning of CLIP and SigLIP against the losses of transformers itself: values and gradients of one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.methods.contrastive.method import build as build_method
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.network import build, open_encoders

PAIRS = 4
LENGTHS = torch.tensor([5, 4, 6, 3])


class Pairs:
    """Random images with a random caption each."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (PAIRS, 3, 32, 32), dtype=torch.uint8, generator=generator)
        tokens = torch.randint(4, 20, (PAIRS, 6), generator=generator)
        tokens[:, 0], tokens[torch.arange(PAIRS), LENGTHS - 1] = 2, 3
        self.tokens = tokens.masked_fill(torch.arange(6) >= LENGTHS[:, None], 0)
        self.caption_image = np.arange(PAIRS)

    def pairs(self, images: np.ndarray, captions: np.ndarray, rng: Any = None) -> tuple[ImageBatch, TextBatch]:
        return ImageBatch(torch.empty(PAIRS, 0, 0), pixels=self.pixels), self.texts(captions)

    def texts(self, rows: np.ndarray) -> TextBatch:
        return TextBatch(self.tokens[rows], LENGTHS[rows])


def theirs(kind: str, folder: Path, pixels: torch.Tensor, tokens: torch.Tensor, width: int) -> tuple[Any, Any]:
    """A model of transformers, and its loss."""
    classes: dict[str, Any] = {"clip": transformers.CLIPModel, "siglip": transformers.SiglipModel}
    model = classes[kind].from_pretrained(folder).eval()
    mask = (tokens != 0).long() if kind == "clip" else None
    padded = torch.nn.functional.pad(tokens, (0, width - tokens.shape[1])) if kind == "siglip" else tokens
    found = model(input_ids=padded, pixel_values=pixels, attention_mask=mask, return_loss=True)
    return model, found.loss


@pytest.mark.parametrize(("kind", "objective"), [("clip", "infonce"), ("siglip", "sigmoid")])
def test_losses_and_gradients_are_those_of_transformers(kind: str, objective: str, saved_encoders: Path) -> None:
    data, folder = Pairs(), saved_encoders / kind
    settings = DualEncoder(vision=str(folder), text=str(folder))
    ours: Any = build(settings, 0, 0, open_encoders(settings)).eval()
    loss = Contrastive(objective=objective, temperature="own", bias="own" if kind == "siglip" else -10.0)  # pyright: ignore
    method = build_method(loss, data, {})  # pyright: ignore[reportArgumentType]
    state = method.attach(ours)
    batch = method.collate(np.arange(PAIRS), np.random.default_rng(0))
    value = method.losses(ours, batch, 0)["contrastive"]
    value.backward()

    pixels = (data.pixels.float() - ours.vision.mean) / ours.vision.std
    model, expected = theirs(kind, folder, pixels, data.tokens, ours.text.max_tokens)
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(state.log_scale.grad, model.logit_scale.grad.squeeze(), rtol=1e-5, atol=1e-6)
    if kind == "siglip":
        torch.testing.assert_close(state.bias.grad, model.logit_bias.grad.squeeze(), rtol=1e-5, atol=1e-6)
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    compared = 0
    for name, each in ours.named_parameters():
        side, _, inside = name.removeprefix("project_").partition(".network.")
        own = {"vision": "vision_model.", "text": "text_model."}[side]
        place = inside if inside in gradients else f"{own}{inside}"
        if each.grad is not None:
            torch.testing.assert_close(each.grad, gradients[place], rtol=1e-4, atol=1e-6, msg=place)
            compared += 1
    assert compared == len(gradients) - (2 if kind == "siglip" else 1)
