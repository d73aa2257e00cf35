"""How well two reviewers agree, and what share of many a sample of judgements tells.

Sources: Cohen, "A coefficient of agreement for nominal scales", 1960; Wilson, "Probable inference, the law of
succession, and statistical inference", 1927.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Agreement:
    """Of two reviewers.

    Attributes:
        pairs: that both judged.
        same: share of them with the same answer, 0..1.
        kappa: how far that is above chance, 1 where they agree in all; None where both always gave the same answer.
        low, high: its interval, by Cohen's large-sample error.
    """

    pairs: int
    same: float
    kappa: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Share:
    """A share of many, told by a simple random sample.

    Attributes:
        judged: of the sample.
        value: share in it, 0..1; None where nothing was judged.
        low, high: Wilson's interval.
    """

    judged: int
    value: float | None
    low: float
    high: float


def agreement_of(one: np.ndarray, other: np.ndarray, level: float = LEVEL) -> Agreement:
    """Cohen's kappa.

    Args:
        one, other: bool [n] answers of both on the same pairs.
        level: of the interval.
    """
    same = float((one == other).mean())
    chance = float(one.mean() * other.mean() + (1 - one.mean()) * (1 - other.mean()))
    if chance == 1.0:
        return Agreement(len(one), same)
    kappa = (same - chance) / (1 - chance)
    error = math.sqrt(same * (1 - same) / len(one)) / (1 - chance)
    reach = _normal(level) * error
    return Agreement(len(one), same, kappa, max(-1.0, kappa - reach), min(1.0, kappa + reach))


def share_of(found: int, judged: int, population: int, level: float = LEVEL) -> Share:
    """A share of a finite population, with Wilson's interval.

    A sample without replacement tells as much as one of n (N - 1) / (N - n) with replacement (Cochran, "Sampling
    Techniques", 1977, eq. 2.15).

    Args:
        found: in the sample.
        judged: n, size of the sample.
        population: N, from which it was drawn.
        level: of the interval.
    """
    if not judged:
        return Share(0, None, 0.0, 1.0)
    z, value = _normal(level), found / judged
    if judged >= population:
        return Share(judged, value, value, value)
    size = judged * (population - 1) / (population - judged)
    centre = (value + z * z / (2 * size)) / (1 + z * z / size)
    reach = z / (1 + z * z / size) * math.sqrt(value * (1 - value) / size + (z / (2 * size)) ** 2)
    # Of nothing, or of all, an end is the share itself, and rounding would put it beside.
    return Share(judged, value, min(value, max(0.0, centre - reach)), max(value, min(1.0, centre + reach)))


def _normal(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
