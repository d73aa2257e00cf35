"""Dropping candidates and the limits that mark them, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import UsageError
from itrpipe.mining import windows
from itrpipe.mining.lists import NO_ROW, CandidateLists, by_score, drop
from itrpipe.mining.windows import Window, lowest_positives, positive_scores
from tests.mining.mine import held

limit = st.none() | st.floats(-1, 1, width=32)


def random_lists(seed: int, anchors: int = 6, width: int = 9) -> CandidateLists:
    """Falling scores in tenths, so that they meet limits exactly, and some lists that end early."""
    generator = np.random.default_rng(seed)
    scores = -np.sort(-generator.integers(-10, 11, (anchors, width)) / 10, axis=1).astype(np.float32)
    candidates = np.argsort(generator.random((anchors, 50)), axis=1)[:, :width].astype(np.int32)
    for row, length in enumerate(generator.integers(0, width + 1, anchors)):
        candidates[row, length:], scores[row, length:] = NO_ROW, -np.inf
    return CandidateLists(candidates, scores)


def naive(lists: CandidateLists, window: Window, positives: np.ndarray):
    kept, dropped = [], {}
    for row in range(len(positives)):
        positive, mine = positives[row], []
        for rank, (candidate, score) in enumerate(zip(lists.candidates[row], lists.scores[row], strict=True)):
            if candidate == NO_ROW:
                continue
            checks = {
                "range_min": rank < window.range_min,
                "range_max": window.range_max is not None and rank >= window.range_max,
                "max_score": window.max_score is not None and score > window.max_score,
                "min_score": window.min_score is not None and score < window.min_score,
                "absolute_margin": window.absolute_margin is not None and score > positive - window.absolute_margin,
                "relative_margin": window.relative_margin is not None
                and score > positive - window.relative_margin * abs(positive),
            }
            reason = next((name for name, out in checks.items() if out), None)
            if reason is None:
                mine.append((candidate, score))
            else:
                dropped[reason] = dropped.get(reason, 0) + 1
        kept.append(mine)
    return kept, dropped


@given(
    seed=st.integers(0, 500),
    range_min=st.integers(0, 4),
    range_max=st.none() | st.integers(5, 9),
    scores=st.tuples(limit, limit),
    absolute_margin=limit,
    relative_margin=limit,
)
def test_windows_equal_a_loop(seed, range_min, range_max, scores, absolute_margin, relative_margin):
    given_scores = [score for score in scores if score is not None]
    low = min(given_scores) if scores[0] is not None else None
    high = max(given_scores) if scores[1] is not None else None
    window = Window(range_min, range_max, low, high, absolute_margin, relative_margin)
    lists = random_lists(seed)
    positives = np.random.default_rng(seed).integers(-10, 11, 6).astype(np.float32) / np.float32(10)
    kept, dropped = drop(lists, window.reasons(lists, positives))
    expected, counts = naive(lists, window, positives)
    assert {name: count for name, count in dropped.items() if count} == counts
    assert kept.counts.tolist() == [len(mine) for mine in expected]
    for row, mine in enumerate(expected):
        assert kept.candidates[row, : len(mine)].tolist() == [candidate for candidate, _ in mine]
        assert kept.scores[row, : len(mine)].tolist() == [score for _, score in mine]
        assert (kept.candidates[row, len(mine) :] == NO_ROW).all()
        assert np.isneginf(kept.scores[row, len(mine) :]).all()


def test_only_limits_that_are_set_are_counted():
    lists = random_lists(1)
    assert Window().reasons(lists, np.zeros(6)) == {}
    marks = Window(range_min=2, relative_margin=0.05).reasons(lists, np.zeros(6))
    assert list(marks) == ["range_min", "relative_margin"]


def test_a_relative_margin_lowers_the_limit_of_negative_positives_too():
    lists = CandidateLists(np.array([[4, 5]], np.int32), np.array([[-0.45, -0.55]], np.float32))
    kept, _ = drop(lists, Window(relative_margin=0.05).reasons(lists, np.array([-0.5])))
    assert kept.candidates.tolist() == [[5, NO_ROW]]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"range_min": -1}, "range_min = -1 is negative"),
        ({"range_min": 10, "range_max": 10}, "range_max = 10 is not above range_min = 10"),
        ({"min_score": 0.5, "max_score": 0.4}, "max_score = 0.4 is below min_score = 0.5"),
    ],
)
def test_limits_that_leave_nothing_are_refused(limits, message):
    with pytest.raises(UsageError, match=message):
        Window(**limits)


def test_a_candidate_with_two_reasons_counts_for_the_first():
    lists = CandidateLists(np.array([[7, 8, 9]], np.int32), np.array([[3, 2, 1]], np.float32))
    first, second = np.array([[True, False, False]]), np.array([[True, True, False]])
    kept, dropped = drop(lists, {"one": first, "two": second})
    assert dropped == {"one": 1, "two": 1}
    assert kept.candidates.tolist() == [[9, NO_ROW, NO_ROW]]
    assert (kept.candidates.dtype, kept.scores.dtype) == (np.int32, np.float32)


def test_positives_of_captions_and_images():
    images = np.eye(3, dtype=np.float32)
    texts = np.array([[0.9, 0, 0], [0.2, 0.5, 0], [0.7, 0, 0]], np.float32)
    caption_image = np.array([0, 1, 0])
    positives = positive_scores(*held(images, texts, caption_image))
    np.testing.assert_array_equal(positives, np.array([0.9, 0.5, 0.7], np.float32))
    lowest = lowest_positives(positives, caption_image, 3)
    np.testing.assert_array_equal(lowest, np.array([0.7, 0.5, np.nan], np.float32))


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_caption_of_nobody_has_no_positive_and_limits_no_image(monkeypatch, at_once):
    generator = np.random.default_rng(0)
    images, texts = (generator.standard_normal((rows, 4)).astype(np.float32) for rows in (5, 12))
    caption_image = np.array([4, 0, -1, 0, 2, -1, -1, -1, 1, 1, 4, -1])
    monkeypatch.setattr(windows, "rows_at_once", lambda values: at_once)
    positives = positive_scores(*held(images, texts, caption_image))
    assert positives.dtype == np.float32
    expected = [images[i] @ texts[t] if i >= 0 else np.nan for t, i in enumerate(caption_image)]
    np.testing.assert_allclose(positives, expected, rtol=1e-5)
    lowest = lowest_positives(positives, caption_image, 5)
    expected = [min(positives[caption_image == row], default=np.nan) for row in range(5)]
    np.testing.assert_array_equal(lowest, np.array(expected, np.float32))
    with np.errstate(all="raise"):
        marks = Window(absolute_margin=0.0, relative_margin=0.5).reasons(random_lists(3, anchors=5), lowest)
    assert not any(mark[np.isnan(lowest)].any() for mark in marks.values())
    lists = random_lists(3, anchors=12)
    marks = Window(absolute_margin=5.0, relative_margin=5.0).reasons(lists, positives)
    nobodys = caption_image == -1
    assert not any(mark[nobodys].any() for mark in marks.values())
    assert any(mark[~nobodys].any() for mark in marks.values())


def test_ordering_by_score_puts_ties_by_row_and_padding_last():
    candidates = np.array([[3, NO_ROW, 1, 2], [NO_ROW, NO_ROW, 5, NO_ROW]])
    scores = np.array([[0.5, 9.0, 0.5, 0.7], [9.0, 9.0, -np.inf, 9.0]])
    ordered = by_score(candidates, scores)
    assert ordered.candidates.tolist() == [[2, 1, 3, NO_ROW], [5, NO_ROW, NO_ROW, NO_ROW]]
    assert ordered.scores[0].tolist() == [np.float32(0.7), 0.5, 0.5, -np.inf]
