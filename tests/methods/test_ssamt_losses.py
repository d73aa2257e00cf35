"""The losses of SSAMT against hinges written out pair by pair."""

from __future__ import annotations

import pytest
import torch

from itrpipe.methods.ssamt.method import phrase_loss, two_way_loss


def hinge(value: float) -> float:
    return max(0.0, value)


def test_the_loss_of_both_directions_holds_each_side_against_its_own():
    texts, wrong_texts = torch.tensor([0.5, 0.1]), torch.tensor([0.45, 0.3])
    regions, wrong_regions = torch.tensor([0.2, 0.6]), torch.tensor([0.3, 0.1])
    expected = (hinge(0.1 - 0.05) + hinge(0.1 + 0.2) + hinge(0.1 + 0.1) + hinge(0.1 - 0.5)) / 2
    value = two_way_loss((texts, wrong_texts), (regions, wrong_regions), 0.1)
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_phrase_loss_compares_the_means_of_two_sets():
    fragments = torch.tensor([[0.5, 0.3, 0.9, 9.0]], requires_grad=True)
    matching = torch.tensor([[True, True, False, True]])
    real = torch.tensor([[True, True, True, False]])
    loss = phrase_loss(fragments, matching, real, 0.2)
    loss.backward()
    assert loss.item() == pytest.approx(0.2 - 0.4 + 0.9)
    assert fragments.grad is not None
    torch.testing.assert_close(fragments.grad, torch.tensor([[-0.5, -0.5, 1.0, 0.0]]))


def test_pairs_with_one_sort_of_phrases_do_not_count():
    fragments = torch.tensor([[0.5, 0.1], [0.5, 0.3], [0.2, 0.2]], requires_grad=True)
    matching = torch.tensor([[True, False], [True, True], [False, False]])
    real = torch.ones(3, 2, dtype=torch.bool)
    first = phrase_loss(fragments[:1], matching[:1], real[:1], 0.5).item()
    assert first == pytest.approx(0.1)
    assert phrase_loss(fragments, matching, real, 0.5).item() == pytest.approx(first)
    nothing = phrase_loss(fragments[1:], matching[1:], real[1:], 0.5)
    nothing.backward()
    assert nothing.item() == 0.0
    assert fragments.grad is not None
    assert not fragments.grad.any()
