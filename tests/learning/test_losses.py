"""Triplets, and contrastive objectives as those of CLIP, SigLIP and NegCLIP; what weights do to them."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.learning import losses
from itrpipe.learning.losses import hardest_triplet, hinge, infonce, sigmoid, sum_of_triplets, triplet_loss
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.methods.contrastive.method import above_positive
from tests.methods.toys import reference

REFERENCE = reference("contrastive")
NONE = float("-inf")
OBJECTIVES: dict[str, Callable[..., Tensor]] = {
    "infonce": infonce,
    "sigmoid": sigmoid,
    "hardest": hardest_triplet,
    "sum": sum_of_triplets,
}


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


@pytest.mark.parametrize(("name", "objective"), [("clip", infonce), ("siglip", sigmoid)])
def test_losses_and_gradients_are_those_of_open_clip(name, objective):
    images, texts, scale, bias = leaves(*(REFERENCE[part].float() for part in ("images", "texts", "scale", "bias")))
    options = {"temperature": 1 / scale} if name == "clip" else {"scale": scale, "bias": bias}
    loss = both(objective, images @ texts.T, **options)
    loss.backward()
    assert loss.item() == pytest.approx(float(REFERENCE[f"{name}/loss"]), abs=1e-6)
    for part, leaf in {"images": images, "texts": texts, "scale": scale, "bias": bias}.items():
        if (name, part) != ("clip", "bias"):
            np.testing.assert_allclose(gradient(leaf).numpy(), REFERENCE[f"{name}/{part}"], atol=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_anchors_without_a_column_of_candidates_cost_what_no_negatives_cost(name):
    positive, none = torch.tensor([0.3, 0.6]), torch.empty(2, 0)
    one = torch.full((2, 1), 0.9)
    loss = OBJECTIVES[name](positive, none)
    assert loss.item() == pytest.approx(OBJECTIVES[name](positive, one, torch.full((2, 1), NONE)).item())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("left", [4, 0])
def test_a_candidate_without_weight_is_as_if_it_were_not_there(name, left):
    positive, candidates = leaves(torch.randn(4), torch.randn(4, 7))
    weights = torch.zeros(4, 7)
    weights[:, left:] = NONE
    loss = OBJECTIVES[name](positive, candidates, weights)
    if left:
        expected = OBJECTIVES[name](positive, candidates[:, :left])
    else:
        expected = F.softplus(-(10 * positive - 10)).mean() if name == "sigmoid" else torch.tensor(0.0)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert gradient(positive).isfinite().all()
    assert not gradient(candidates)[:, left:].any()


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def soft_loss(name: str, positive: float, candidates: list[tuple[float, float, float]]) -> float:
    """The loss of an anchor as its docstring writes it; a candidate is a score, a weight and a target."""
    if name == "infonce":
        total = 1 + sum(target for _, _, target in candidates)
        likelihood = math.log(math.exp(positive / 0.07) + sum(w * math.exp(c / 0.07) for c, w, _ in candidates))
        agreed = positive / 0.07 + sum(target * c / 0.07 for c, _, target in candidates)
        return likelihood - agreed / total
    loss = -log_sigmoid(10 * positive - 10)
    for c, w, target in candidates:
        loss -= w * (target * log_sigmoid(10 * c - 10) + (1 - target) * log_sigmoid(10 - 10 * c))
    return loss


@pytest.mark.parametrize("name", ["infonce", "sigmoid"])
def test_targets_count_as_their_formulas_say(name):
    positive, candidates = torch.randn(4, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    weights, targets = torch.rand(4, 6, dtype=torch.float64), torch.rand(4, 6, dtype=torch.float64)
    weights[:, 1] = targets[:, 1] = 0.0
    loss = OBJECTIVES[name](positive, candidates, weights.log(), targets=targets)
    rows = torch.stack([candidates, weights, targets], dim=2).tolist()
    expected = [soft_loss(name, p, row) for p, row in zip(positive.tolist(), rows, strict=True)]
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("relative_margin", {"relative_margin": 0.3}),
        ("absolute_margin", {"absolute_margin": 0.25}),
        ("max_score", {"max_score": 0.2}),
        ("all", {"relative_margin": 0.1, "absolute_margin": 0.15, "max_score": 0.4}),
    ],
)
def test_what_scores_too_high_is_what_sentence_transformers_drops(name, limits):
    scores = REFERENCE["queries"] @ REFERENCE["passages"].T
    kept = ~above_positive(scores.diagonal(), scores, Contrastive(**{"relative_margin": None, **limits}))
    assert torch.equal(kept.fill_diagonal_(False), REFERENCE[f"kept/{name}"])


def test_a_share_of_a_positive_below_zero_lowers_the_limit_too():
    scores = torch.tensor([[-0.5, -0.54, -0.56]])
    assert above_positive(scores[:, 0], scores, Contrastive(relative_margin=0.1)).tolist() == [[True, True, False]]


def test_examples_of_the_docstrings_hold():
    found = doctest.testmod(losses, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted == 3


@pytest.mark.parametrize("margin", [0.2, 0.05])
@pytest.mark.parametrize(("form", "max_violation"), [("sum", False), ("max", True)])
def test_triplets_match_reference(form, max_violation, margin):
    published = reference("contrastive_loss")
    scores = published["in_scores"].requires_grad_()
    loss = triplet_loss(scores, margin, max_violation)
    loss.backward()
    assert loss.item() == pytest.approx(float(published[f"out_{form}_m{margin}"]), abs=1e-6)
    np.testing.assert_allclose(scores.grad, published[f"grad_{form}_m{margin}"], atol=1e-6)


def test_the_hinge_passes_nan_on_and_its_gradient_at_zero() -> None:
    positive = torch.tensor([0.5, 0.5, float("nan"), 9.0], requires_grad=True)
    found = hinge(positive, torch.tensor([0.5, 0.7, 0.1, 0.1]), 0.0)
    assert found[2].isnan()
    assert found[[0, 1, 3]].tolist() == pytest.approx([0.0, 0.2, 0.0])
    found[[0, 1, 3]].sum().backward()
    assert positive.grad is not None
    assert positive.grad.tolist() == [-1.0, -1.0, 0.0, 0.0]
