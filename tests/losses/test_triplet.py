"""The triplet loss against reference values and gradients, and against a loop written from the definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.losses.triplet import hardest_sentence_loss, triplet_loss

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "contrastive_loss.npz", allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("margin", [0.2, 0.05])
@pytest.mark.parametrize(("form", "max_violation"), [("sum", False), ("max", True)])
def test_value_and_gradient_match_reference(reference, form, max_violation, margin):
    scores = torch.tensor(reference["in_scores"], requires_grad=True)
    loss = triplet_loss(scores, margin, max_violation)
    loss.backward()
    assert loss.item() == pytest.approx(float(reference[f"out_{form}_m{margin}"]), abs=1e-6)
    np.testing.assert_allclose(scores.grad, reference[f"grad_{form}_m{margin}"], atol=1e-6)


def naive_triplet_loss(scores, margin, max_violation, not_negative):
    total, size = 0.0, len(scores)
    for k in range(size):
        texts = [
            max(0.0, margin - scores[k][k] + scores[k][j]) for j in range(size) if j != k and not not_negative[k][j]
        ]
        images = [
            max(0.0, margin - scores[k][k] + scores[j][k]) for j in range(size) if j != k and not not_negative[j][k]
        ]
        for costs in (texts, images):
            total += (max(costs, default=0.0)) if max_violation else sum(costs)
    return total


@settings(max_examples=50)
@given(
    size=st.integers(1, 6),
    seed=st.integers(0, 2**16),
    max_violation=st.booleans(),
    margin=st.sampled_from([0.0, 0.2, 1.0]),
    masked=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_equals_the_definition_with_any_mask(size, seed, max_violation, margin, masked):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, size, generator=generator, dtype=torch.float64, requires_grad=True)
    not_negative = torch.rand(size, size, generator=generator) < masked
    loss = triplet_loss(scores, margin, max_violation, not_negative)
    loss.backward()
    expected = naive_triplet_loss(scores.tolist(), margin, max_violation, not_negative.tolist())
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_gradient_flows_at_a_hinge_of_exactly_zero():
    scores = torch.tensor([[0.5, 0.5], [-1.0, 0.5]], requires_grad=True)
    triplet_loss(scores, margin=0.0).backward()
    assert scores.grad is not None
    assert scores.grad[0, 1].item() == 2.0  # row of image 0 and column of caption 1


@settings(max_examples=50)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 2**16))
def test_sentences_count_with_the_hardest_of_each_pair(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(len(counts), generator=generator, dtype=torch.float64, requires_grad=True)
    negatives = torch.randn(sum(counts), generator=generator, dtype=torch.float64, requires_grad=True)
    owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    loss = hardest_sentence_loss(positive, negatives, owners, 0.2)
    loss.backward()
    expected, moved = 0.0, set()
    for pair in range(len(counts)):
        own = (owners == pair).nonzero()[:, 0].tolist()
        costs = {row: max(0.0, 0.2 - positive[pair].item() + negatives[row].item()) for row in own}
        expected += max(costs.values(), default=0.0)
        moved |= {max(costs, key=lambda row: costs[row])} if any(costs.values()) else set()
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert negatives.grad is not None
    assert set(negatives.grad.nonzero()[:, 0].tolist()) == moved
    assert (negatives.grad[list(moved)] == 1).all()
    assert positive.grad is not None
    assert positive.grad.tolist() == [-1.0 if pair in owners[list(moved)] else 0.0 for pair in range(len(counts))]
