"""Shares of right answers among many pairs, estimated from few decisions of people.

Shapes: P pairs, n decisions.

Sources: Wilson, "Probable inference, the law of succession, and statistical inference", 1927; Cochran, "Sampling
Techniques", 1977.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

_NORMAL = NormalDist().inv_cdf(0.975)


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
