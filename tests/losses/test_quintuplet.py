"""The AOQ losses against reference values and gradients, and the identities between them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from itrpipe.losses.quintuplet import (
    OfflineScores,
    adaptive_offline_quintuplet_loss,
    offline_quintuplet_loss,
    offline_triplet_loss,
    online_pairs,
)
from itrpipe.losses.triplet import triplet_loss

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
CASES = ["A", "B_bfan_range", "C_negative_weight"]
INPUTS = ["S", "s_i_toff", "s_ioff_t", "s_ioff_toff", "s_ioff2_toff2"]


def equation_3(scores, offline):
    return offline_triplet_loss(scores, offline.image_with_offline_text, offline.offline_image_with_text)


def equation_5_as_4(scores, offline):
    return adaptive_offline_quintuplet_loss(scores, offline, alpha=math.inf, beta=1.0)


VARIANTS = {
    "paper_eq3": [equation_3],
    "paper_eq4": [offline_quintuplet_loss, equation_5_as_4],
    "code_eq4_alpha_inf_beta1": [offline_quintuplet_loss, equation_5_as_4],
    "paper_eq5": [adaptive_offline_quintuplet_loss],
    "code_eq5": [adaptive_offline_quintuplet_loss],
}


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "aoq_losses.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def leaves(reference, case):
    return [torch.tensor(reference[f"in_{case}_{name}"], requires_grad=True) for name in INPUTS]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("variant", "loss"), [(name, loss) for name, losses in VARIANTS.items() for loss in losses])
def test_value_and_gradients_match_reference(reference, case, variant, loss):
    inputs = leaves(reference, case)
    value = loss(inputs[0], OfflineScores(*inputs[1:]))
    value.backward()
    assert value.item() == pytest.approx(float(reference[f"out_{case}_{variant}"]), abs=4e-6)
    for name, leaf in zip(INPUTS, inputs, strict=True):
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        np.testing.assert_allclose(gradient, reference[f"grad_{case}_{variant}_{name}"], atol=2e-6, err_msg=name)


def test_a_batch_without_in_batch_negatives_keeps_the_offline_terms():
    scores = torch.tensor([[0.3]], requires_grad=True)
    offline = OfflineScores(*(torch.tensor([value], requires_grad=True) for value in (0.5, 0.2, 0.4, 0.1)))
    loss = adaptive_offline_quintuplet_loss(scores, offline)
    loss.backward()
    assert loss.item() == pytest.approx(0.2 + 0.1)
    assert scores.grad is not None
    assert scores.grad.item() == -2.0


def test_not_negative_spares_a_caption_of_the_same_image(reference):
    scores = torch.tensor(reference["in_A_S"])
    offline = OfflineScores(*(torch.tensor(reference[f"in_A_{name}"]) for name in INPUTS[1:]))
    everything = torch.ones(10, 10, dtype=torch.bool)
    without_online = adaptive_offline_quintuplet_loss(scores, offline, not_negative=everything)
    expected = sum((term - scores.diagonal()).clamp(min=0).sum().item() for term in offline)
    assert without_online.item() == pytest.approx(expected, abs=1e-5)


# The ablations of Table 3, against the loss written out pair by pair


def drawn_scores(reference) -> tuple[torch.Tensor, OfflineScores]:
    scores = torch.tensor(reference["in_A_S"])
    return scores, OfflineScores(*(torch.tensor(reference[f"in_A_{name}"]) for name in INPUTS[1:]))


def online_terms(scores: np.ndarray, weight_text, weight_image) -> float:
    """The two terms with g1 of every pair; the weights see (pair, score of the online negative)."""
    total = 0.0
    for k in range(len(scores)):
        others = [j for j in range(len(scores)) if j != k]
        text, image = max(scores[k, j] for j in others), max(scores[j, k] for j in others)
        total += weight_text(k, text) * max(0.0, 0.2 - scores[k, k] + text)
        total += weight_image(k, image) * max(0.0, 0.2 - scores[k, k] + image)
    return total


def test_only_offline_leaves_out_the_in_batch_negatives(reference):
    scores, offline = drawn_scores(reference)
    expected = sum((term - scores.diagonal()).clamp(min=0).sum().item() for term in offline)
    assert offline_quintuplet_loss(scores, offline, online_term=False).item() == pytest.approx(expected, abs=1e-5)
    expected = sum((term - scores.diagonal()).clamp(min=0).sum().item() for term in offline[:2])
    value = offline_triplet_loss(scores, *offline[:2], online_term=False)
    assert value.item() == pytest.approx(expected, abs=1e-5)


def test_the_online_quintuplet_pairs_the_hardest_negatives_of_the_batch(reference):
    scores, offline = drawn_scores(reference)
    matrix, positive = scores.numpy(), scores.diagonal().numpy()
    expected = online_terms(matrix, lambda k, score: 1.0, lambda k, score: 1.0)
    expected += sum(max(0.0, float(term[k]) - positive[k]) for term in offline[:2] for k in range(10))
    met = 0
    for k in range(10):
        others = [j for j in range(10) if j != k]
        text, image = max(others, key=lambda j: matrix[k, j]), max(others, key=lambda j: matrix[j, k])
        if text != image:
            met += 1
            expected += max(0.0, matrix[image, text] - positive[k]) + max(0.0, matrix[text, image] - positive[k])
    assert met > 3
    assert offline_quintuplet_loss(scores, offline, pairs="online").item() == pytest.approx(expected, abs=1e-5)


def test_online_pairs_that_belong_together_are_no_negatives():
    scores = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.9, 0.2], [0.1, 0.2, 0.9]], requires_grad=True)
    first, second = online_pairs(scores)
    # Image 0 and caption 0 both find row 1: the pair (1, 1) is a positive. Row 2 finds 1 twice as well.
    assert first.tolist() == second.tolist() == [-math.inf] * 3
    loss = offline_quintuplet_loss(scores, OfflineScores(*torch.full((4, 3), -9.0)), pairs="online")
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    torch.testing.assert_close(loss, triplet_loss(scores))
    masked = torch.zeros(3, 3, dtype=torch.bool)
    masked[0, 1] = masked[1, 0] = True  # captions of one image: now image 0 and caption 0 find row 2 and row 2
    assert online_pairs(scores, masked)[0][0] == -math.inf


def test_weights_by_the_positive_compare_it_with_the_in_batch_negative(reference):
    scores, offline = drawn_scores(reference)
    positive = scores.diagonal().numpy()

    def weight(k: int, score: float) -> float:
        return 1.5 - (positive[k] - score) / 0.3

    expected = online_terms(scores.numpy(), weight, weight)
    expected += sum(max(0.0, float(term[k]) - positive[k]) for term in offline for k in range(10))
    value = adaptive_offline_quintuplet_loss(scores, offline, weight_by="positive")
    assert value.item() == pytest.approx(expected, abs=1e-4)
    assert value.item() != pytest.approx(adaptive_offline_quintuplet_loss(scores, offline).item(), abs=1e-2)
