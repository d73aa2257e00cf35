"""Cross-retrieval ranks against a naive loop, by hand and in blocks; the bins of their histogram."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.evaluation.cross_retrieval import cross_retrieval, rank_histogram


def naive(scores: np.ndarray, caption_image: np.ndarray) -> list[tuple[int, int, int]]:
    """Image rank, text rank and cross rank of every pair, one comparison at a time."""
    images, texts = scores.shape
    found = []
    for caption, image in enumerate(caption_image):
        own = scores[image, caption]
        image_rank = text_rank = 1
        for other in range(images):
            if other != image and scores[other, caption] >= own:
                image_rank += 1
        for other in range(texts):
            if caption_image[other] != image and scores[image, other] >= own:
                text_rank += 1
        scaled = math.ceil((image_rank - 1) * texts / images) + 1
        found.append((image_rank, text_rank, max(scaled, text_rank)))
    return found


def ranks_of(scores: np.ndarray, caption_image: np.ndarray) -> list[tuple[int, int, int]]:
    found = cross_retrieval(scores, caption_image)
    columns = (found.image_rank, found.text_rank, found.cross_rank)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(
    seed=st.integers(0, 10_000),
    images=st.integers(1, 9),
    extra=st.integers(0, 30),
    levels=st.sampled_from([1, 3, 10_000]),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_ranks_equal_a_loop_with_ties_and_uneven_captions(
    seed: int, images: int, extra: int, levels: int, kind: type
) -> None:
    generator = np.random.default_rng(seed)
    owners = np.concatenate([np.arange(images), generator.integers(0, images, extra)])
    caption_image = generator.permutation(owners)
    scores = generator.integers(-levels, levels, (images, len(caption_image))).astype(kind)
    assert ranks_of(scores, caption_image) == naive(scores, caption_image)


def test_with_five_captions_the_image_rank_counts_as_in_the_paper() -> None:
    generator = np.random.default_rng(3)
    scores, caption_image = generator.standard_normal((40, 200)), np.arange(200) // 5
    found = cross_retrieval(scores, caption_image)
    np.testing.assert_array_equal(found.cross_rank, np.maximum(5 * found.image_rank - 4, found.text_rank))
    assert (5 * found.image_rank - 4 > found.text_rank).any()
    assert (5 * found.image_rank - 4 < found.text_rank).any()


def test_other_captions_of_the_image_are_no_negatives() -> None:
    scores = np.array([[0.1, 0.9, 0.5, 0.05], [0.0, 0.0, 0.2, 0.3]])
    # Caption 0 is behind caption 1 of its own image and caption 2 of the other one, and ahead of caption 3.
    assert ranks_of(scores, np.array([0, 0, 1, 1])) == [(1, 2, 2), (1, 1, 1), (2, 1, 3), (1, 1, 1)]


def test_a_model_that_scores_everything_alike_ranks_last() -> None:
    found = cross_retrieval(np.zeros((4, 20)), np.arange(20) // 5)
    assert set(found.image_rank) == {4}
    assert set(found.text_rank) == {16}
    assert set(found.cross_rank) == {16}


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((6, 90)).astype(np.float32)
    caption_image = generator.permutation(np.r_[np.zeros(60, np.int64), np.arange(30) % 6])
    whole = ranks_of(scores, caption_image)
    monkeypatch.setattr("itrpipe.evaluation.cross_retrieval._BLOCK_VALUES", 300)
    assert ranks_of(scores, caption_image) == whole == naive(scores, caption_image)


def test_memory_does_not_grow_with_pairs_of_captions() -> None:
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((2, 8000), dtype=np.float32)
    caption_image = np.arange(8000) // 4000  # 4,000 x 8,000 comparisons for an image
    tracemalloc.start()
    cross_retrieval(scores, caption_image)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_without_an_order_are_refused(value: float) -> None:
    scores = np.zeros((4, 8))
    scores[1, 2] = value
    with pytest.raises(DataError, match="1 of 32 scores are NaN or infinite"):
        cross_retrieval(scores, np.arange(8) // 2)


def test_bins_begin_with_rank_one_and_end_with_all_above_two_hundred() -> None:
    ranks = np.r_[np.ones(5, int), 2, 3, 5, 6, 200, 201, 1000, np.full(988, 50)]
    histogram = rank_histogram(ranks)
    assert histogram.edges.tolist() == [1, 2, 3, 6, 11, 21, 51, 101, 201, 1001]
    assert histogram.counts.tolist() == [5, 1, 2, 1, 0, 988, 0, 1, 2]


@given(st.lists(st.integers(1, 400), min_size=400, max_size=400))
def test_every_pair_is_in_one_bin(values: list[int]) -> None:
    histogram = rank_histogram(np.array(values))
    assert histogram.counts.sum() == 400
    assert histogram.counts[0] == values.count(1)
    assert histogram.counts[-1] == sum(value > 200 for value in values)
    assert (np.diff(histogram.edges) > 0).all()


def test_few_pairs_have_the_same_bins() -> None:
    assert rank_histogram(np.array([1, 2])).edges.tolist() == [1, 2, 3, 6, 11, 21, 51, 101, 201, 202]
