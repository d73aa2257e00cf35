"""Intervals of scores and differences, and when a difference may be called significant.

*Over test images*: bootstrap intervals tell how much of a score is due to which images happened to be in the test set.
The images are resampled with replacement, each with all its captions, since captions of one image rank alike; the
gallery stays whole, so ranks are those of the real test set. The same seed draws the same test sets.

*Over seeds*: Student's t distribution. A difference of two methods is *significant* when all of this holds:

1. It is a mean over three seeds or more, of pairs of runs that differ in the method alone.
2. Its interval over seeds (Student's t) and its interval over test images (paired bootstrap) both exclude zero.
3. Its p-value passes Holm's correction over all comparisons that are shown beside it.

Two models of which neither was trained have no seeds. Of them the interval over test images decides alone, without
Holm's correction (`itrpipe.evaluation.compare.mark_claims`).

The p-value is the largest of three: for other seeds, for other test images, and for both at once, because either
interval holds the other source still. With five seeds of a standard deviation of 7 and test images of one of 6, both
intervals exclude zero in 8.7 % of cases in which nothing differs.

Source: Efron, 1979, the percentile method; S. Holm, "A simple sequentially rejective multiple test procedure", 1979;
Student, 1908.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.evaluation.metrics import COMPARED, CUTOFFS, RECALLS, RSUM, Ranks, metrics

Figures = dict[str, dict[str, float]]
"""Metric -> value, low and high; of median ranks the value alone."""
_BLOCK_VALUES = 1 << 22
"""Resampled caption weights held at a time."""
_MOST_FREEDOM = 200
"""Degrees of freedom at which those of `Difference.p_value` stop, where Student's t is all but normal."""
_SEED = np.random.SeedSequence(0)
FEWEST_SEEDS = 3
"""Differences of fewer have no interval over seeds: of two, Student's t is twelve standard errors wide."""


class Interval(NamedTuple):
    """A measured value and its interval.

    Attributes:
        value: the metric, or the difference, on the test set as it is.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Tell whether all values within it have one sign."""
        return self.low > 0 or self.high < 0

    @property
    def nearer_half(self) -> float:
        """Return the distance of the value from the end that is nearer to zero."""
        if self.value > 0:
            return self.value - self.low
        return self.high - self.value


def check_options(samples: int, level: float) -> None:
    """Refuse options of intervals that no interval can have.

    Raises:
        UsageError: fewer than 100 resampled test sets, or a level that is not between 0 and 1.
    """
    if samples >= 100 and 0 < level < 1:
        return
    raise UsageError(f"samples is {samples} and level {level}; give 100 or more, and a share between 0 and 1")


def fold_figures(
    folds: Sequence[tuple[Ranks, np.ndarray]],
    samples: int,
    level: float,
) -> Figures:
    """Measure the mean of every metric over folds with its percentile interval; the images of each are resampled apart.

    Args:
        folds: of `itrpipe.evaluation.metrics.protocol_folds`: ranks, and the row of the image of each caption.
        samples: number of resampled test sets.
        level: share of them inside the interval, 0..1.

    Returns:
        `value`, `low` and `high` of each metric of `itrpipe.evaluation.metrics.metrics`, by its name; of median ranks,
        which have no interval, the value alone.
    """
    seeds = [_SEED]
    if len(folds) > 1:
        seeds = np.random.SeedSequence(0).spawn(len(folds))
    measured = []
    resampled = []
    for (ranks, caption_image), seed in zip(folds, seeds, strict=True):
        measured.append(metrics(ranks))
        resampled.append(_resampled_metrics(ranks, caption_image, samples, seed))

    figures = {}
    for name in resampled[0]:
        value = np.mean([fold[name] for fold in measured])
        draws = np.mean([fold[name] for fold in resampled], axis=0)
        figures[name] = _interval(value, draws, level)._asdict()
    for name in measured[0]:
        if name not in figures:
            total = sum(fold[name] for fold in measured)
            figures[name] = {"value": total / len(folds)}
    return figures


def mean_figures(
    values: Mapping[str, np.ndarray],
    query_image: np.ndarray,
    samples: int,
    level: float,
) -> Figures:
    """Return means over queries with their percentile intervals; the images that have a query are resampled.

    Args:
        values: name -> one number [Q] of every query, such as its average precision.
        query_image: [Q] number of the image each query is or belongs to.
        samples, level: as for `fold_figures`.
    """
    images, rows = np.unique(query_image, return_inverse=True)
    weights = _image_weights(len(images), len(rows), samples)
    draws = _resampled_means(values, rows, len(images), weights)
    figures = {}
    for name, numbers in values.items():
        figures[name] = _interval(np.mean(numbers), draws[name], level)._asdict()
    return figures


def group_mean_interval(
    values: np.ndarray,
    query_image: np.ndarray,
    query_group: np.ndarray,
    samples: int,
    level: float,
) -> Interval:
    """Return the percentile interval of the mean over groups of their means over queries.

    A group that a resampled test set has no query of does not count there.

    Args:
        values: [Q] one number of every query.
        query_image: [Q] number of the image each query belongs to.
        query_group: [Q] its group.
        samples, level: as for `fold_figures`.
    """
    images, rows = np.unique(query_image, return_inverse=True)
    groups, columns = np.unique(query_group, return_inverse=True)
    shape = len(images), len(groups)
    sums = np.zeros(shape)
    counts = np.zeros(shape)
    np.add.at(sums, (rows, columns), values)
    np.add.at(counts, (rows, columns), 1)

    def mean_over_groups(weights: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # 0 / 0 of a group without a query
            group_means = weights @ sums / (weights @ counts)
            return np.nanmean(group_means, axis=-1)

    draws = []
    for weights in _image_weights(len(images), len(values), samples):
        draws.append(mean_over_groups(weights))
    value = mean_over_groups(np.ones(len(images)))
    return _interval(value, np.concatenate(draws), level)


def _interval(value: Any, draws: np.ndarray, level: float) -> Interval:
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(draws, [tail, 100.0 - tail])
    return Interval(float(value), float(low), float(high))


def _resampled_metrics(
    ranks: Ranks,
    caption_image: np.ndarray,
    samples: int,
    seed: np.random.SeedSequence = _SEED,
) -> dict[str, np.ndarray]:
    """Return the metrics but the median ranks [samples] of every resampled test set."""
    images = len(ranks.images_to_texts)
    captions = len(caption_image)
    query_image = {"i2t": np.arange(images), "t2i": caption_image}
    resampled = {}
    for side, side_ranks in ranks.sides.items():
        mean_rank = f"{side}_mean_rank"
        values = {}
        for k in CUTOFFS:
            values[f"{side}_r{k}"] = 100.0 * (side_ranks < k)
        values[mean_rank] = side_ranks
        weights = _image_weights(images, captions, samples, seed)
        resampled |= _resampled_means(values, query_image[side], images, weights)
        resampled[mean_rank] += 1.0
    resampled[RSUM] = np.sum([resampled[name] for name in RECALLS], axis=0)
    return resampled


def _resampled_means(
    values: Mapping[str, np.ndarray],
    query_image: np.ndarray,
    images: int,
    weights: Iterator[np.ndarray],
) -> dict[str, np.ndarray]:
    """Return means [samples] over the queries of every resampled test set; weights are those of `_image_weights`."""
    sums = [np.bincount(query_image, minlength=images)]
    for numbers in values.values():
        sums.append(np.bincount(query_image, numbers, images))
    per_image = np.stack(sums, axis=1)  # [N, 1 + values]

    blocks = [block @ per_image for block in weights]
    count, *totals = np.concatenate(blocks).T
    means = {}
    for name, total in zip(values, totals, strict=True):
        means[name] = total / count
    return means


def _image_weights(
    images: int,
    most: int,
    samples: int,
    seed: np.random.SeedSequence = _SEED,
) -> Iterator[np.ndarray]:
    """Yield how often each image occurs in each resampled test set: blocks [s, N]; `most` bounds their memory."""
    generator = np.random.default_rng(seed)
    height = max(1, _BLOCK_VALUES // max(images, most))
    for start in range(0, samples, height):
        count = min(height, samples - start)
        first_cells = images * np.arange(count)[:, None]
        cells = first_cells + generator.integers(images, size=(count, images))
        weights = np.bincount(cells.ravel(), minlength=count * images)
        yield weights.reshape(count, images).astype(np.float64)


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of the difference of one metric.

    Attributes:
        value: the mean.
        seeds: interval over seeds, of Student's t distribution; None for fewer than `FEWEST_SEEDS`.
        images: interval over test images, of the paired bootstrap.
        count: number of seeds.
        level: share of seeds, or of test sets, that the intervals hold.
    """

    value: float
    seeds: Interval | None
    images: Interval
    count: int
    level: float

    @property
    def p_value(self) -> float:
        """Return the largest two-sided p-value: for seeds, for test images, and for both at once; 1 for too few seeds.

            t = value / sqrt(s^2 / n + d^2)    with (n - 1) (s^2 / n + d^2) / (s^2 / n) degrees of freedom, rounded down

        s is the deviation of the n seeds, d that of the bootstrap, read off the end of its interval nearer to zero.
        The degrees of freedom are fewer than Welch's and Satterthwaite's, whose test is wrong too often for few seeds.
        """
        if self.seeds is None or not self.value:
            return 1.0
        normal = NormalDist()
        freedom = self.count - 1
        size = abs(self.value)
        over_images = self.images.nearer_half / normal.inv_cdf((1 + self.level) / 2)
        over_seeds = self.seeds.nearer_half / quantile_within(self.level, freedom)
        p_values = [0.0]
        freedom_of_both = _MOST_FREEDOM  # where every seed gave the same, and the images decide
        if over_images:
            p_values.append(2 * normal.cdf(-size / over_images))
        if over_seeds:
            p_values.append(1 - probability_within(size / over_seeds, freedom))
            ratio = over_images / over_seeds
            both = math.floor(freedom * (1 + ratio**2) + 1e-9)
            freedom_of_both = min(both, _MOST_FREEDOM)
        deviation = math.hypot(over_images, over_seeds)
        if deviation:
            p_values.append(1 - probability_within(size / deviation, freedom_of_both))
        return max(p_values)

    def as_json(self) -> dict[str, Any]:
        """Return its attributes, of an interval `value`, `low` and `high`."""
        facts = dict(vars(self))
        facts["images"] = self.images._asdict()
        if self.seeds is not None:
            facts["seeds"] = self.seeds._asdict()
        return facts


def paired_differences(
    pairs: Sequence[tuple[Ranks, Ranks]],
    caption_image: np.ndarray,
    samples: int,
    level: float,
) -> dict[str, Difference]:
    """Return the mean over several pairs of systems of the differences `second - first`, of every metric in `COMPARED`.

    The pairs are the same two methods trained with several seeds. All of them are evaluated on the same resampled
    images, which cancels what makes an image hard for both; so the interval over images tells how the mean over these
    very seeds depends on the images, and nothing about others.

    Args:
        pairs: ranks of the system compared with and of the system under test, one pair for each seed.
        caption_image: [T] row of the image each caption belongs to.
        samples: number of resampled test sets.
        level: share of them, and of seeds, inside the intervals, 0..1.
    """
    by_seed = {name: [] for name in COMPARED}
    draws = dict.fromkeys(COMPARED, np.zeros(samples))
    for first, second in pairs:
        before = metrics(first)
        after = metrics(second)
        draws_before = _resampled_metrics(first, caption_image, samples)
        draws_after = _resampled_metrics(second, caption_image, samples)
        for name in COMPARED:
            by_seed[name].append(after[name] - before[name])
            gain = draws_after[name] - draws_before[name]
            draws[name] = draws[name] + gain / len(pairs)

    differences = {}
    for name, values in by_seed.items():
        count = len(values)
        images = _interval(np.mean(values), draws[name], level)
        seeds = None
        if count >= FEWEST_SEEDS:
            seeds = seed_interval(values, level)
        differences[name] = Difference(images.value, seeds, images, count, level)
    return differences


def seed_interval(differences: Sequence[float], level: float) -> Interval:
    """Return the mean of the differences of n seeds with its interval, Student's t with n - 1 degrees of freedom.

        mean ± t * s / sqrt(n)

    Args:
        differences: one for each seed, two at least.
        level: 0..1.
    """
    count = len(differences)
    mean = fmean(differences)
    deviation = float(np.std(differences, ddof=1))
    half = quantile_within(level, count - 1) * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def significances(differences: Sequence[Difference]) -> list[bool]:
    """Return which of the differences that are shown together are significant: by the p-values as Holm corrects them.

    p'_(k) = max_{j <= k} min(1, (m - j + 1) p_(j))    for the k-th smallest of m

    One without an interval over seeds is not, and is none of the m.
    """
    tested = []
    excludes_zero = {}
    for index, difference in enumerate(differences):
        if difference.seeds is not None:
            tested.append((difference.p_value, index))
            excludes_zero[index] = difference.seeds.excludes_zero and difference.images.excludes_zero

    significant = [False] * len(differences)
    highest = 0.0
    for place, (p_value, index) in enumerate(sorted(tested)):
        corrected = (len(tested) - place) * p_value
        highest = max(highest, corrected)
        significant[index] = excludes_zero[index] and highest <= 1 - differences[index].level
    return significant


def probability_within(t: float, degrees: int) -> float:
    """Return the probability that a t-distributed number lies between -t and t.

    A finite sum of powers of cos(arctan(t / sqrt(degrees))), so exact for every whole number of degrees of freedom.

    Args:
        t: 0 or more.
        degrees: of freedom, 1 or more.

    Source: Abramowitz and Stegun, 1964, equations 26.7.3 and 26.7.4.
    """
    is_odd = degrees % 2
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    term = cosine**is_odd
    total = 0.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    total *= math.sin(angle)
    if is_odd:
        return (angle + total) * 2 / math.pi
    return total


@functools.lru_cache(maxsize=1_000)
def quantile_within(level: float, degrees: int) -> float:
    """Return the t between whose negative and itself a share of the distribution lies: 2.776 for 0.95 and 4.

    Args:
        level: the share, above 0 and below 1.
        degrees: of freedom, 1 or more.
    """
    low = 0.0
    high = 1.0
    while probability_within(high, degrees) < level:
        low = high
        high = 2 * high
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        if probability_within(middle, degrees) < level:
            low = middle
        else:
            high = middle
