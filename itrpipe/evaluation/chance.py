"""The recall that scores reach by chance: what it would be if the captions belonged to images at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.errors import DataError
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import ranks
from itrpipe.evaluation.rsum import CUTOFFS

LIMIT = 4.5
"""Standard deviations that a recall may be off by chance.

A canary looks at twelve recalls, whose tails are heavier than normal where few queries hit: of 100 images with five
captions, one of them is off by three deviations in 5 % of cases, by this many in 0.2 %.
"""
_BLOCK_VALUES = 1 << 20
"""Scores selected from at a time."""
_ROUNDING = 1e-6
"""Percent that sums of shares may be off."""


@dataclass(frozen=True)
class Chance:
    """A recall, and its distribution over all ways to give the images to the groups of captions, in percent.

    Attributes:
        value: the recall of the images and captions as they belong together.
        mean: over all ways.
        deviation: standard deviation over all ways.
    """

    value: float
    mean: float
    deviation: float

    @property
    def low(self) -> float:
        """The lowest recall that passes for chance."""
        return max(0.0, self.mean - LIMIT * self.deviation)

    @property
    def high(self) -> float:
        """The highest recall that passes for chance."""
        return min(100.0, self.mean + LIMIT * self.deviation)

    @property
    def holds(self) -> bool:
        """Whether the recall lies within `LIMIT` standard deviations of chance."""
        return self.low - _ROUNDING <= self.value <= self.high + _ROUNDING


def random_recalls(images: int, captions: int) -> dict[str, float]:
    """Recalls in percent, and their sum, that a random order may expect where only the own image or caption is right.

    Args:
        images: N.
        captions: T, as many for every image: of T captions in random order, none of an image's own T / N is among the
            first K with the probability of drawing K others.
    """
    found = {f"{side}_r{k}": random_recall(side, images, captions, k) for side in ("i2t", "t2i") for k in CUTOFFS}
    return {**found, "rsum": sum(found.values())}


def random_recall(side: str, images: int, captions: int, k: int) -> float:
    """The same at any K, of one direction, `i2t` or `t2i`."""
    if side == "t2i":
        return 100 * min(k, images) / images
    places = np.arange(min(k, captions))
    missed = np.prod(np.maximum(captions - captions / images - places, 0) / (captions - places))
    return 100 * float(1 - missed)


def chance_of_recalls(scores: np.ndarray, caption_image: np.ndarray) -> dict[str, Chance]:
    """Compare every recall with what the same scores give when images are dealt to captions at random.

    A group is the captions of one image. Let a(i, g) count the queries that hit within K if group g belonged to image
    i: for image queries 1 or 0, for caption queries how many captions of the group. A way to deal the N images to the N
    groups hits sum_g a(i(g), g) times, and over all N! ways, each as likely as any other,

        mean = 1/N sum a        variance = 1/(N - 1) sum d(i, g)^2
        d(i, g) = a(i, g) - 1/N sum_j a(j, g) - 1/N sum_h a(i, h) + 1/N^2 sum a

    This is exact whatever the scores are. A binomial distribution would not be: captions of one image resemble each
    other, so that their ranks rise and fall together, and some images score high with every caption.

    Args:
        scores: [N, T] score of image n with caption t, higher is better; N is 2 or more.
        caption_image: [T] row of the image each caption belongs to.

    Returns:
        `i2t_r1` .. `t2i_r10`.

    Raises:
        DataError: as for `itrpipe.evaluation.ranks.ranks`, or there is one image only.

    Source: W. Hoeffding, "A combinatorial central limit theorem", 1951, Theorem 2.
    """
    if len(scores) < 2:
        raise DataError("one image alone can be dealt to its captions in one way only: compare with chance on a split")
    found = metrics(ranks(scores, caption_image))
    sides = (("i2t", *_of_images(scores, caption_image)), ("t2i", *_of_captions(scores, caption_image)))
    return {
        f"{side}_r{k}": _moments(found[f"{side}_r{k}"], pairs[ahead < k], scores.shape[0], queries)
        for side, queries, pairs, ahead in sides
        for k in CUTOFFS
    }


def _of_images(scores: np.ndarray, caption_image: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Number of image queries; pairs of image and group [H, 2], each once, and the captions ahead of its best one."""
    largest = int(np.bincount(caption_image).max())
    image, group, ahead = _leading(scores, caption_image, largest)
    order = np.argsort(ahead, kind="stable")
    # Of the captions of a group the first, its best, counts.
    _, best = np.unique(image[order] * len(scores) + group[order], return_index=True)
    kept = order[best]
    return len(scores), np.stack([image, group], axis=1)[kept], ahead[kept]


def _of_captions(scores: np.ndarray, caption_image: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Number of caption queries; pairs of image and group of a caption [H, 2], and the images ahead of that image."""
    caption, image, ahead = _leading(scores.T, np.arange(len(scores)), 1)
    return scores.shape[1], np.stack([image, caption_image[caption]], axis=1), ahead


def _leading(scores: np.ndarray, group: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Candidates that would be found within the highest K if their group belonged to the query.

    Args:
        scores: [Q, C] of queries with candidates.
        group: [C] of each candidate.
        largest: candidates of the largest group.

    Returns:
        Queries [H], groups [H], and how many candidates of other groups score at least as high [H], fewer than K.
    """
    # Ties that the width cuts off do not matter: a candidate tied with the last one has K others ahead within it.
    width = min(scores.shape[1], max(CUTOFFS) + largest)
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    found = []
    for start in range(0, len(scores), height):
        block = scores[start : start + height]
        columns = np.argpartition(block, block.shape[1] - width, axis=1)[:, -width:]
        best, own = np.take_along_axis(block, columns, axis=1), group[columns]
        rivals = (best[:, None, :] >= best[:, :, None]) & (own[:, None, :] != own[:, :, None])  # [q, width, width]
        ahead = rivals.sum(axis=2)
        row, place = np.nonzero(ahead < max(CUTOFFS))
        found.append((row + start, own[row, place], ahead[row, place]))
    row, own, ahead = (np.concatenate(each) for each in zip(*found, strict=True))
    return row, own, ahead


def _moments(value: float, pairs: np.ndarray, images: int, queries: int) -> Chance:
    """Chance of a recall from its hits: pairs of image and group [H, 2], as often as they hit."""
    _, counts = np.unique(pairs[:, 0] * images + pairs[:, 1], return_counts=True)
    of_image, of_group = (np.bincount(side, minlength=images).astype(np.float64) for side in pairs.T)
    total = float(len(pairs))
    squares = float((counts.astype(np.float64) ** 2).sum())
    spread = squares - ((of_image**2).sum() + (of_group**2).sum()) / images + (total / images) ** 2
    percent = 100.0 / queries
    return Chance(value, percent * total / images, percent * float(np.sqrt(max(0.0, spread) / (images - 1))))
