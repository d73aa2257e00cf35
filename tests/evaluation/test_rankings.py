"""Stored rankings against a full sort, with ties in the order of the ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.rankings import rankings

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def test_first_candidates_match_reference():
    with np.load(REFERENCE / "eval_metrics_matrix.npz", allow_pickle=False) as reference:
        scores = reference["in_sims_a"]
        texts, images = rankings(scores, 10, [f"i{n}" for n in range(60)], [f"c{t}" for t in range(300)])
        np.testing.assert_array_equal(texts.indices[:, 0], reference["out_a_i2t_top1"])
        np.testing.assert_array_equal(images.indices[:, 0], reference["out_a_t2i_top1"])
    np.testing.assert_array_equal(texts.indices, np.argsort(-scores, axis=1)[:, :10])
    np.testing.assert_array_equal(images.indices, np.argsort(-scores.T, axis=1)[:, :10])
    np.testing.assert_array_equal(texts.scores, np.take_along_axis(scores, texts.indices, axis=1))


@given(
    seed=st.integers(0, 10_000),
    images=st.integers(1, 9),
    texts=st.integers(1, 30),
    levels=st.sampled_from([1, 3, 1000]),
    data=st.data(),
)
def test_equal_scores_come_in_the_order_of_the_ids(seed, images, texts, levels, data):
    k = data.draw(st.integers(1, min(images, texts)))
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, levels, (images, texts)).astype(np.float32)
    image_ids = [f"image-{n}" for n in generator.permutation(images)]
    caption_ids = [f"caption-{n}" for n in generator.permutation(texts)]
    by_image, by_text = rankings(scores, k, image_ids, caption_ids)
    for found, matrix, ids in ((by_image, scores, caption_ids), (by_text, scores.T, image_ids)):
        for query, row in enumerate(matrix):
            expected = sorted(range(len(row)), key=lambda column: (-row[column], ids[column]))[:k]
            assert found.indices[query].tolist() == expected
            assert found.scores[query].tolist() == row[expected].tolist()


def test_small_blocks_give_the_same_rankings(monkeypatch):
    scores = np.random.default_rng(0).integers(0, 9, (40, 50)).astype(np.float32)
    ids = [f"{n:03}" for n in range(50)]
    whole = rankings(scores, 7, ids[:40], ids)
    monkeypatch.setattr("itrpipe.evaluation.rankings._BLOCK_VALUES", 130)
    small = rankings(scores, 7, ids[:40], ids)
    for one, other in zip(whole, small, strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.parametrize("k", [0, 4])
def test_impossible_numbers_of_candidates_are_refused(k):
    with pytest.raises(UsageError, match=f"{k} candidates per query were asked for"):
        rankings(np.zeros((3, 9)), k, list("abc"), list("abcdefghi"))


def test_nan_is_refused():
    with pytest.raises(DataError, match="1 of 9 scores"):
        rankings(np.diag([np.nan, 0.0, 0.0]), 1, list("abc"), list("abc"))
