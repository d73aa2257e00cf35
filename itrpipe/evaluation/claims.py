"""When a difference may be called significant and a method better: one rule, for every sentence and every mark.

A difference of two methods is *significant* when all of this holds:

1. It is a mean over two seeds or more, of pairs of runs that differ in the method alone.
2. Its interval over seeds (Student's t) and its interval over test images (paired bootstrap) both exclude zero.
3. Its p-value passes Holm's correction over all comparisons that are shown beside it.

The p-value is the largest of three: for other seeds, for other test images, and for both at once, because either
interval holds the other source still. With five seeds of a standard deviation of 7 and test images of one of 6, both
intervals exclude zero in 8.7 % of cases in which nothing differs.

A method is *better* than its baselines when its differences from all of them are significant and above zero. At least
one of them has to be a baseline, a simpler method with as many epochs or as much time. Who is better than all baselines
is better than the strongest one; so nothing is chosen by its score on the test set.

Source: S. Holm, "A simple sequentially rejective multiple test procedure", 1979; Student, 1908.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from itrpipe.evaluation.bootstrap import Interval

_MOST_FREEDOM = 200
"""Degrees of freedom from which on Student's t is taken for normal."""


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of the difference of one metric.

    Attributes:
        value: the mean.
        seeds: interval over seeds, of Student's t distribution; None for a single seed.
        images: interval over test images, of the paired bootstrap.
        count: number of seeds.
        level: share of seeds, or of test sets, that the intervals hold.
        significant: by the rule above, among the differences that `judged` was given.
    """

    value: float
    seeds: Interval | None
    images: Interval
    count: int
    level: float
    significant: bool = False

    @property
    def p_value(self) -> float:
        """Two-sided; the largest for seeds, for test images, and for both at once; 1 for a single seed.

            t = value / sqrt(s^2 / n + d^2)    with (n - 1) (s^2 / n + d^2) / (s^2 / n) degrees of freedom, rounded down

        s is the deviation of the n seeds, d that of the bootstrap, read off the end of its interval nearer to zero.
        The degrees of freedom are fewer than Welch's and Satterthwaite's, whose test is wrong too often for few seeds.
        """
        if self.seeds is None or not self.value:
            return 1.0
        normal, freedom = NormalDist(), self.count - 1
        over_images = _nearer_half(self.images) / normal.inv_cdf((1 + self.level) / 2)
        over_seeds = _nearer_half(self.seeds) / quantile_within(self.level, freedom)
        if not over_seeds:  # every seed gave the same, and the images decide
            return _two_sided(self.value, over_images, _MOST_FREEDOM)
        share = (over_images / over_seeds) ** 2
        both = min(math.floor(freedom * (1 + share) + 1e-9), _MOST_FREEDOM)
        return max(
            _two_sided(self.value, over_seeds, freedom),
            2 * normal.cdf(-abs(self.value) / over_images) if over_images else 0.0,
            _two_sided(self.value, math.hypot(over_images, over_seeds), both),
        )

    @property
    def excludes_zero(self) -> bool:
        """Whether both intervals do."""
        return self.seeds is not None and excludes_zero(self.seeds) and excludes_zero(self.images)


def excludes_zero(interval: Interval) -> bool:
    """Whether all values within an interval have one sign."""
    return interval.low > 0 or interval.high < 0


def seed_interval(differences: Sequence[float], level: float) -> Interval:
    """Mean of the differences of n seeds with its interval, Student's t with n - 1 degrees of freedom.

        mean ± t * s / sqrt(n)

    Args:
        differences: one for each seed, two at least.
        level: 0..1.
    """
    count, mean = len(differences), fmean(differences)
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (count - 1))
    half = quantile_within(level, count - 1) * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number: rejecting those up to alpha is wrong at all with probability alpha at most.

    p'_(k) = max_{j <= k} min(1, (m - j + 1) p_(j))    for the k-th smallest of m
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, highest = [0.0] * len(order), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p_values[index]))
        corrected[index] = highest
    return corrected


def significances(differences: Sequence[Difference]) -> list[bool]:
    """Which of the differences that are shown together are significant."""
    corrected = holm([each.p_value for each in differences])
    return [
        each.excludes_zero and p_value <= 1 - each.level for each, p_value in zip(differences, corrected, strict=True)
    ]


def verdict(differences: Sequence[Difference]) -> str:
    """What the differences of one method from all of its baselines say: `better`, `worse` than one, or `open`."""
    if differences and all(each.significant and each.value > 0 for each in differences):
        return "better"
    return "worse" if any(each.significant and each.value < 0 for each in differences) else "open"


def _two_sided(value: float, error: float, freedom: int) -> float:
    return 1 - probability_within(abs(value) / error, freedom) if error else 0.0


def _nearer_half(interval: Interval) -> float:
    """Distance of the mean from the end of its interval that is nearer to zero."""
    return interval.value - interval.low if interval.value > 0 else interval.high - interval.value


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
