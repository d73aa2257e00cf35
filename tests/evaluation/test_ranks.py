"""Ranks and the metrics on them against reference values and an argsort; ties, NaN and uneven captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import mean_rank, median_rank
from itrpipe.evaluation.metrics import ranks
from itrpipe.evaluation.metrics import recall
from itrpipe.evaluation.metrics import rsum

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
CAPTION_IMAGE = np.arange(300) // 5


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "eval_metrics_matrix.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def scores_of(reference, system):
    if system == "ens":
        return (reference["in_sims_a"] + reference["in_sims_b"]) / 2
    return reference[f"in_sims_{system}"]


@pytest.mark.parametrize("system", ["a", "b", "ens"])
def test_ranks_and_metrics_match_reference(reference, system):
    found = ranks(scores_of(reference, system), CAPTION_IMAGE)
    for direction, side in (("i2t", found.images_to_texts), ("t2i", found.texts_to_images)):
        np.testing.assert_array_equal(side, reference[f"out_{system}_{direction}_ranks"])
        measured = [recall(side, 1), recall(side, 5), recall(side, 10), median_rank(side), mean_rank(side)]
        np.testing.assert_array_equal(np.float32(measured), reference[f"out_{system}_{direction}"])
    expected = sum(float(reference[f"out_{system}_{direction}"][:3].sum()) for direction in ("i2t", "t2i"))
    assert rsum(found) == pytest.approx(expected, abs=1e-4)


def naive_ranks(scores, caption_image):
    """Positions in a sort that puts negatives before positives of the same score."""
    positive = caption_image[None, :] == np.arange(len(scores))[:, None]

    def best_position(row, row_positive):
        order = np.lexsort((row_positive, -row))
        return int(np.flatnonzero(row_positive[order])[0])

    images = [best_position(row, mask) for row, mask in zip(scores, positive, strict=True)]
    texts = [best_position(row, mask) for row, mask in zip(scores.T, positive.T, strict=True)]
    return images, texts


@given(
    seed=st.integers(0, 10_000),
    images=st.integers(1, 12),
    extra=st.integers(0, 40),
    levels=st.sampled_from([1, 3, 10_000]),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_ranks_equal_a_sort_with_ties_and_uneven_captions(seed, images, extra, levels, kind):
    generator = np.random.default_rng(seed)
    owners = np.concatenate([np.arange(images), generator.integers(0, images, extra)])
    caption_image = generator.permutation(owners)
    scores = generator.integers(-levels, levels, (images, len(caption_image))).astype(kind)
    found = ranks(scores, caption_image)
    by_image, by_text = naive_ranks(scores, caption_image)
    np.testing.assert_array_equal(found.images_to_texts, by_image)
    np.testing.assert_array_equal(found.texts_to_images, by_text)


def test_many_blocks_give_the_same_ranks(monkeypatch):
    generator = np.random.default_rng(0)
    scores, caption_image = generator.standard_normal((600, 700)), generator.permutation(np.arange(700) % 600)
    whole = ranks(scores, caption_image)
    monkeypatch.setattr("itrpipe.evaluation.metrics._BLOCK_VALUES", 2100)
    small = ranks(scores, caption_image)
    np.testing.assert_array_equal(whole.images_to_texts, small.images_to_texts)
    np.testing.assert_array_equal(whole.texts_to_images, small.texts_to_images)


def test_a_model_that_scores_everything_alike_ranks_last():
    found = ranks(np.zeros((4, 8)), np.arange(8) // 2)
    assert found.images_to_texts.tolist() == [6, 6, 6, 6]
    assert found.texts_to_images.tolist() == [3] * 8


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_without_an_order_are_refused(value):
    scores = np.zeros((4, 8))
    scores[1, 2] = scores[3, 7] = value
    with pytest.raises(DataError, match="2 of 32 scores are NaN or infinite"):
        ranks(scores, np.arange(8) // 2)


@pytest.mark.parametrize(
    ("caption_image", "message"),
    [
        ([0, 0, 1, 1], "1 of 3 images have no correct match"),
        ([0, 1, 2, 3], "image rows 0..3 but the scores hold 3"),
        ([0, 1, 2], "the scores hold 4 captions but 3"),
    ],
)
def test_captions_that_do_not_fit_are_refused(caption_image, message):
    with pytest.raises(DataError, match=message):
        ranks(np.zeros((3, 4)), np.array(caption_image))


def test_an_empty_matrix_is_refused():
    with pytest.raises(DataError, match="0 images and 0 captions"):
        ranks(np.zeros((0, 0)), np.array([], dtype=np.int64))


def test_median_and_mean_rank_count_from_one():
    assert median_rank(np.array([0, 1])) == 1.0  # floor of a half
    assert median_rank(np.array([0, 4, 9])) == 5.0
    assert mean_rank(np.array([0, 1])) == 1.5
