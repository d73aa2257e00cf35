"""Bootstrap intervals: resampled metrics against real repetition, coverage, pairing and determinism."""

from __future__ import annotations

import time

import numpy as np
import pytest

from itrpipe.evaluation.bootstrap import _percentiles, intervals, mean_intervals, paired_intervals, weighted_metrics
from itrpipe.evaluation.metrics import metrics
from itrpipe.evaluation.metrics import Ranks, ranks


def synthetic(images=80, seed=0, boost=1.0):
    generator = np.random.default_rng(seed)
    caption_image = generator.permutation(
        np.concatenate([np.arange(images), generator.integers(0, images, 3 * images)])
    )
    scores = generator.standard_normal((images, len(caption_image)))
    scores[caption_image, np.arange(len(caption_image))] += boost
    return ranks(scores, caption_image), caption_image


def with_intervals(found):
    return {name: value for name, value in found.items() if "median" not in name}


def test_weights_act_like_repeating_images_with_all_their_captions():
    split, caption_image = synthetic()
    generator = np.random.default_rng(3)
    weights = generator.integers(0, 4, (6, 80))
    found = weighted_metrics(split, caption_image, weights)
    for sample, weight in enumerate(weights):
        repeated = Ranks(
            np.repeat(split.images_to_texts, weight), np.repeat(split.texts_to_images, weight[caption_image])
        )
        expected = with_intervals(metrics(repeated))
        assert {name: value[sample] for name, value in found.items()} == pytest.approx(expected)


def test_interval_holds_the_value_and_widens_with_the_level():
    split, caption_image = synthetic()
    narrow, wide = (intervals(split, caption_image, 500, level) for level in (0.5, 0.95))
    assert set(wide) == set(with_intervals(metrics(split)))
    for name, interval in wide.items():
        assert interval.low <= interval.value <= interval.high
        assert interval.high - interval.low >= narrow[name].high - narrow[name].low
    assert wide["rsum"].high - wide["rsum"].low > narrow["rsum"].high - narrow["rsum"].low


def test_the_same_seed_gives_the_same_interval_in_any_blocks(monkeypatch):
    split, caption_image = synthetic()
    whole = intervals(split, caption_image, 200, seed=5)
    assert whole != intervals(split, caption_image, 200, seed=6)
    monkeypatch.setattr("itrpipe.evaluation.bootstrap._BLOCK_VALUES", 7 * len(caption_image))
    assert whole == intervals(split, caption_image, 200, seed=5)


def test_intervals_cover_the_true_recall_about_as_often_as_they_say():
    """Ranks drawn with a known chance of a hit: 90 percent intervals must cover it in roughly 90 percent of tests."""
    generator, covered, chance = np.random.default_rng(0), 0, 0.4
    caption_image = np.repeat(np.arange(100), 2)
    for test_set in range(200):
        hit = generator.random(100) < chance  # both captions of an image rank alike
        side = np.where(hit, 0, 20)
        interval = intervals(Ranks(side, side[caption_image]), caption_image, 200, level=0.9, seed=test_set)["t2i_r1"]
        covered += interval.low <= 100 * chance <= interval.high
    assert 0.83 <= covered / 200 <= 0.97


def test_captions_of_an_image_are_resampled_together():
    """Twenty captions that rank alike carry no more information than one: the interval must not shrink."""
    hit = np.random.default_rng(0).random(100) < 0.4
    side = np.where(hit, 0, 20)
    widths = []
    for repeats in (1, 20):
        caption_image = np.repeat(np.arange(100), repeats)
        interval = intervals(Ranks(side, side[caption_image]), caption_image, 1000)["t2i_r1"]
        widths.append(interval.high - interval.low)
    assert widths[0] == pytest.approx(widths[1])


def test_pairing_sees_a_small_difference_that_separate_intervals_do_not():
    split, caption_image = synthetic()
    better = Ranks(np.maximum(split.images_to_texts - 1, 0), np.maximum(split.texts_to_images - 1, 0))
    difference = paired_intervals(split, better, caption_image)["t2i_mean_rank"]
    alone = intervals(split, caption_image)["t2i_mean_rank"]
    assert difference.high < 0
    assert difference.high - difference.low < (alone.high - alone.low) / 4
    expected = metrics(better)["t2i_mean_rank"] - metrics(split)["t2i_mean_rank"]
    assert difference.value == pytest.approx(expected)
    same = paired_intervals(split, split, caption_image)["rsum"]
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_a_complete_evaluation_takes_less_than_a_second():
    generator = np.random.default_rng(0)
    scores, caption_image = generator.standard_normal((500, 2500)).astype(np.float32), np.arange(2500) // 5
    start = time.process_time()
    split = ranks(scores, caption_image)
    intervals(split, caption_image, samples=1000)
    metrics(split)
    assert time.process_time() - start < 1.0


def test_intervals_of_means_are_those_of_the_same_test_sets():
    random = np.random.default_rng(3)
    caption_image = np.repeat(np.arange(20), 3)
    split = ranks(random.standard_normal((20, 60)), caption_image)
    expected = intervals(split, caption_image, samples=200)
    values = {f"r{k}": 100.0 * (split.texts_to_images < k) for k in (1, 10)}
    found = mean_intervals(values, caption_image, 20, samples=200)
    for k in (1, 10):
        for part in ("value", "low", "high"):
            assert getattr(found[f"r{k}"], part) == pytest.approx(getattr(expected[f"t2i_r{k}"], part))


@pytest.mark.parametrize(("level", "ends"), [(0.95, (25.0, 975.0)), (0.9, (50.0, 950.0)), (0.5, (250.0, 750.0))])
def test_an_interval_holds_as_much_of_the_sample_as_its_level_says(level: float, ends: tuple[float, float]) -> None:
    sample = np.random.default_rng(0).permutation(np.arange(1001.0))
    found = _percentiles({"value": 7.0}, {"value": sample}, level)["value"]
    assert (found.value, found.low, found.high) == pytest.approx((7.0, *ends))
