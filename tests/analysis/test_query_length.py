"""Recall by the length of the caption."""

from __future__ import annotations

import numpy as np

from itrpipe.analysis.questions.query_length import recall_by_length
from itrpipe.evaluation.metrics import recall


def test_every_caption_counts_in_the_bucket_of_its_length() -> None:
    random = np.random.default_rng(0)
    words, ranks = random.integers(0, 15, 500), random.integers(0, 20, 500)
    found = recall_by_length(ranks, words)
    assert [(each["from"], each["to"]) for each in found] == [(1, 7), (8, 9), (10, 11), (12, 14), (15, None)]
    for each, (low, top) in zip(found, [(0, 7), (8, 9), (10, 11), (12, 14)], strict=False):
        own = ranks[(words >= low) & (words <= top)]
        assert each["captions"] == len(own) > 0
        assert [each[f"t2i_r{k}"] for k in (1, 5, 10)] == [recall(own, k) for k in (1, 5, 10)]
    assert (found[-1]["captions"], found[-1]["t2i_r5"]) == (0, None)
