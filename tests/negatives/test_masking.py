"""Masked copies of captions: what may be masked, how often, and with what."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.negatives.masking import (
    UNLABELLED,
    MaskTokens,
    mask_captions,
    over_pieces,
    selection_rates,
    single_positions,
    with_single_positions,
)

MASK_ID, WORDS = 99, MaskTokens(99, (10, 20))


@st.composite
def captions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens [T, W] of ordinary words, maskable positions, and candidates bool [T, P, W]."""
    count, width, phrases = draw(st.integers(1, 3)), draw(st.integers(2, 7)), draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = rng.integers(10, 20, size=(count, width))
    lengths = rng.integers(1, width + 1, size=count)
    maskable = (np.arange(width) < lengths[:, None]) & (np.arange(width) > 0)
    return tokens, maskable, rng.random((count, phrases, width)) < 0.3


@settings(max_examples=60)
@given(captions(), st.booleans(), st.integers(0, 2**32 - 1))
def test_copies_are_masked_in_whole_candidates_and_nowhere_else(made, noise, seed):
    tokens, maskable, phrases = made
    candidates = with_single_positions(phrases, maskable)
    words = MaskTokens(MASK_ID, (10, 20), noise)
    masked = mask_captions(tokens, candidates, 5, words, np.random.default_rng(seed))
    labelled = masked.labels != UNLABELLED
    own = np.broadcast_to(tokens[:, None], labelled.shape)
    assert (masked.labels[labelled] == own[labelled]).all()
    assert (masked.tokens[~labelled] == own[~labelled]).all()
    assert not (labelled & ~maskable[:, None]).any()
    for caption, sets in enumerate(candidates):
        for copy in labelled[caption]:
            inside = [each for each in sets if each.any() and not (each & ~copy).any()]
            covered = np.any(inside, axis=0) if inside else np.zeros_like(copy)
            assert (covered == copy).all()
            assert copy.any() == maskable[caption].any()
    if not noise:
        assert (masked.tokens[labelled] == MASK_ID).all()
    again = mask_captions(tokens, candidates, 5, words, np.random.default_rng(seed))
    assert (again.tokens == masked.tokens).all()


def test_captions_without_candidates_are_masked_word_by_word():
    maskable = np.array([[False, True, True, False], [False, True, True, True]])
    phrases = np.zeros((2, 1, 4), dtype=bool)
    phrases[0, 0, [0, 1]] = True
    found = with_single_positions(phrases, maskable)
    assert [np.flatnonzero(row).tolist() for row in found[0] if row.any()] == [[1]]
    assert [np.flatnonzero(row).tolist() for row in found[1] if row.any()] == [[1], [2], [3]]
    assert with_single_positions(phrases[:1], maskable[:1]).shape == (1, 1, 4)


def test_single_positions_are_masked_at_the_rate_and_never_none():
    maskable = np.ones((1, 10), dtype=bool)
    candidates = single_positions(maskable)
    assert np.allclose(selection_rates(candidates), 0.15)
    tokens = np.full((1, 10), 50)
    masked = mask_captions(tokens, candidates, 20_000, MaskTokens(MASK_ID, (10, 20)), np.random.default_rng(1))
    labelled = masked.labels[0] != UNLABELLED
    assert labelled.any(axis=1).all()
    # A position is chosen by itself, or is one of ten when no other is.
    assert abs(labelled.mean() - (0.15 + 0.85**10 / 10)) < 0.004
    shown = masked.tokens[0][labelled]
    assert abs((shown == MASK_ID).mean() - 0.8) < 0.01
    assert abs((shown == 50).mean() - 0.1) < 0.01
    assert ((shown == MASK_ID) | (shown == 50) | ((shown >= 10) & (shown < 20))).all()


def test_a_shared_position_makes_its_candidates_rarer():
    candidates = np.array([[[1, 1, 0], [0, 1, 1], [0, 0, 0]]], dtype=bool)
    assert np.allclose(selection_rates(candidates), [[(0.15 + 0.075) / 2, (0.15 + 0.075) / 2, 0.0]])
    masked = mask_captions(np.full((1, 3), 10), candidates, 500, WORDS, np.random.default_rng(0))
    assert (masked.labels != UNLABELLED).any(axis=2).all()


def test_all_pieces_of_a_word_are_masked_together():
    candidates = np.array([[[True, False, True], [False, True, False]]])
    pieces = np.array([[-1, 0, 1, 1, 2, -1, -1]])
    found = over_pieces(candidates, pieces)
    assert [np.flatnonzero(row).tolist() for row in found[0]] == [[1, 4], [2, 3]]
    assert over_pieces(np.zeros((1, 2, 0), dtype=bool), pieces).shape == (1, 2, 7)


def test_a_caption_without_words_stays_as_it_is():
    tokens, maskable = np.array([[1, 2]]), np.zeros((1, 2), dtype=bool)
    candidates = with_single_positions(np.zeros((1, 0, 2), dtype=bool), maskable)
    masked = mask_captions(tokens, candidates, 3, WORDS, np.random.default_rng(0))
    assert (masked.tokens == tokens).all()
    assert (masked.labels == UNLABELLED).all()
