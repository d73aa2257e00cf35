"""Refills, their filters and the choice of the hardest, against the rules written out sentence by sentence."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from itrpipe.learning.sentences import (
    DUPLICATE,
    FALSE_NEGATIVE,
    IDENTICAL,
    KEPT,
    OUTRANKED,
    REASONS,
    log_probabilities,
    mark_outranked,
    refill,
    reject,
    score_kept,
    select_hardest,
)

PAD, START, END = 0, 1, 2
TOKENS = 13


def naive_reasons(sentences: list[list[int]], caption: list[int], own: list[list[int]]) -> list[int]:
    known = {token for each in own for token in each} - {PAD, START, END}
    found = []
    for number, sentence in enumerate(sentences):
        replaced = {token for token, before in zip(sentence, caption, strict=True) if token != before}
        if sentence == caption:
            found.append(IDENTICAL)
        elif replaced <= known:
            found.append(FALSE_NEGATIVE)
        else:
            found.append(DUPLICATE if sentence in sentences[number + 1 :] else KEPT)
    return found


@st.composite
def refilled(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Captions [T, W] of words between start and end, all captions of their images [T, 3, W], sentences [T, N, W]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, width, number = draw(st.integers(1, 3)), draw(st.integers(3, 6)), draw(st.integers(1, 12))
    captions = rng.integers(3, TOKENS, size=(count, width))
    captions[:, 0], captions[:, -1] = START, END
    others = rng.integers(3, TOKENS, size=(count, 2, width))
    siblings = np.concatenate([captions[:, None], others], axis=1)
    siblings[:, 2] = PAD
    sentences = np.repeat(captions[:, None], number, axis=1)
    edited = rng.random(sentences.shape) < 0.3
    edited[..., [0, -1]] = False
    sentences = np.where(edited, rng.integers(TOKENS, size=sentences.shape), sentences)
    return torch.from_numpy(captions), torch.from_numpy(siblings), torch.from_numpy(sentences)


@settings(max_examples=150)
@given(refilled())
def test_filters_reject_what_the_rules_say(made):
    captions, siblings, sentences = made
    known = siblings.masked_fill(siblings <= END, -1).flatten(1).sort(dim=1).values
    reasons = reject(sentences, captions, known)
    for row, found in enumerate(reasons.tolist()):
        assert found == naive_reasons(sentences[row].tolist(), captions[row].tolist(), siblings[row].tolist())


def test_every_labelled_position_gets_a_draw_of_its_own_logits():
    copies = torch.tensor([[1, 5, 9, 2], [1, 9, 9, 2]])
    labels = torch.tensor([[-1, -1, 7, -1], [-1, 5, 7, -1]])
    certain = torch.full((3, 12), -100.0)
    certain[torch.arange(3), torch.tensor([4, 6, 8])] = 100.0
    found = refill(copies, labels, certain, 2, 1.0)
    assert found.tolist() == [[[1, 5, 4, 2]] * 2, [[1, 6, 8, 2]] * 2]
    before = certain.clone()
    other = refill(copies, labels, certain, 2, 1.0, excluded=(4,))
    assert (other[0, :, 2] != 4).all()
    assert torch.equal(other[1], found[1])
    assert torch.equal(certain, before)


def test_probabilities_are_averaged_over_the_labelled_positions():
    labels = torch.tensor([[-1, 5, 7, -1], [-1, -1, 6, -1], [-1, -1, -1, -1]])
    logits = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    sentences = torch.tensor([[[1, 3, 4, 2], [1, 5, 7, 2]], [[1, 9, 8, 2], [1, 9, 6, 2]], [[1, 9, 9, 2]] * 2])
    likely = logits.log_softmax(dim=1)
    expected = [
        [(likely[0, 3] + likely[1, 4]).item() / 2, (likely[0, 5] + likely[1, 7]).item() / 2],
        [likely[2, 8].item(), likely[2, 6].item()],
        [0.0, 0.0],
    ]
    torch.testing.assert_close(log_probabilities(sentences, labels, logits), torch.tensor(expected))


def test_only_kept_sentences_are_scored_and_at_once():
    sentences = torch.arange(12).view(2, 3, 2)
    reasons = torch.tensor([[KEPT, DUPLICATE, KEPT], [IDENTICAL, FALSE_NEGATIVE, KEPT]])
    calls = []

    def score(owners: Tensor, chosen: Tensor) -> Tensor:
        calls.append((owners.tolist(), chosen.tolist()))
        return chosen.sum(dim=1).double()

    scores = score_kept(score, sentences, reasons)
    assert calls == [([0, 0, 1], [[0, 1], [4, 5], [10, 11]])]
    low = float("-inf")
    assert scores.tolist() == [[1.0, low, 9.0], [low, low, 21.0]]
    nothing = torch.full_like(reasons, IDENTICAL)
    assert (score_kept(score, sentences, nothing) == low).all()
    assert len(calls) == 1


def test_the_hardest_are_sorted_and_rejected_ones_never_fill_up():
    low = float("-inf")
    scores = torch.tensor([[0.1, low, 0.9, 0.1], [low, low, low, 5.0], [low] * 4])
    rows, real = select_hardest(scores, 3)
    assert real.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert rows[0].tolist() == [2, 0, 3]
    assert rows[1, 0].item() == 3
    assert select_hardest(scores, 9)[0].shape == (3, 4)
    reasons = torch.where(scores.isfinite(), KEPT, IDENTICAL)
    marked = mark_outranked(reasons, *select_hardest(scores, 1))
    assert marked.tolist() == [[OUTRANKED, IDENTICAL, KEPT, OUTRANKED], [1, 1, 1, KEPT], [1] * 4]
    assert REASONS[OUTRANKED] == "outranked"
