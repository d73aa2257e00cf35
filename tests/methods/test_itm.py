"""Matching with hard negatives against reference numbers: what is drawn, what is taken, and what is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from itrpipe.methods.itm import method as itm
from itrpipe.methods.itm.declaration import Itm
from itrpipe.methods.itm.method import ItmBatch, PairRows
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.network import UniterEncoder, translate
from itrpipe.testing import ToyPairs
from tests.methods.toys import built, reference, reference_uniter, small_uniter

CASES = ("text_anchor", "image_anchor_correct")


def method(**changed: object) -> itm.ItmMethod:
    return built(itm.build, Itm(**{"sampled_negatives": 4, "hard_negatives": 2, **changed}), ToyPairs())  # pyright: ignore


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    return reference("uniter_itm_hard_negative")


@pytest.fixture
def reference_model(arrays: dict[str, Tensor]) -> UniterEncoder:
    return reference_uniter(reference("uniter_forward"), arrays)


def reference_batch(arrays: dict[str, Tensor], case: str) -> ItmBatch:
    """One anchor with twelve candidates; its layout says how long each side of a pair is."""
    ids, features, boxes = (arrays[f"{case}/in/{name}"] for name in ("input_ids", "img_feat", "img_pos_feat"))
    lengths = (ids != 0).sum(dim=1)
    count = (features.abs().sum(dim=2) > 0).sum(dim=1)
    total = arrays[f"{case}/in/attn_masks"].sum(dim=1)
    assert torch.equal(lengths + count, total)
    candidates, one = torch.arange(12)[None], torch.zeros(1, 12, dtype=torch.int64)
    rows = PairRows(candidates, one) if case == "text_anchor" else PairRows(one, candidates)
    images = ImageBatch(features, count, boxes=boxes[..., :4])
    return ItmBatch({"pool": (images, TextBatch(ids, lengths))}, torch.zeros(1, dtype=torch.int64), rows=rows)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_match_the_reference(arrays, reference_model, case):
    trained = method(sampled_negatives=4, hard_negatives=4)
    batch = reference_batch(arrays, case)
    # The reference has a single anchor; with the same one twice, either term is the reference's loss.
    batch.rows = PairRows(*(side.repeat(2, 1) for side in (batch.rows.images, batch.rows.captions)))
    found = trained.losses(reference_model, batch, epoch=0)
    assert found.keys() == {"text_anchored", "image_anchored"}
    for term in found.values():
        torch.testing.assert_close(term, arrays[f"{case}/loss_mean"], rtol=0, atol=1e-6)
    found["text_anchored"].backward()
    expected = {name: t for name, t in arrays.items() if name.startswith(f"{case}/grad/")}
    assert len(expected) == 5
    parameters = dict(reference_model.named_parameters())
    for name, gradient in expected.items():
        name = name.removeprefix(f"{case}/grad/")
        if ".self.query." in name:
            own = parameters["layers.0.project.weight"].grad[:48]  # pyright: ignore
        else:
            own = parameters[next(iter(translate({name: gradient})))].grad
        torch.testing.assert_close(own, gradient, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_the_hardest_are_found_without_dropout_gradient_or_random_numbers():
    model, trained = small_uniter(dropout=0.4, std=0.4), method()
    batch = trained.collate(np.array([0, 3, 7]), np.random.default_rng(1))
    before = torch.get_rng_state()
    chosen = trained.hard_rows(model, batch, epoch=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(weights.grad is None for weights in model.parameters())
    model.eval()
    images, texts = batch.pairs["pool"]
    encoded = model.encode_images(images), model.encode_texts(texts)
    scores = model.score_at(*encoded, batch.rows.images.flatten(), batch.rows.captions.flatten()).view(6, 5)
    best = scores[:, 1:].topk(2, dim=1).indices + 1
    assert torch.equal(chosen.images[:, 1:], batch.rows.images.gather(1, best))
    assert torch.equal(chosen.captions[:, 1:], batch.rows.captions.gather(1, best))
    trained.hard_rows(model, batch, epoch=0)
    assert not model.training
