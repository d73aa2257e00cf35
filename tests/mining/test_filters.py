"""What leaves lists, against plain loops: limits, duplicates, positives."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import itrpipe
from itrpipe.errors import DataError, UsageError
from itrpipe.mining import filters
from itrpipe.mining.filters import (
    DuplicateCaptions,
    better_than_another,
    drop,
    lowest_positives,
    outside,
    plain_text,
    positive_scores,
)
from itrpipe.mining.lists import DIRECTIONS, NO_ROW, CandidateLists, HeldRows, matching, slices


def test_candidates_that_leave_are_counted_by_the_first_reason_and_others_close_up() -> None:
    candidates = np.array([[3, 1, 4, NO_ROW], [2, 0, 1, 5]], np.int32)
    lists = CandidateLists(candidates, np.array([[0.9, 0.5, 0.1, -np.inf], [0.9, 0.8, 0.2, 0.1]], np.float32))
    limits = {"range_min": 1, "max_score": 0.8, "absolute_margin": 0.25}
    reasons = outside(limits, lists, np.array([0.5, np.nan], np.float32))
    assert list(reasons) == ["range_min", "max_score", "absolute_margin"]
    kept, dropped = drop(lists, reasons)
    assert dropped == {"range_min": 2, "max_score": 0, "absolute_margin": 1}
    assert kept.candidates.tolist() == [[4, NO_ROW, NO_ROW, NO_ROW], [0, 1, 5, NO_ROW]]
    assert kept.scores[0].tolist() == [np.float32(0.1), -np.inf, -np.inf, -np.inf]
    assert (kept.candidates.dtype, kept.scores.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize(
    "limits", [{"range_min": -1}, {"range_min": 10, "range_max": 10}, {"min_score": 0.5, "max_score": 0.4}], ids=str
)
def test_limits_that_leave_nothing_are_refused(limits):
    with pytest.raises(UsageError, match=list(limits)[-1]):
        itrpipe.mine(np.eye(3), np.eye(3), [0, 1, 2], num_texts=1, num_images=1, **limits)


@pytest.mark.parametrize("limits", [{"range_min": 2}, {"max_score": -50.0}, {"absolute_margin": 1e9}], ids=str)
def test_limits_that_leave_no_candidate_are_refused_with_what_they_dropped(limits):
    with pytest.raises(UsageError, match=f"{next(iter(limits))} 12"):
        itrpipe.mine(np.eye(3), np.eye(3), [0, 1, 2], **limits)


def test_a_caption_that_is_no_text_is_named():
    with pytest.raises(DataError, match="caption 1 is nan"):
        itrpipe.mine(np.eye(3), np.eye(3), [0, 1, 2], captions=["a", float("nan"), "b"])  # pyright: ignore


def test_captions_may_be_an_array():
    lists = itrpipe.mine(np.eye(3), np.eye(3), [0, 1, 2], captions=np.array(["a", "A.", "b"]))
    assert lists.texts_for_images.tolist() == [[2, -1], [2, -1], [0, 1]]


def test_positives_are_those_of_a_loop_and_nobodys_are_none():
    generator = np.random.default_rng(0)
    images, texts = (generator.standard_normal((rows, 4)).astype(np.float32) for rows in (6, 12))
    owners = np.array([4, 0, -1, 0, 2, -1, -1, -1, 1, 1, 4, -1])
    positives = positive_scores(HeldRows(images), HeldRows(texts), owners)
    assert positives.dtype == np.float32
    expected = [images[i] @ texts[t] if i >= 0 else np.nan for t, i in enumerate(owners)]
    np.testing.assert_allclose(positives, expected, rtol=1e-5)
    lowest = [min(positives[owners == row], default=np.nan) for row in range(6)]
    np.testing.assert_array_equal(lowest_positives(positives, owners, 6), np.array(lowest, np.float32))


# Duplicates


@pytest.mark.parametrize(
    "texts",
    [
        (
            "A dog.",
            "a dog",
            "a  dog!",
            "«A dog» …",
            "a\u00a0dog",
            "\ufeffa do\u200bg",
            "\uff21\u3000dog",
        ),
        ("it's red", "its red", "It\u2019s red"),
        ("a T-shirt (new)", "a T\u2013shirt, new"),
        ("\u22125 degrees", "-5 degrees"),
        ("50% off", "50 % off"),
        ("हिंदी में", "हिंदी में।"),
    ],
)
def test_captions_that_read_alike_are_the_same(texts):
    assert len(set(map(plain_text, texts))) == 1


@pytest.mark.parametrize(
    "texts",
    [
        ("a 1.5 V battery", "a 15 V battery", "a .5 V battery", "a 5 V battery"),
        ("-5 degrees", "5 degrees", "3-5 degrees", "35 degrees"),
        ("C", "C++", "C#"),
        ("$1.50", "$150", "\u20ac1.50", "1.50"),
        ("1/2 cup", "12 cup", "1 cup"),
        ("a nice man", "an ice man"),
        ("5 % fat", "5 fat"),
        ("में", "म"),
    ],
)
def test_captions_that_differ_in_a_number_or_a_sign_are_not_the_same(texts):
    assert len(set(map(plain_text, texts))) == len(texts)


def test_examples_of_the_module_run() -> None:
    outcome = doctest.testmod(filters, extraglobs={"np": np})
    assert (outcome.failed, outcome.attempted) == (0, 2)


@given(
    texts=st.lists(st.sampled_from(["a b", "B A", "a  b.", "c", "C!", "d", ""]), min_size=1, max_size=20),
    images=st.integers(1, 6),
    nobodys=st.lists(st.integers(0, 30)),
    at_once=st.integers(1, 20),
)
def test_marks_and_their_counts_equal_a_comparison_of_all_pairs(texts, images, nobodys, at_once):
    owners = np.arange(len(texts)) % images
    owners[[each for each in nobodys if images <= each < len(texts)]] = -1  # of nobody; every image keeps one
    plain = [plain_text(each) or str(row) for row, each in enumerate(texts)]
    count = int(owners.max()) + 1
    own = [{plain[row] for row in np.flatnonzero(owners == image)} for image in range(count)]
    fits = np.array([[text in each for text in plain] for each in own])
    foreign = owners != np.arange(count)[:, None]
    same = DuplicateCaptions(iter(texts), owners)
    for name, expected, allowed in ((DIRECTIONS[0], fits, foreign), (DIRECTIONS[1], fits.T, foreign.T)):
        candidates = np.where(allowed, np.arange(allowed.shape[1]), NO_ROW)
        candidates = np.pad(candidates, ((0, 0), (0, 1)), constant_values=allowed.shape[1])  # one without a text
        for part in slices(len(candidates), at_once):
            lists = CandidateLists(candidates[part], np.zeros(candidates[part].shape))
            marks = matching(same.has, name, part, lists)
            np.testing.assert_array_equal(marks[:, :-1], (expected & allowed)[part])
            assert not marks[:, -1].any()
    rows = np.r_[np.arange(len(texts)), NO_ROW][None]
    again = [text in plain[:row] for row, text in enumerate(plain)]
    np.testing.assert_array_equal(same.again(rows)[0], [*again, False])
    owners_of = [{owners[row] for row, other in enumerate(plain) if other == each} for each in plain]
    assert same.report() == {
        "captions": sum(plain.count(each) > 1 for each in plain),
        "captions_of_other_images": sum(len(each) > 1 for each in owners_of),
    }


def test_captions_in_another_order_fit_their_images_no_better_than_others() -> None:
    images, owners = np.eye(20, dtype=np.float32), np.arange(40) // 2
    for texts, share in ((images[owners], 1.0), (images[owners[::-1]], 0.0)):
        rows = [HeldRows(each) for each in (images, texts)]
        positives = positive_scores(*rows, owners)
        assert better_than_another(*rows, owners, positives) == share
