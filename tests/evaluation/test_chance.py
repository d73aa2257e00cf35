"""Recall by chance: exact over all ways to deal images to captions, whatever the scores are."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.evaluation.chance import LIMIT, chance_of_recalls
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import ranks

RECALLS = [f"{side}_r{k}" for side in ("i2t", "t2i") for k in (1, 5, 10)]


def dealt(scores: np.ndarray, caption_image: np.ndarray) -> dict[str, np.ndarray]:
    """Every recall under every way to give the images to the groups of captions."""
    ways = [metrics(ranks(scores[list(way)], caption_image)) for way in permutations(range(len(scores)))]
    return {name: np.array([each[name] for each in ways]) for name in RECALLS}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["plain", "ties", "hubs", "alike"])
def test_mean_and_deviation_are_those_over_all_ways(seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    caption_image = np.sort(np.concatenate([np.arange(6), random.integers(0, 6, 12)]))
    scores = random.standard_normal((6, len(caption_image)))
    if kind == "ties":
        scores = np.round(scores)
    if kind == "hubs":
        scores += 2 * random.standard_normal((6, 1))
    if kind == "alike":
        scores += 2 * random.standard_normal((6, 6))[:, caption_image]
    every = dealt(scores, caption_image)
    for name, found in chance_of_recalls(scores, caption_image).items():
        assert found.value == pytest.approx(every[name][0])
        assert found.mean == pytest.approx(every[name].mean())
        assert found.deviation == pytest.approx(every[name].std(), abs=1e-9)


def test_independent_scores_hold_and_a_leak_does_not() -> None:
    random = np.random.default_rng(0)
    caption_image = np.repeat(np.arange(200), 5)
    scores = random.standard_normal((200, 1000))
    found = chance_of_recalls(scores, caption_image)
    assert list(found) == RECALLS
    assert all(each.holds for each in found.values())
    assert found["i2t_r1"].mean == pytest.approx(0.5)
    assert found["t2i_r10"].mean == pytest.approx(5.0)
    # A little of which caption belongs to which image is enough.
    scores[caption_image, np.arange(1000)] += 0.5
    leaked = chance_of_recalls(scores, caption_image)
    assert not leaked["t2i_r10"].holds
    assert not leaked["i2t_r10"].holds
    assert leaked["t2i_r10"].mean == pytest.approx(5.0)


def test_the_limit_is_seldom_passed_by_chance_and_three_deviations_would_be() -> None:
    random = np.random.default_rng(0)
    caption_image = np.repeat(np.arange(30), 5)
    found = [
        max(abs(each.value - each.mean) / each.deviation for each in chances.values())
        for chances in (chance_of_recalls(random.standard_normal((30, 150)), caption_image) for _ in range(400))
    ]
    assert np.mean(np.array(found) > LIMIT) < 0.005
    assert 0.01 < np.mean(np.array(found) > 3) < 0.1  # the few hits of R@1 are no normal distribution


def test_scores_without_an_order_are_below_chance_and_no_leak() -> None:
    caption_image = np.repeat(np.arange(30), 5)
    for each in chance_of_recalls(np.zeros((30, 150)), caption_image).values():
        assert (each.value, each.mean, each.deviation) == (0.0, 0.0, 0.0)
        assert each.holds


def test_one_image_is_refused() -> None:
    with pytest.raises(DataError, match="one image alone"):
        chance_of_recalls(np.zeros((1, 5)), np.zeros(5, dtype=np.int64))
