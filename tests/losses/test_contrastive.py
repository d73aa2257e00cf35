"""Contrastive objectives: equal to those of CLIP, SigLIP and NegCLIP, and what weights do to them."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.losses import contrastive
from itrpipe.losses.contrastive import (
    above_positive,
    hardest_candidate,
    hardest_triplet,
    infonce,
    sigmoid,
    sum_of_triplets,
    survivors,
)
from itrpipe.losses.triplet import triplet_loss

REFERENCE = Path(__file__).resolve().parents[1] / "reference" / "contrastive.npz"
NONE = float("-inf")
OBJECTIVES: dict[str, Callable[..., Tensor]] = {
    "infonce": infonce,
    "sigmoid": sigmoid,
    "hardest": hardest_triplet,
    "sum": sum_of_triplets,
}


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE, allow_pickle=False) as file:
        return dict(file)


def both(objective: Callable[..., Tensor], scores: Tensor, *more: Tensor, **options) -> Tensor:
    """The mean of both directions of a batch; `more` are further columns of the images."""
    own = torch.zeros_like(scores).fill_diagonal_(NONE)
    wide = torch.cat([scores, *more], dim=1)
    weights = torch.cat([own, *(torch.zeros_like(each) for each in more)], dim=1)
    positive = scores.diagonal()
    return (objective(positive, wide, weights, **options) + objective(positive, scores.T, own, **options)) / 2


def leaves(*values) -> list[Tensor]:
    return [torch.as_tensor(value).clone().requires_grad_() for value in values]


def gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_losses_and_gradients_are_those_of_open_clip(reference, name):
    images, texts, scale, bias = leaves(
        reference["images"], reference["texts"], reference["scale"].astype(np.float32), np.float32(reference["bias"])
    )
    if name == "clip":
        loss = both(infonce, images @ texts.T, temperature=1 / scale)
    else:
        loss = both(sigmoid, images @ texts.T, scale=scale, bias=bias)
    loss.backward()
    assert loss.item() == pytest.approx(float(reference[f"{name}/loss"]), abs=1e-6)
    found = {"images": images, "texts": texts, "scale": scale, "bias": bias}
    for part in ("images", "texts", "scale", *(("bias",) if name == "siglip" else ())):
        np.testing.assert_allclose(gradient(found[part]).numpy(), reference[f"{name}/{part}"], atol=1e-6)


def test_captions_that_follow_those_of_the_batch_are_negatives_of_all_images_as_in_negclip():
    scores, hard = torch.randn(5, 5), torch.randn(5, 5)
    logits = torch.cat([scores, hard], dim=1) / 0.1  # [B, 2 B]
    places = torch.arange(5)
    expected = (F.cross_entropy(logits, places) + F.cross_entropy(scores.T / 0.1, places)) / 2
    torch.testing.assert_close(both(infonce, scores, hard, temperature=0.1), expected)


def test_triplets_of_a_batch_are_those_of_round_one():
    scores = torch.randn(6, 6)
    for objective, hardest in ((hardest_triplet, True), (sum_of_triplets, False)):
        expected = triplet_loss(scores, 0.3, hardest) / 12  # both directions of six pairs
        torch.testing.assert_close(both(objective, scores, margin=0.3), expected)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_candidate_without_weight_is_as_if_it_were_not_there(name):
    positive, candidates = leaves(torch.randn(4), torch.randn(4, 7))
    weights = torch.zeros(4, 7)
    weights[:, 4:] = NONE
    loss, fewer = OBJECTIVES[name](positive, candidates, weights), OBJECTIVES[name](positive, candidates[:, :4])
    torch.testing.assert_close(loss, fewer)
    loss.backward()
    assert not gradient(candidates)[:, 4:].any()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_anchor_without_candidates_has_a_finite_loss(name):
    positive, candidates = leaves(torch.randn(3), torch.randn(3, 2))
    loss = OBJECTIVES[name](positive, candidates, torch.full((3, 2), NONE))
    loss.backward()
    expected = F.softplus(-(10 * positive - 10)).mean() if name == "sigmoid" else torch.tensor(0.0)
    torch.testing.assert_close(loss, expected)
    assert gradient(positive).isfinite().all()
    assert not gradient(candidates).any()


@pytest.mark.parametrize("name", ["infonce", "sigmoid", "sum"])
def test_half_the_weight_of_two_equal_candidates_is_one_of_them(name):
    positive, one = torch.randn(4), torch.randn(4, 1)
    halves = OBJECTIVES[name](positive, one.expand(-1, 2), torch.full((4, 2), 0.5).log())
    torch.testing.assert_close(halves, OBJECTIVES[name](positive, one))


def test_without_candidates_only_the_sigmoid_of_the_positive_is_left():
    positive, nothing = torch.randn(3, requires_grad=True), torch.zeros(3, 0)
    for objective in (infonce, hardest_triplet, sum_of_triplets):
        loss = objective(positive, nothing, nothing)
        assert loss.item() == 0
        assert torch.autograd.grad(loss, positive)[0].abs().max() == 0
    assert sigmoid(positive, nothing, nothing).item() == pytest.approx(F.softplus(10 - 10 * positive).mean().item())
    assert hardest_candidate(nothing, nothing).shape == above_positive(positive, nothing, max_score=1.0).shape == (3, 0)


def test_the_hardest_candidate_keeps_its_weight():
    candidates = torch.tensor([[0.5, 0.9, 0.1], [0.3, 0.2, 0.8]])
    weights = torch.tensor([[0.0, NONE, -1.0], [-2.0, 0.0, -0.5]])
    expected = torch.tensor([[0.0, NONE, NONE], [NONE, NONE, -0.5]])
    assert torch.equal(hardest_candidate(candidates, weights), expected)


def test_candidates_survive_as_often_as_they_weigh():
    torch.manual_seed(0)
    weights = torch.tensor([1.0, 0.25, 0.0]).log().expand(20_000, 3)
    kept = survivors(weights)
    assert set(kept.unique().tolist()) == {0.0, NONE}
    share = kept.isfinite().float().mean(dim=0)
    assert share[0] == 1
    assert share[1] == pytest.approx(0.25, abs=0.02)
    assert share[2] == 0


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("relative_margin", {"relative_margin": 0.3}),
        ("absolute_margin", {"absolute_margin": 0.25}),
        ("max_score", {"max_score": 0.2}),
        ("all", {"relative_margin": 0.1, "absolute_margin": 0.15, "max_score": 0.4}),
    ],
)
def test_what_scores_too_high_is_what_sentence_transformers_drops(reference, name, limits):
    scores = torch.from_numpy(reference["queries"] @ reference["passages"].T)
    kept = ~above_positive(scores.diagonal(), scores, **limits)
    assert np.array_equal(kept.fill_diagonal_(False).numpy(), reference[f"kept/{name}"])


def test_a_share_of_a_positive_below_zero_lowers_the_limit_too():
    scores = torch.tensor([[-0.5, -0.54, -0.56]])
    assert above_positive(scores[:, 0], scores, relative_margin=0.1).tolist() == [[True, True, False]]


def test_examples_of_the_docstrings_hold():
    found = doctest.testmod(contrastive, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted == 3
