"""Evaluation protocols: which part of a split is ranked, and whether results are averaged over folds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.evaluation.rank_statistics import mean_rank, median_rank
from itrpipe.evaluation.ranks import Ranks, ranks
from itrpipe.evaluation.recall import recall
from itrpipe.evaluation.rsum import CUTOFFS, rsum


@dataclass(frozen=True)
class Protocol:
    """One way to evaluate a split.

    Attributes:
        description: one line for reports.
        images: number of images looked at, from the first on; None for all.
        folds: number of equal, disjoint, consecutive parts they are cut into, each ranked on its own.
        captions: number of captions looked at of each image, from the first on; None for all.
    """

    description: str
    images: int | None = None
    folds: int = 1
    captions: int | None = None

    def applies(self, images: int) -> bool:
        """Whether a split of so many images is large enough."""
        return self.images is None or images >= self.images


PROTOCOLS = {
    "full": Protocol("every image and caption of the split"),
    "coco-1k": Protocol(
        "mean over five folds of 1,000 images with their first five captions, from the first 5,000", 5000, 5, 5
    ),
    "coco-5k": Protocol("the first 5,000 images at once, with their first five captions", images=5000, captions=5),
}
"""Protocols by name. `full` is what Flickr30K reports (1,000 images); COCO reports `coco-1k` and `coco-5k`.

The published features of COCO come with five captions of each image: 25,000 of its test split, whose annotations
hold a few more. Source: VSE++ and SCAN, published evaluation code and data.
"""


def metrics(split: Ranks) -> dict[str, float]:
    """All metrics of a set of ranks: `i2t_r1` .. `t2i_mean_rank` and `rsum`; recalls in percent, ranks from one."""
    values: dict[str, float] = {}
    for direction, side in (("i2t", split.images_to_texts), ("t2i", split.texts_to_images)):
        values |= {f"{direction}_r{k}": recall(side, k) for k in CUTOFFS}
        values[f"{direction}_median_rank"] = median_rank(side)
        values[f"{direction}_mean_rank"] = mean_rank(side)
    values["rsum"] = rsum(split)
    return values


def evaluate(protocol: str, scores: np.ndarray, caption_image: np.ndarray) -> dict[str, float]:
    """Metrics of a score matrix under a protocol; over folds, the mean of each metric.

    Args:
        protocol: a name in `PROTOCOLS`.
        scores: [N, T] score of image n with caption t.
        caption_image: [T] row of the image each caption belongs to.

    Raises:
        UsageError: there is no such protocol, or the split is too small for it.
        DataError: the scores cannot be ranked.
    """
    folds = [metrics(fold) for fold, _ in protocol_folds(protocol, scores, caption_image)]
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}


def protocol_folds(protocol: str, scores: np.ndarray, caption_image: np.ndarray) -> list[tuple[Ranks, np.ndarray]]:
    """Ranks within each fold of a protocol, in the order of the images, and the row of the image of each caption there.

    Arguments and errors are as for `evaluate`.
    """
    if protocol not in PROTOCOLS:
        raise UsageError(f"no protocol is called {protocol!r}: choose one of {', '.join(PROTOCOLS)}")
    chosen, images = PROTOCOLS[protocol], scores.shape[0]
    if not chosen.applies(images):
        raise UsageError(f"protocol {protocol} needs {chosen.images} images, the split has {images}: use full")
    if chosen.images is None:
        return [(ranks(scores, caption_image), caption_image)]
    columns = _first_columns(caption_image, chosen.captions)
    size = chosen.images // chosen.folds
    return [_fold(scores, caption_image, columns, start, size) for start in range(0, chosen.images, size)]


def _first_columns(caption_image: np.ndarray, captions: int | None) -> np.ndarray:
    """Columns, rising, of the first so many captions of every image."""
    order = np.argsort(caption_image, kind="stable")
    grouped = caption_image[order]
    place = np.arange(len(order)) - np.searchsorted(grouped, grouped)  # of a caption within its image
    return np.sort(order if captions is None else order[place < captions])


def _fold(
    scores: np.ndarray, caption_image: np.ndarray, columns: np.ndarray, start: int, size: int
) -> tuple[Ranks, np.ndarray]:
    own = columns[(caption_image[columns] >= start) & (caption_image[columns] < start + size)]
    rows = caption_image[own] - start
    return ranks(scores[start : start + size, _slice_or(own)], rows), rows


def _slice_or(columns: np.ndarray) -> slice | np.ndarray:
    """The columns as a slice where they follow each other: selecting them then copies no scores."""
    if len(columns) and columns[-1] - columns[0] + 1 == len(columns):
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
