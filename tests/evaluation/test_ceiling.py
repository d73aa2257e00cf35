"""The ceiling of recall, against rankings drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.evaluation.ceiling import ceiling


def test_a_caption_that_is_true_of_nothing_else_is_always_found() -> None:
    found = ceiling(np.array([0, 0, 1]), np.array([0, 1, 2, 3]), np.array([0, 0, 1]))
    assert found["rsum"] == pytest.approx(600)


def test_expected_recalls_are_those_of_many_random_orders_of_the_true_matches() -> None:
    rng = np.random.default_rng(0)
    own = np.repeat(np.arange(12), 2)
    true = rng.random((24, 12)) < 0.4
    true[np.arange(24), own] = True
    offsets = np.concatenate([[0], np.cumsum(true.sum(axis=1))])
    found = ceiling(own, offsets, np.nonzero(true)[1])
    hits = {name: 0.0 for name in found if name != "rsum"}
    rounds = 4000
    for _ in range(rounds):
        scores = true + 0.5 * rng.random(true.shape)
        better_images = (scores > scores[np.arange(24), own][:, None]).sum(axis=1)
        best = np.where(own[:, None] == np.arange(12), scores, -1).max(axis=0)
        better_texts = (scores > best).sum(axis=0)
        for k in (1, 5, 10):
            hits[f"t2i_r{k}"] += 100 * np.mean(better_images < k) / rounds
            hits[f"i2t_r{k}"] += 100 * np.mean(better_texts < k) / rounds
    for name, value in hits.items():
        assert found[name] == pytest.approx(value, abs=1.0)


def test_matches_without_the_own_image_are_refused() -> None:
    with pytest.raises(DataError, match="lack their own image"):
        ceiling(np.array([0, 1]), np.array([0, 1, 2]), np.array([0, 0]))
