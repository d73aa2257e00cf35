"""The losses of TAGS-DC against their formulas written out term by term."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from itrpipe.methods.pretrain.method import word_loss
from itrpipe.methods.tags.method import synthetic_triplet_loss
from itrpipe.methods.tags_dc.method import discrimination_loss


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_words_are_averaged_within_an_anchor_and_anchors_among_each_other():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], requires_grad=True)
    words, anchors = torch.tensor([0, 0, 1]), torch.tensor([0, 0, 2])
    terms = [math.log(1 + math.exp(-2)), math.log(1 + math.e), math.log(2)]
    expected = ((terms[0] + terms[1]) / 2 + 0 + terms[2]) / 3
    assert word_loss(logits, words, anchors, 3).item() == pytest.approx(expected, abs=1e-6)


def test_sentences_are_held_against_the_caption_on_the_scale_of_probabilities():
    positive = torch.tensor([1.0, -2.0, 0.0], requires_grad=True)
    negatives = torch.tensor([[0.5, -9.0], [3.0, 7.0], [9.0, 9.0]], requires_grad=True)
    real = torch.tensor([[True, True], [True, False], [False, False]])
    first = (max(0.0, 0.2 + sigmoid(0.5) - sigmoid(1.0)) + max(0.0, 0.2 + sigmoid(-9.0) - sigmoid(1.0))) / 2
    second = 0.2 + sigmoid(3.0) - sigmoid(-2.0)
    loss = synthetic_triplet_loss(positive, negatives, real, 0.2)
    loss.backward()
    assert loss.item() == pytest.approx((first + second + 0) / 3, abs=1e-6)
    assert negatives.grad is not None
    assert positive.grad is not None
    assert (negatives.grad != 0).tolist() == [[True, False], [True, False], [False, False]]
    assert positive.grad[2] == 0


def test_no_sentence_at_all_costs_nothing():
    empty = torch.zeros(2, 0)
    assert synthetic_triplet_loss(torch.zeros(2), empty, empty.bool(), 0.2).item() == 0.0
    nothing = torch.zeros(0, dtype=torch.int64)
    assert word_loss(torch.zeros(0, 5), nothing, nothing, 2).item() == 0.0


def test_words_of_the_caption_weigh_less_in_discrimination():
    logits = torch.tensor([[0.0, 1.0], [0.5, 0.0], [0.0, 3.0]])
    equal = torch.tensor([True, False, True])
    anchors = torch.zeros(3, dtype=torch.int64)
    terms = [-0.11 * math.log(sigmoid(1.0)), -math.log(sigmoid(0.5)), -0.11 * math.log(sigmoid(3.0))]
    loss = discrimination_loss(logits, equal, anchors, 1, 0.11)
    assert loss.item() == pytest.approx(sum(terms) / 3, abs=1e-6)
    plain = discrimination_loss(logits, equal, anchors, 1, 1.0)
    assert plain.item() == pytest.approx((terms[0] / 0.11 + terms[1] + terms[2] / 0.11) / 3, abs=1e-6)


def test_hopeless_words_cost_a_bounded_amount():
    logits = torch.tensor([[80.0, -80.0]], requires_grad=True)
    zero = torch.zeros(1, dtype=torch.int64)
    loss = discrimination_loss(logits, zero == 0, zero, 1, 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1e-10), rel=1e-5)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_losses_are_computed_in_single_precision_under_autocast():
    torch.manual_seed(0)
    logits, words = torch.randn(6, 9), torch.arange(6)
    anchors = torch.tensor([0, 0, 0, 1, 1, 1])
    expected = word_loss(logits.bfloat16().float(), words, anchors, 2)
    scores = torch.randn(2, 4).bfloat16()
    plain = synthetic_triplet_loss(scores[:, 0].float(), scores.float(), torch.ones(2, 4).bool(), 0.2)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(word_loss(logits.bfloat16(), words, anchors, 2), expected)
        assert_close(synthetic_triplet_loss(scores[:, 0], scores, torch.ones(2, 4).bool(), 0.2), plain)
