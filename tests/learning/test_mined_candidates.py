"""Several mined candidates of an anchor, what is known of pairs in a batch, and epochs of neighbours."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.learning.mined import (
    PROBABILITY_OF,
    MinedCandidates,
    judged_chances,
    neighbours_order,
    without_likely,
)

LISTS = np.array([[5, 6, 7, 8], [1, 2, -1, -1], [9, -1, -1, -1], [-1, -1, -1, -1]])


def test_each_candidate_is_drawn_once_and_missing_ones_are_negative():
    drawn = MinedCandidates({"texts": LISTS}, "texts", 4).draw(np.array([0, 1, 2, 3, 0]), 2, np.random.default_rng(0))
    assert drawn.shape == (5, 2)
    for row, anchor in zip(drawn, (0, 1, 2, 3, 0), strict=True):
        offered = LISTS[anchor][LISTS[anchor] >= 0]
        assert set(row[row >= 0]) <= set(offered)
        assert len(set(row[row >= 0])) == (row >= 0).sum() == min(2, len(offered))


def test_all_candidates_of_the_window_are_drawn_alike():
    candidates = MinedCandidates({"texts": LISTS}, "texts", 4, skip=1)
    drawn = candidates.draw(np.zeros(9_000, dtype=np.int64), 1, np.random.default_rng(1))[:, 0]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [6, 7, 8]
    assert np.allclose(counts / 9_000, 1 / 3, atol=0.03)


TEXT_LISTS = np.array([[3, 2, 5, -1], [0, 4, 1, 5]])
IMAGE_LISTS = np.array([[1, -1], [1, -1], [0, -1], [-1, -1], [1, 0], [0, -1]])
JUDGED = {
    "texts_for_images": TEXT_LISTS,
    "images_for_texts": IMAGE_LISTS,
    f"{PROBABILITY_OF}texts_for_images": np.array([[0.9, 0.1, 0.6, 0], [0.2, 0.7, 0.5, 0.3]], dtype=np.float16),
    f"{PROBABILITY_OF}images_for_texts": np.array(
        [[0.2, 0], [0.5, 0], [0.1, 0], [0, 0], [0.7, 0.8], [0.6, 0]], dtype=np.float16
    ),
}


def test_candidates_behind_likely_ones_move_up():
    left = without_likely(JUDGED, 0.5)
    assert left["texts_for_images"].tolist() == [[2, -1, -1, -1], [0, 1, 5, -1]]
    assert left["images_for_texts"].tolist() == [[1, -1], [1, -1], [0, -1], [-1, -1], [-1, -1], [-1, -1]]


def test_a_pair_that_either_list_holds_is_judged():
    images, captions = np.array([1, 0, 1]), np.array([4, 0, 3, 0])
    said = {(1, 4): 0.7, (1, 0): 0.2, (0, 3): 0.9, (0, 4): 0.8}  # the last by the list of the caption alone
    expected = [[said.get((image, caption), 0.0) for caption in captions.tolist()] for image in images.tolist()]
    chances = judged_chances(JUDGED, images, captions)
    np.testing.assert_allclose(chances, expected, atol=1e-3)


IMAGE = np.repeat(np.arange(40), 5)
FAMILIES = np.arange(40) // 4
"""Every image is near those of its family."""


def near(rng: np.random.Generator, k: int = 15) -> np.ndarray:
    others = [np.flatnonzero((FAMILIES[IMAGE] == FAMILIES[i]) & (i != IMAGE)) for i in range(40)]
    return np.stack([rng.permutation(each)[:k] for each in others])


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.floats(0.05, 1))
def test_every_caption_comes_once(seed, group, share):
    rng = np.random.default_rng(seed)
    lists = near(rng)
    lists[rng.random(lists.shape) < 0.2] = -1
    order = neighbours_order(lists, IMAGE, group, share, rng)
    assert sorted(order) == list(range(len(IMAGE)))


def company(order: np.ndarray, size: int) -> float:
    """Mean number of captions of other images of the family in a batch."""
    batches = order.reshape(-1, size)
    family = FAMILIES[IMAGE[batches]]
    same = family[:, :, None] == family[:, None, :]
    own = IMAGE[batches][:, :, None] == IMAGE[batches][:, None, :]
    return float((same & ~own).sum(axis=2).mean())


def test_neighbours_share_a_batch_as_far_as_they_are_to():
    shuffled = company(np.random.default_rng(0).permutation(len(IMAGE)), 20)
    found = [
        company(neighbours_order(near(np.random.default_rng(1)), IMAGE, 4, share, np.random.default_rng(0)), 20)
        for share in (0.5, 1.0)
    ]
    assert shuffled + 0.4 < found[0] < found[1] - 0.2
