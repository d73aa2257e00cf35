"""Captions that say the same, against plain comparisons of every pair."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.mining import duplicates
from itrpipe.mining.duplicates import DuplicateCaptions, plain_text
from itrpipe.mining.lists import NO_ROW, CandidateLists, drop

CAPTIONS = [
    "A dog runs.",  # image 0
    "Two  cats!",
    "a dog, runs",  # image 1: the first of image 0
    "A cat sleeps",
    "runs a dog",  # image 2: the words of the first in another order
    "Two cats",  # the second of image 0
    "A bird",  # image 3: twice, and nobody else's
    "a bird.",
]
CAPTION_IMAGE = np.array([0, 0, 1, 1, 2, 2, 3, 3])


def test_captions_are_compared_without_case_punctuation_and_white_space():
    assert [plain_text(each) for each in ("A «Dog», runs …", "a\u00a0dog runs")] == ["adogruns", "adogruns"]
    # vowel signs are no punctuation
    assert [plain_text(each) for each in ("it's 5 o'clock", "हिंदी में")] == ["its5oclock", "हिंदीमें"]


def all_pairs(captions, caption_image):
    plain = [plain_text(each) for each in captions]
    images = sorted(set(caption_image.tolist()) - {-1})
    return np.array(
        [
            [plain[c] in {plain[o] for o in np.flatnonzero(caption_image == i)} for c in range(len(plain))]
            for i in images
        ]
    )


def marks_of(same, direction, lists, at_once):
    """Marks of lists, some anchors at a time."""
    parts = [slice(start, min(start + at_once, len(lists.scores))) for start in range(0, len(lists.scores), at_once)]
    seen = [CandidateLists(lists.candidates[part], lists.scores[part]) for part in parts]
    return np.concatenate([same.mark(direction, part, each) for part, each in zip(parts, seen, strict=True)])


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_marks_equal_a_comparison_of_all_pairs(at_once):
    same = DuplicateCaptions(iter(CAPTIONS), CAPTION_IMAGE)
    expected = all_pairs(CAPTIONS, CAPTION_IMAGE)
    foreign = CAPTION_IMAGE[None, :] != np.arange(4)[:, None]
    image, caption = foreign.nonzero()
    np.testing.assert_array_equal(same.are_duplicates(image, caption), expected[image, caption])
    texts = CandidateLists(
        np.array([[2, 4, 5, 6], [0, 4, NO_ROW, NO_ROW], [0, 1, 2, 3], [0, 1, 2, 3]], np.int32),
        np.zeros((4, 4), np.float32),
    )
    marks = marks_of(same, "texts_for_images", texts, at_once)
    for row, column in np.ndindex(texts.candidates.shape):
        candidate = texts.candidates[row, column]
        assert marks[row, column] == (candidate != NO_ROW and expected[row, candidate])
    images = CandidateLists(
        np.array([[1, 2], [2, 3], [0, 2], [0, 2], [0, 1], [0, NO_ROW], [0, 1], [0, 1]], np.int32),
        np.zeros((8, 2), np.float32),
    )
    marks = marks_of(same, "images_for_texts", images, at_once)
    for row, column in np.ndindex(images.candidates.shape):
        candidate = images.candidates[row, column]
        assert marks[row, column] == (candidate != NO_ROW and expected[candidate, row])


@given(
    texts=st.lists(st.sampled_from(["a b", "B A", "a  b.", "c", "C!", "d"]), min_size=1, max_size=20),
    images=st.integers(1, 6),
    nobodys=st.lists(st.integers(0, 30)),
)
def test_foreign_pairs_equal_a_comparison_of_all_pairs(texts, images, nobodys):
    caption_image = np.arange(len(texts)) % images
    caption_image[[each for each in nobodys if images <= each < len(texts)]] = -1  # of nobody; every image keeps one
    expected = all_pairs(texts, caption_image)
    image, caption = (caption_image[None, :] != np.arange(len(expected))[:, None]).nonzero()
    same = DuplicateCaptions(texts, caption_image)
    np.testing.assert_array_equal(same.are_duplicates(image, caption), expected[image, caption])


def test_the_report_counts_captions_and_candidates_and_the_marks_drop_them():
    same = DuplicateCaptions(CAPTIONS, CAPTION_IMAGE)
    texts = CandidateLists(
        np.array([[2, 4, 5], [0, 4, 1], [1, 0, NO_ROW], [0, 1, 2]], np.int32), np.ones((4, 3), np.float32)
    )
    images = CandidateLists(np.array([[1], [2], [0], [2], [0], [0], [0], [1]], np.int32), np.ones((8, 1), np.float32))
    marks = marks_of(same, "texts_for_images", texts, 3)
    marks_of(same, "images_for_texts", images, 5)
    report = same.report()
    assert (report.captions, report.captions_of_other_images) == (6, 4)
    assert report.candidates == {"texts_for_images": 4, "images_for_texts": 4}
    assert report.share == {"texts_for_images": 4 / 11, "images_for_texts": 0.5}
    kept, dropped = drop(texts, {"duplicates": marks})
    assert dropped == {"duplicates": 4}
    assert kept.candidates.tolist() == [[4, NO_ROW, NO_ROW], [4, 1, NO_ROW], [0, NO_ROW, NO_ROW], [0, 1, 2]]


def test_the_example_of_the_docstring_runs():
    outcome = doctest.testmod(duplicates, extraglobs={"np": np})
    assert (outcome.failed, outcome.attempted) == (0, 2)
