"""Shares of right answers: intervals that hold the truth as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from itrpipe.judging.calibration import calibrate
from itrpipe.judging.shares import Share, share_by_rank, share_right, strata_of, wilson
from tests.judging.populations import draw, population


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    assert wilson(0.2, 50) == pytest.approx((0.1124, 0.3304), abs=1e-4)
    assert (wilson(0, 9)[0], wilson(1, 9)[1]) == (0, 1)


def share_of(found: int, decisions: int, population: int) -> Share:
    """Estimate a share by a simple random sample, without a judge."""
    answers = np.arange(decisions) < found
    return share_right(np.full(population, found / decisions), np.arange(decisions), answers, np.zeros(population, int))


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


@pytest.mark.parametrize("judge", ["good", "poor", "wrong"])
def test_the_interval_holds_the_truth_as_often_as_it_says(judge: str) -> None:
    """The judge is calibrated by the decisions that correct it."""
    random = np.random.default_rng(1)
    held = []
    for share in (0.02, 0.1, 0.3, 0.5):
        answers, log_odds = population(share, {"good": 0.95, "poor": 0.6, "wrong": 0.9}[judge], 5_000, random)
        if judge == "wrong":
            log_odds = np.clip(0.3 * log_odds + 5, -10, 10)
        strata = strata_of(log_odds)
        for decisions in (60, 100, 300):
            covered = 0
            for _ in range(100):
                rows = draw(strata, decisions, random)
                calibration = calibrate(log_odds[rows, None], answers[rows], rows // 10)
                probabilities = calibration.probabilities(log_odds[:, None])
                probabilities[rows] = calibration.held_out
                estimate = share_right(probabilities, rows, answers[rows], strata)
                covered += estimate.low <= answers.mean() <= estimate.high
            held.append(covered / 100)
    assert 0.93 <= np.mean(held) <= 0.97
    assert min(held) >= 0.85


def test_however_wrong_the_judge_the_truth_is_held() -> None:
    random = np.random.default_rng(0)
    answers, log_odds = population(0.2, 0.85, 5_000, random)
    for wrong in (-log_odds, 3 * log_odds + 4, np.full(5_000, -9.0)):
        strata = strata_of(log_odds)
        probabilities = 1 / (1 + np.exp(-wrong))
        covered = 0
        for _ in range(200):
            rows = draw(strata, 60, random)
            estimate = share_right(probabilities, rows, answers[rows], strata)
            covered += estimate.low <= answers.mean() <= estimate.high
        assert covered >= 0.93 * 200


def test_decisions_of_a_random_sample_and_a_good_judge_tell_more_than_decisions_alone() -> None:
    random = np.random.default_rng(0)
    answers, log_odds = population(0.3, 0.95, 5_000, random)
    rows = random.permutation(5_000)[:200]
    estimate = share_right(1 / (1 + np.exp(-log_odds)), rows, answers[rows], np.zeros(5_000, np.int64))
    alone = share_of(int(answers[rows].sum()), 200, 5_000)
    assert estimate.low <= answers.mean() <= estimate.high
    assert estimate.high - estimate.low < 0.75 * (alone.high - alone.low)


def test_strata_with_one_decision_or_none_are_joined_with_the_next() -> None:
    """By hand: the first two strata become one of four pairs, the last is joined with the third."""
    probabilities = np.full(8, 0.5)
    strata = np.array([0, 0, 1, 1, 2, 2, 2, 3])
    rows = np.array([0, 2, 4, 5, 7])
    answers = np.array([True, True, True, False, False])
    estimate = share_right(probabilities, rows, answers, strata)
    assert estimate.value == pytest.approx(0.5 * 1 + 0.5 / 3)
    assert estimate.decisions == 5


def test_all_that_were_decided_are_known_and_none_or_one_tell_nothing() -> None:
    probabilities = np.linspace(0, 1, 40)
    answers = probabilities > 0.7
    every = np.arange(40)
    assert share_right(probabilities, every, answers, strata_of(probabilities)) == pytest.approx((0.3, 0.3, 0.3, 40))
    for count in (0, 1):
        estimate = share_right(probabilities, every[:count], answers[:count], strata_of(probabilities))
        assert estimate == pytest.approx((0.5, 0, 1, count))


def test_strata_halve_what_is_above() -> None:
    scores = np.random.default_rng(0).permutation(160)
    strata = strata_of(scores)
    assert np.bincount(strata).tolist() == [80, 40, 20, 10, 10]
    assert (strata[scores >= 150] == 4).all()
    assert (strata[scores < 80] == 0).all()


def test_shares_by_rank_are_those_of_the_pairs_of_a_rank() -> None:
    random = np.random.default_rng(0)
    answers, log_odds = population(0.4, 0.8, 2_000, random)
    probabilities = 1 / (1 + np.exp(-log_odds))
    ranks = np.arange(2_000) % 10 + 1
    strata = strata_of(log_odds)
    rows = draw(strata, 200, random)
    shares = share_by_rank(probabilities, rows, answers[rows], strata, ranks)
    assert list(shares) == ["1-10", "3-5", "6-10"], "those with 50 decisions"
    assert shares["1-10"].decisions == 200

    later = np.flatnonzero(ranks > 5)
    decided = np.isin(later, rows)
    alone = share_right(probabilities[later], np.flatnonzero(decided), answers[later][decided], strata[later])
    assert shares["6-10"] == pytest.approx(alone)
    few = share_by_rank(probabilities, rows[:10], answers[rows[:10]], strata, ranks)
    assert few["1"] == pytest.approx((probabilities[ranks == 1].mean(), 0, 1, 0), abs=1e-6)
    assert list(few) == ["1-10", "1", "2", "3-5", "6-10"], "all by the judge alone"
