"""Intervals against real repetition and printed tables; how often a difference is called one where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.evaluation import intervals
from itrpipe.evaluation.intervals import (
    Difference,
    Interval,
    fold_figures,
    group_mean_interval,
    mean_figures,
    paired_differences,
    probability_within,
    quantile_within,
    seed_interval,
    significances,
)
from itrpipe.evaluation.metrics import COMPARED, Ranks, metrics, ranks

SEED_DEVIATION = 7.0
PAGES = 1_000
LEVELS = st.floats(0.01, 0.999)


def synthetic(images: int = 40, seed: int = 0) -> tuple[Ranks, np.ndarray]:
    random = np.random.default_rng(seed)
    owners = random.permutation(np.r_[np.arange(images), random.integers(0, images, 3 * images)])
    scores = random.standard_normal((images, len(owners)))
    scores[owners, np.arange(len(owners))] += 1
    return ranks(scores, owners), owners


def repeated(split: Ranks, owners: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Metrics where every image stands there as often as its weight says, with all its captions."""
    whole = Ranks(np.repeat(split.images_to_texts, weights), np.repeat(split.texts_to_images, weights[owners]))
    return {name: value for name, value in metrics(whole).items() if "median" not in name}


@pytest.mark.parametrize("values", [1 << 22, 1200])
def test_intervals_are_percentiles_over_images_that_are_repeated_with_all_their_captions(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "_BLOCK_VALUES", values)
    (split, owners), level = synthetic(), 0.9
    weights = np.concatenate([*intervals._image_weights(40, 40, 50)]).astype(int)
    assert (weights.sum(axis=1) == 40).all()
    drawn = [repeated(split, owners, each) for each in weights]
    found = fold_figures([(split, owners)], 50, level)
    other = Ranks(split.images_to_texts // 2, split.texts_to_images // 3)
    paired = paired_differences([(split, other), (other, split), (split, other)], owners, 50, level)
    again = [repeated(other, owners, each) for each in weights]
    for name, own in repeated(split, owners, np.ones(40, dtype=int)).items():
        sample = np.array([each[name] for each in drawn])
        assert tuple(found[name].values()) == pytest.approx((own, *np.percentile(sample, [5, 95])))
        differences = (np.array([each[name] for each in again]) - sample) / 3  # two for, one against
        if name in COMPARED:
            assert paired[name].images[1:] == pytest.approx((*np.percentile(differences, [5, 95]),))
            assert paired[name].value == pytest.approx((metrics(other)[name] - own) / 3)
    recalled = {"r5": 100.0 * (split.texts_to_images < 5)}
    assert mean_figures(recalled, owners, 50, level)["r5"] == pytest.approx(
        fold_figures([(split, owners)], 50, level)["t2i_r5"]
    )


def test_the_mean_over_groups_leaves_out_those_that_a_test_set_has_nothing_of() -> None:
    random = np.random.default_rng(1)
    values, images, groups = random.random(30), np.arange(30) % 6, np.arange(30) % 7
    found = group_mean_interval(values, images, groups, 80, 0.9)
    drawn = []
    for weights in np.concatenate([*intervals._image_weights(6, 30, 80)]).astype(int):
        rows = np.repeat(np.arange(30), weights[images])
        drawn.append(np.mean([values[rows][groups[rows] == each].mean() for each in set(groups[rows].tolist())]))
    assert found[1:] == pytest.approx((*np.percentile(drawn, [5, 95]),))
    assert found.value == pytest.approx(np.mean([values[groups == each].mean() for each in range(7)]))


def test_folds_are_resampled_apart() -> None:
    """With every fold drawn for itself, the mean over three varies less than one fold by the root of three."""
    folds = [synthetic(60, seed) for seed in range(3)]
    found = fold_figures(folds, 2000, 0.95)["rsum"]
    singles = [fold_figures([each], 2000, 0.95)["rsum"] for each in folds]
    widths = [single["high"] - single["low"] for single in singles]
    assert found["high"] - found["low"] == pytest.approx(np.sqrt(np.mean(np.square(widths)) / 3), rel=0.1)
    assert found["value"] == pytest.approx(np.mean([metrics(each)["rsum"] for each, _ in folds]))


# Student's t


@pytest.mark.parametrize(
    ("degrees", "printed"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (29, 2.045), (120, 1.980)],
)
def test_the_95_percent_column_of_the_table(degrees: int, printed: float) -> None:
    assert quantile_within(0.95, degrees) == pytest.approx(printed, abs=5e-4)


@given(LEVELS, st.integers(1, 60))
def test_the_quantile_inverts_the_probability(level: float, degrees: int) -> None:
    assert probability_within(quantile_within(level, degrees), degrees) == pytest.approx(level, abs=1e-12)
    assert quantile_within(level, 2) == pytest.approx(level * math.sqrt(2 / (1 - level**2)), rel=1e-9)


def test_the_interval_over_seeds_is_that_of_students_t() -> None:
    assert seed_interval([1.0, 2.0, 6.0], 0.95) == pytest.approx((3, 3 - 4.302653 * 7**0.5 / 3**0.5, 9.57241), abs=1e-5)


# What may be called significant


def difference(single: np.ndarray, over_images: float, level: float = 0.95) -> Difference:
    """Of one difference for each seed, with an interval over images of a normal deviation about what was measured."""
    mean, half = float(single.mean()), 1.959964 * over_images
    seeds = seed_interval(single.tolist(), level) if len(single) > 1 else None
    return Difference(mean, seeds, Interval(mean, mean - half, mean + half), len(single), level)


def page(
    rng: np.random.Generator, seeds: int, methods: int, references: int, over_images: float = 4.0, effect: float = 0.0
) -> list[Difference]:
    """Every method with every reference; all are drawn alike, for every seed and for the test images they share."""
    scores = rng.normal(0, SEED_DEVIATION, (methods + references, seeds))
    scores += rng.normal(0, over_images / np.sqrt(2), (methods + references, 1))
    scores[:methods] += effect
    return [
        difference(scores[row] - scores[methods + column], over_images)
        for row in range(methods)
        for column in range(references)
    ]


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("over_images", [0.0, 4.0, 8.0])
@pytest.mark.parametrize(("methods", "references"), [(1, 1), (6, 2)])
def test_where_nothing_differs_at_most_one_page_in_twenty_claims_anything(
    seeds: int, over_images: float, methods: int, references: int
) -> None:
    rng = np.random.default_rng([seeds, methods, references])
    false = sum(any(significances(page(rng, seeds, methods, references, over_images))) for _ in range(PAGES))
    assert false / PAGES <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / PAGES)


@pytest.mark.parametrize(
    ("single", "over_images", "p_value"),
    [
        # Student's t with 3 degrees of freedom: 3.182 and 5.841 are 5 % and 1 %.
        (3.182446 + np.array([-1, 1, -1, 1]) * 3**0.5, 1e-6, 0.05),
        (-5.840909 + np.array([-1, 1, -1, 1]) * 3**0.5, 1e-6, 0.01),
        (np.full(3, 1.959964), 1.0, 0.052),  # seeds agree: the images decide
        (np.array([1.9599, 1.96, 1.9601]), 1.0, 0.051),
        # Equal errors of 1 from three seeds and from images: t = 4 / sqrt(2) with 2 x 2 degrees of freedom.
        (4 + np.array([-1.0, 0.0, 1.0]) * np.sqrt(3), 1.0, max(1 - probability_within(4.0, 2), 0.0474)),
        # Errors of 1 and 2: t = 5 / sqrt(5) with 2 x 5 degrees of freedom.
        (5 + np.array([-1.0, 0.0, 1.0]) * np.sqrt(3), 2.0, 1 - probability_within(5**0.5, 10)),
        (np.array([2.0, 2.0]), 1.0, 0.0469),  # exactly
        (np.array([50.0]), 0.1, 1.0),
        (np.array([0.0, 0.0]), 1.0, 1.0),
        (np.array([5.0, 5.0]), 0.0, 0.0),
    ],
)
def test_the_p_value_is_the_largest_of_three(single: np.ndarray, over_images: float, p_value: float) -> None:
    assert difference(single, over_images).p_value == pytest.approx(p_value, rel=0.02)


def test_a_lopsided_interval_counts_with_its_end_nearer_to_zero() -> None:
    steady = Interval(5.0, 5.0 - 1e-9, 5.0 + 1e-9)
    near, far = (Difference(5.0, steady, each, 3, 0.95) for each in (Interval(5, 1, 6), Interval(5, 4, 9)))
    assert near.p_value > far.p_value


def test_marks_are_corrected_by_holm_and_need_both_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.01, 0.04, 0.03 and 0.005 become 0.03, 0.06, 0.06 and 0.02."""
    given = [difference(np.array([each, each + 1e-9]), 1e-9) for each in (0.01, 0.04, 0.03, 0.005)]
    monkeypatch.setattr(Difference, "p_value", property(lambda self: self.value))
    assert significances(given) == [True, False, False, True]
    assert significances(given[1:2]) == [True]
    assert significances([difference(np.array([0.01, 0.01]), 1.0), difference(np.array([0.01]), 0.0)]) == [False, False]
    assert significances([given[2], difference(np.array([0.5]), 0.0)]) == [True, False]  # one seed corrects nothing
    assert significances([]) == []
