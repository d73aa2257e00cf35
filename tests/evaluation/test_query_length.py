"""Recall by the length of the caption."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.evaluation.query_length import recall_by_length
from itrpipe.evaluation.metrics import recall


def test_every_caption_counts_in_the_bucket_of_its_length() -> None:
    random = np.random.default_rng(0)
    words, ranks = random.integers(0, 25, 500), random.integers(0, 20, 500)
    found = recall_by_length(ranks, words)
    assert [(each["from"], each["to"]) for each in found] == [(1, 7), (8, 9), (10, 11), (12, 14), (15, None)]
    for each in found:
        top = np.inf if each["to"] is None else each["to"]
        low = 0 if each["from"] == 1 else each["from"]
        own = ranks[(words >= low) & (words <= top)]
        assert each["captions"] == len(own)
        for k in (1, 5, 10):
            assert each[f"t2i_r{k}"] == recall(own, k)
    assert sum(each["captions"] for each in found) == 500
    weighted = sum(each["captions"] * each["t2i_r5"] for each in found) / 500
    assert weighted == pytest.approx(recall(ranks, 5))


def test_an_empty_bucket_has_no_recall() -> None:
    found = recall_by_length(np.array([0, 3]), np.array([9, 8]))
    assert [each["captions"] for each in found] == [0, 2, 0, 0, 0]
    assert [each["t2i_r1"] for each in found] == [None, 50.0, None, None, None]
