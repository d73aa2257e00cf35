"""Shares of right answers among many pairs, estimated from few decisions of people.

Shapes: P pairs, n decisions.

Sources: Angelopoulos et al., "Prediction-powered inference", Science 2023, within strata; Wilson, "Probable inference, the law of succession, and statistical inference", 1927; Cochran, "Sampling
Techniques", 1977.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

_NORMAL = NormalDist().inv_cdf(0.975)
_CUTS = (0.5, 0.75, 0.875, 0.9375)
_PRIOR = 2.0
RANKS = ((1, 1), (2, 2), (3, 5), (6, 20), (21, 60))
"""Spans of ranks, from the first to the last, that are told apart."""


class Share(NamedTuple):
    """A share of many, with a 95 % interval.

    Attributes:
        value: 0..1; None where it cannot be told.
        low, high: ends of the interval.
        decisions: that it rests on.
    """

    value: float | None
    low: float
    high: float
    decisions: int


def share_of(found: int, decisions: int, population: int) -> Share:
    """Estimate a share of a finite population from a simple random sample, with Wilson's interval.

    A sample without replacement tells as much as one of n (N - 1) / (N - n) with replacement (Cochran, eq. 2.15).

    Args:
        found: in the sample.
        decisions: n, size of the sample.
        population: N, from which it was drawn.
    """
    if not decisions:
        return Share(None, 0.0, 1.0, 0)
    value = found / decisions
    if decisions >= population:
        return Share(value, value, value, decisions)
    size = decisions * (population - 1) / (population - decisions)
    return Share(value, *wilson(value, size), decisions)


def wilson(value: float, size: float, quantile: float = _NORMAL) -> tuple[float, float]:
    """Compute the ends of Wilson's interval of a share that is known as from `size` independent draws."""
    square = quantile * quantile
    centre = (value + square / (2 * size)) / (1 + square / size)
    reach = quantile / (1 + square / size) * math.sqrt(value * (1 - value) / size + square / (4 * size * size))
    # Of nothing, or of all, an end is the share itself, and rounding would put it beside.
    return min(value, max(0.0, centre - reach)), max(value, min(1.0, centre + reach))


def strata_of(scores: np.ndarray) -> np.ndarray:
    """Cut pairs into strata by their scores [P]: the lower half is 0, the next quarter 1, …, the top sixteenth 4."""
    places = np.empty(len(scores), dtype=np.int64)
    places[np.argsort(scores, kind="stable")] = np.arange(len(scores))
    return np.searchsorted(np.array(_CUTS) * len(scores), places, side="right")


def share_right(probabilities: np.ndarray, rows: np.ndarray, answers: np.ndarray, strata: np.ndarray) -> Share:
    """Estimate the share of right pairs by a judge's probabilities, corrected by decisions.

    The mean probability is corrected by the mean of answer less probability among the decisions of each stratum, which
    is right however wrong the judge is, and the surer the better the judge. A stratum with fewer than two decisions is
    joined with the next one above it, the last with the one below.

    Args:
        probabilities: [P]. Those of decided pairs must not have seen their answers: `Calibration.held_out`.
        rows: [n] places of the decided pairs, each once, drawn at random within their stratum.
        answers: bool [n], which of them are right.
        strata: int [P] from 0.

    Returns:
        The share. With fewer than two decisions it is the judge's alone, and its interval is all of 0..1.
    """
    if len(rows) < 2:
        return Share(float(probabilities.mean()), 0.0, 1.0, len(rows))
    strata = _join(strata, rows)
    drawn = strata[rows]
    sizes = np.bincount(strata)
    counts = np.bincount(drawn)
    weights = sizes / len(strata)

    errors = answers - probabilities[rows]
    means = np.bincount(drawn, errors) / counts
    value = float(np.clip(probabilities.mean() + weights @ means, 0, 1))

    # Few decisions of a stratum may all have small errors by chance: as many as `_PRIOR` more have those expected.
    squares = np.bincount(drawn, (errors - means[drawn]) ** 2)
    expected = np.bincount(strata, probabilities * (1 - probabilities)) / sizes
    freedom = counts - 1 + _PRIOR
    spreads = (squares + _PRIOR * expected) / freedom
    variances = weights**2 * spreads / counts * (1 - counts / sizes)
    variance = variances.sum()
    if not variance:
        return Share(value, value, value, len(rows))

    smoothed = (value * len(rows) + 2) / (len(rows) + 4)
    size = smoothed * (1 - smoothed) / variance
    quantile = _student(variance**2 / (variances**2 / freedom).sum())
    return Share(value, *wilson(value, size, quantile), len(rows))


def share_by_rank(
    probabilities: np.ndarray, rows: np.ndarray, answers: np.ndarray, strata: np.ndarray, ranks: np.ndarray
) -> dict[str, Share]:
    """Estimate the share of right pairs as `share_right` does for each span of `RANKS`, such as "3-5".

    Args:
        ranks: int [P] from 1. Spans without any pair are left out.
    """
    shares = {}
    for first, last in RANKS:
        inside = (ranks >= first) & (ranks <= last)
        if not inside.any():
            continue
        places = np.cumsum(inside) - 1
        decided = inside[rows]
        name = str(first) if first == last else f"{first}-{last}"
        shares[name] = share_right(probabilities[inside], places[rows[decided]], answers[decided], strata[inside])
    return shares


def _join(strata: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Join strata [P] until each has two decisions, whose places are `rows`; return their new numbers [P]."""
    counts = np.bincount(strata[rows], minlength=strata.max() + 1)
    numbers = np.zeros(len(counts), dtype=np.int64)
    number = decisions = 0
    for stratum, count in enumerate(counts):
        numbers[stratum] = number
        decisions += count
        if decisions >= 2:
            number += 1
            decisions = 0
    return np.minimum(numbers, number - 1)[strata]


def _student(freedom: float) -> float:
    """Return the .975 quantile of Student's t distribution, by the expansion of Cornish and Fisher."""
    z = _NORMAL
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + terms[0] / freedom + terms[1] / freedom**2 + terms[2] / freedom**3
