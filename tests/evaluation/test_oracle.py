"""Ranks under complete ground truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.evaluation.oracle import oracle_precision, oracle_ranks
from itrpipe.evaluation.metrics import ranks


def compressed(matches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and image rows of a bool matrix [N, T]."""
    captions, images = np.nonzero(matches.T)
    return np.searchsorted(captions, np.arange(matches.shape[1] + 1)), images


@given(seed=st.integers(0, 10_000), levels=st.sampled_from([2, 1000]), density=st.sampled_from([0.0, 0.2, 1.0]))
def test_counts_the_negatives_ahead_of_the_best_true_match(seed, levels, density):
    generator = np.random.default_rng(seed)
    caption_image = np.arange(16) // 2
    matches = (generator.random((8, 16)) < density) | (caption_image[None] == np.arange(8)[:, None])
    scores = generator.integers(0, levels, (8, 16)).astype(np.float64)
    found = oracle_ranks(scores, *compressed(matches))
    for image in range(8):
        best = scores[image, matches[image]].max()
        assert found.images_to_texts[image] == (scores[image, ~matches[image]] >= best).sum()
    for text in range(16):
        best = scores[matches[:, text], text].max()
        assert found.texts_to_images[text] == (scores[~matches[:, text], text] >= best).sum()


def test_own_images_alone_give_the_usual_ranks_and_more_matches_never_worse_ones():
    generator = np.random.default_rng(0)
    scores, caption_image = generator.standard_normal((20, 60)), np.arange(60) // 3
    own = caption_image[None] == np.arange(20)[:, None]
    usual, oracle = ranks(scores, caption_image), oracle_ranks(scores, *compressed(own))
    np.testing.assert_array_equal(oracle.images_to_texts, usual.images_to_texts)
    np.testing.assert_array_equal(oracle.texts_to_images, usual.texts_to_images)
    more = oracle_ranks(scores, *compressed(own | (generator.random(own.shape) < 0.1)))
    assert (more.texts_to_images <= usual.texts_to_images).all()
    assert more.texts_to_images.sum() < usual.texts_to_images.sum()


def test_a_match_listed_twice_counts_once():
    scores = np.zeros((2, 2))
    once = oracle_ranks(scores, np.array([0, 1, 2]), np.array([0, 1]))
    twice = oracle_ranks(scores, np.array([0, 2, 3]), np.array([0, 0, 1]))
    assert once.texts_to_images.tolist() == twice.texts_to_images.tolist() == [1, 1]
    assert once.images_to_texts.tolist() == twice.images_to_texts.tolist() == [1, 1]


@pytest.mark.parametrize("offsets", [[0, 1], [0, 1, 3], [1, 1, 2], [0, 2, 1]])
def test_offsets_that_do_not_fit_are_refused(offsets):
    with pytest.raises(DataError, match="do not fit the 2 captions"):
        oracle_ranks(np.zeros((2, 2)), np.array(offsets), np.array([0, 1]))


def test_a_caption_without_a_match_is_refused():
    with pytest.raises(DataError, match="1 of 2 captions have no correct match"):
        oracle_ranks(np.zeros((2, 2)), np.array([0, 2, 2]), np.array([0, 1]))


def test_precision_gathers_the_matches_of_both_directions():
    random = np.random.default_rng(0)
    scores = random.standard_normal((5, 9))
    truth = [np.unique(random.integers(0, 5, 3)) for _ in range(9)]
    truth[0] = np.arange(5)  # so that every image has a match
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in truth])])
    found = oracle_precision(scores, offsets, np.concatenate(truth))
    relevant = np.zeros((5, 9), dtype=bool)
    for caption, rows in enumerate(truth):
        relevant[rows, caption] = True
    for side, matrix, matches in (("i2t", scores, relevant), ("t2i", scores.T, relevant.T)):
        for query, row in enumerate(matrix):
            hits = matches[query][np.argsort(-row)][: matches[query].sum()]
            assert found[side].r_precision[query] == pytest.approx(hits.mean())
            places = np.arange(1, len(hits) + 1)
            assert found[side].average[query] == pytest.approx((hits * np.cumsum(hits) / places).mean())
    doubled = oracle_precision(scores, 2 * offsets, np.concatenate([np.repeat(rows, 2) for rows in truth]))
    assert np.array_equal(doubled["t2i"].average, found["t2i"].average)
