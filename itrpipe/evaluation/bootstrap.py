"""Bootstrap confidence intervals: how much of a score is due to which images happened to be in the test set.

The images are resampled with replacement, each with all its captions, since captions of one image rank alike; the
gallery stays whole, so ranks are those of the real test set. The same seed draws the same test sets.

Source: Efron, 1979; the percentile method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.evaluation.metrics import CUTOFFS, RECALLS, RSUM, SIDES, Ranks, metrics

_BLOCK_VALUES = 1 << 22
"""Resampled caption weights held at a time."""
Seed = int | np.random.SeedSequence


@dataclass(frozen=True)
class Interval:
    """A measured value and its percentile interval.

    Attributes:
        value: the metric, or the difference, on the test set as it is.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def fold_intervals(
    folds: Sequence[tuple[Ranks, np.ndarray]], samples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Percentile interval of the mean over folds of every metric; the images of each fold are resampled apart.

    Args:
        folds: of `itrpipe.evaluation.metrics.protocol_folds`: ranks, and the row of the image of each caption.
        samples: number of resampled test sets.
        level: share of them inside the interval, 0..1.
        seed: of the resampling.

    Returns:
        Interval of each metric of `itrpipe.evaluation.metrics.metrics` but the median ranks, by its name.
    """
    measured = [metrics(each) for each, _ in folds]
    seeds = np.random.SeedSequence(seed).spawn(len(folds)) if len(folds) > 1 else [seed]
    drawn = [_resampled(*fold, samples, own) for fold, own in zip(folds, seeds, strict=True)]
    means = {name: np.mean([each[name] for each in drawn], axis=0) for name in drawn[0]}
    return _percentiles({name: float(np.mean([each[name] for each in measured])) for name in means}, means, level)


def mean_intervals(
    values: Mapping[str, np.ndarray],
    query_image: np.ndarray,
    images: int,
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile interval of means over queries.

    Args:
        values: name -> one number [Q] of every query, such as its average precision.
        query_image: [Q] row of the image each query is or belongs to.
        images: N.
        samples, level, seed: as for `fold_intervals`.
    """
    drawn = _means(values, query_image, images, len(query_image), samples, seed)
    return _percentiles({name: float(np.mean(each)) for name, each in values.items()}, drawn, level)


def group_mean_interval(
    values: np.ndarray,
    query_image: np.ndarray,
    query_group: np.ndarray,
    sizes: tuple[int, int],
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the mean over groups of their means over queries, .

    A group that a resampled test set has no query of does not count there.

    Args:
        values: [Q] one number of every query.
        query_image: [Q] row of the image each query belongs to.
        query_group: [Q] row of its group; every group has a query.
        sizes: N images and G groups.
        samples, level, seed: as for `fold_intervals`.
    """
    images, groups = sizes
    cells = query_image * groups + query_group
    sums, counts = (
        np.bincount(cells, weights=each, minlength=images * groups).reshape(sizes)
        for each in (values, np.ones(len(values)))
    )  # [N, G] each

    def mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
        seen = count > 0
        return np.where(seen, total / np.maximum(count, 1), 0.0).sum(axis=-1) / seen.sum(axis=-1)

    drawn = [mean(weights @ sums, weights @ counts) for weights in _image_weights(images, len(values), samples, seed)]
    measured = float(mean(sums.sum(axis=0), counts.sum(axis=0)))
    return _percentiles({"": measured}, {"": np.concatenate(drawn)}, level)[""]


def paired_intervals(
    pairs: Sequence[tuple[Ranks, Ranks]],
    caption_image: np.ndarray,
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile interval of the mean over several pairs of systems of the differences `second - first`.

    The pairs are the same two methods trained with several seeds. All of them are evaluated on the same resampled
    images, which cancels what makes an image hard for both; so the interval tells how the mean over these very seeds
    depends on the images, and nothing about others.

    Args:
        pairs: ranks of the system compared with and of the system under test, one pair for each seed.
        caption_image: [T] row of the image each caption belongs to.
        samples: number of resampled test sets.
        level: share of them inside the interval, 0..1.
        seed: of the resampling, not of training.
    """
    measured = [(metrics(first), metrics(second)) for first, second in pairs]
    drawn: dict[str, np.ndarray] = {}
    for first, second in pairs:
        before, after = (_resampled(side, caption_image, samples, seed) for side in (first, second))
        for name in before:
            drawn[name] = drawn.get(name, 0.0) + (after[name] - before[name]) / len(pairs)
    values = {name: float(np.mean([after[name] - before[name] for before, after in measured])) for name in drawn}
    return _percentiles(values, drawn, level)


def _percentiles(values: dict[str, float], drawn: dict[str, np.ndarray], level: float) -> dict[str, Interval]:
    tail = 50.0 * (1.0 - level)
    bounds = {name: np.percentile(sample, [tail, 100.0 - tail]) for name, sample in drawn.items()}
    return {name: Interval(value, *map(float, bounds[name])) for name, value in values.items()}


def _resampled(split: Ranks, caption_image: np.ndarray, samples: int, seed: Seed) -> dict[str, np.ndarray]:
    """The metrics but the median ranks [samples] of every resampled test set."""
    images, texts, found = len(split.images_to_texts), len(caption_image), {}
    sides = (split.images_to_texts, np.arange(images)), (split.texts_to_images, caption_image)
    for direction, (side, rows) in zip(SIDES, sides, strict=True):
        values = {f"{direction}_r{k}": 100.0 * (side < k) for k in CUTOFFS} | {f"{direction}_mean_rank": side}
        found |= _means(values, rows, images, texts, samples, seed)
        found[f"{direction}_mean_rank"] += 1.0
    return found | {RSUM: np.sum([found[name] for name in RECALLS], axis=0)}


def _means(
    values: Mapping[str, np.ndarray], query_image: np.ndarray, images: int, most: int, samples: int, seed: Seed
) -> dict[str, np.ndarray]:
    """Means [samples] over the queries of every resampled test set; `most` bounds the memory."""
    per_query = np.stack([np.ones(len(query_image)), *values.values()])
    per_image = np.stack([np.bincount(query_image, weights=each, minlength=images) for each in per_query], axis=1)
    sums = np.concatenate([weights @ per_image for weights in _image_weights(images, most, samples, seed)])
    return {name: sums[:, column] / sums[:, 0] for column, name in enumerate(values, 1)}


def _image_weights(images: int, most: int, samples: int, seed: Seed) -> Iterator[np.ndarray]:
    """How often each image occurs in each resampled test set: blocks [s, N]."""
    generator = np.random.default_rng(seed)
    height = max(1, _BLOCK_VALUES // max(images, most))
    for start in range(0, samples, height):
        count = min(height, samples - start)
        drawn = generator.integers(images, size=(count, images)) + images * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * images).reshape(count, images).astype(np.float64)
