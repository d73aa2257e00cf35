"""Shares of right answers: intervals that hold the truth as often as they say."""

from __future__ import annotations

import math

import pytest

from itrpipe.judging.shares import share_of


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    found = share_of(10, 50, 10**9)
    assert (found.low, found.high) == pytest.approx((0.1124, 0.3304), abs=1e-4)
    assert tuple(share_of(0, 0, 9)) == (None, 0.0, 1.0, 0)
    assert (share_of(0, 9, 99).low, share_of(9, 9, 99).high) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("population", "true", "decisions"), [(200, 80, 50), (200, 80, 150), (3_000, 1_200, 1_300), (400, 40, 250)]
)
def test_an_interval_of_a_finite_population_holds_the_truth_as_often_as_it_says(
    population: int, true: int, decisions: int
) -> None:
    covered = 0.0
    samples = math.comb(population, decisions)
    for found in range(max(0, decisions - population + true), min(true, decisions) + 1):
        ways = math.comb(true, found) * math.comb(population - true, decisions - found) / samples
        share = share_of(found, decisions, population)
        covered += ways * (share.low <= true / population <= share.high)
    assert 0.92 < covered < 0.98
    whole = share_of(true, population, population)
    assert whole.low == whole.high
