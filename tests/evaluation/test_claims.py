"""What may be called significant: the rule against its definition, and how often it is wrong where nothing differs."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.claims import Difference, holm, seed_interval, significances, verdict
from itrpipe.evaluation.claims import probability_within

SEED_DEVIATION = 7.0
PAGES = 3_000


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


def test_without_the_correction_pages_with_many_comparisons_would_claim_too_often() -> None:
    """The simulation can fail: single intervals over images, which older pages used, are wrong on most pages."""
    rng = np.random.default_rng(0)
    pages = [page(rng, 3, 6, 2) for _ in range(300)]
    naive = np.mean([any(each.images.low > 0 or each.images.high < 0 for each in one) for one in pages])
    uncorrected = np.mean([any(each.excludes_zero for each in one) for one in pages])
    assert naive > 0.5
    assert uncorrected > 0.1


def test_a_large_effect_over_five_seeds_is_found() -> None:
    rng = np.random.default_rng(1)
    found = [significances(page(rng, 5, 1, 2, effect=60.0)) for _ in range(200)]
    assert np.mean(found) > 0.95


def test_the_p_value_is_that_of_a_paired_t_test_where_the_images_are_certain() -> None:
    """Student's t with 3 degrees of freedom: t = 3.182 and 5.841 are 5 % and 1 %."""
    for t, p_value in ((3.182446, 0.05), (5.840909, 0.01)):
        single = np.array([-1.0, 1.0, -1.0, 1.0])
        single = t + single * 2 / single.std(ddof=1)
        for sign in (1, -1):
            assert difference(sign * single, 1e-6).p_value == pytest.approx(p_value, rel=1e-4)


def test_the_p_value_is_that_of_the_images_where_seeds_agree() -> None:
    assert difference(np.full(3, 1.959964), 1.0).p_value == pytest.approx(0.05, rel=0.05)
    assert difference(np.array([1.9599, 1.96, 1.9601]), 1.0).p_value == pytest.approx(0.05, rel=0.05)


def test_seeds_and_images_at_once_have_the_sum_of_their_variances() -> None:
    """Equal errors of 1 from three seeds and from images: t = 4 / sqrt(2) with 2 x 2 degrees of freedom."""
    single = 4 + np.array([-1.0, 0.0, 1.0]) * np.sqrt(3)
    found = difference(single, 1.0)
    assert found.p_value == pytest.approx(max(1 - probability_within(4.0, 2), 1 - probability_within(8**0.5, 4)))
    assert found.p_value > difference(single, 1e-6).p_value - 1e-9


def test_a_lopsided_interval_counts_with_its_end_nearer_to_zero() -> None:
    steady = Interval(5.0, 5.0 - 1e-9, 5.0 + 1e-9)
    near, far = (Difference(5.0, steady, each, 3, 0.95) for each in (Interval(5, 1, 6), Interval(5, 4, 9)))
    assert near.p_value > far.p_value


def test_one_seed_and_no_difference_are_never_significant() -> None:
    single = difference(np.array([50.0]), 0.1)
    assert single.p_value == 1.0
    assert difference(np.array([0.0, 0.0]), 1.0).p_value == 1.0
    assert significances([single]) == [False]


def test_seeds_that_agree_exactly_leave_the_images_to_decide() -> None:
    same = np.array([5.0, 5.0, 5.0])
    assert significances([difference(same, 0.5), difference(same, 10.0)]) == [True, False]


def test_holm_is_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_a_mark_needs_the_correction_and_both_intervals() -> None:
    clear, doubtful = (difference(np.array([m - 1, m, m + 1]), 0.5) for m in (60.0, 3.6))
    assert significances([doubtful]) == [True]
    assert significances([doubtful, clear]) == [True, True]
    assert significances([doubtful, *[difference(np.array([-1.0, 0.0, 1.2]), 1.0)] * 3]) == [False] * 4


def test_better_is_above_every_control() -> None:
    def marked(value: float, significant: bool) -> Difference:
        return Difference(value, None, Interval(value, value, value), 3, 0.95, significant)

    up, down, open_ = marked(5.0, True), marked(-5.0, True), marked(9.0, False)
    assert verdict([up, up]) == "better"
    assert verdict([up, open_]) == "open"
    assert verdict([up, down]) == "worse"
    assert verdict([]) == "open"
