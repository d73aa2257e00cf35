"""Student's t distribution, for intervals over a handful of seeds."""

from __future__ import annotations

import functools
import math


def probability_within(t: float, degrees: int) -> float:
    """Probability that a t-distributed number lies between -t and t.

    A finite sum of powers of cos(arctan(t / sqrt(degrees))), so exact for every whole number of degrees of freedom.

    Args:
        t: 0 or more.
        degrees: of freedom, 1 or more.

    Source: Abramowitz and Stegun, 1964, equations 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if degrees % 2 else (1.0, 0.0)
    for power in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return (angle + sine * total) * 2 / math.pi if degrees % 2 else sine * total


@functools.lru_cache(maxsize=1_000)
def quantile_within(level: float, degrees: int) -> float:
    """The t between whose negative and itself a share `level` of the distribution lies: 2.776 for 0.95 and 4.

    Args:
        level: above 0 and below 1.
        degrees: of freedom, 1 or more.
    """
    low, high = 0.0, 1.0
    while probability_within(high, degrees) < level:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if probability_within(middle, degrees) < level else (low, middle)
    return high
