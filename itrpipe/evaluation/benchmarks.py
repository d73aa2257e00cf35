"""What scores of pairs say of a model on a benchmark of hard negatives; ties are wrong everywhere.

Shapes: P pairs, E examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.evaluation.bootstrap import Interval, group_mean_interval, mean_intervals


@dataclass(frozen=True)
class ScoredPairs:
    """Captions and their hard negatives as a model scores them.

    Attributes:
        scores: float32 [P], of the image with the caption.
        negative_scores: float32 [P], of the image with the negative.
        images: int64 [P], row of the image file.
        categories, groups: text [P]; empty: none.
    """

    scores: np.ndarray
    negative_scores: np.ndarray
    images: np.ndarray
    categories: np.ndarray
    groups: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """bool [P], negatives that score below their caption."""
        return self.scores > self.negative_scores

    def only(self, rows: np.ndarray) -> ScoredPairs:
        """Some of them, by a mask or by rows."""
        columns = (self.scores, self.negative_scores, self.images, self.categories, self.groups)
        return ScoredPairs(*(column[rows] for column in columns))


def benchmark_figures(pairs: ScoredPairs, measures: Sequence[str], samples: int, level: float) -> dict[str, Any]:
    """Figures of a benchmark and of each of its categories, ready for JSON.

    Args:
        pairs: of one model; one at least.
        measures: names in `MEASURES`.
        samples: resampled test sets behind every interval.
        level: share of them inside an interval, 0..1.

    Returns:
        Number of `pairs` and of `images`; every measure, in percent: value, low, high; and under `categories` the same
        of each.
    """
    names = [name for name in np.unique(pairs.categories).tolist() if name]
    own = {name: _figures(pairs.only(pairs.categories == name), measures, samples, level) for name in names}
    return _figures(pairs, measures, samples, level) | {"categories": own}


def accuracy(pairs: ScoredPairs, samples: int, level: float) -> dict[str, Interval]:
    """`accuracy`: percent of the negatives that score below their caption; images are resampled with all their pairs.

    Source: SugarCrepe (Hsieh et al., 2023), section 4; the micro accuracy of ARO.
    """
    images, rows = np.unique(pairs.images, return_inverse=True)
    return mean_intervals({"accuracy": 100.0 * pairs.right}, rows, len(images), samples, level)


def macro(pairs: ScoredPairs, samples: int, level: float) -> dict[str, Interval]:
    """`macro`: mean of the accuracies of all groups, percent; nothing where no pair has a group.

    Images are resampled with all their pairs.

    Source: ARO (Yuksekgonul et al., ICLR 2023), Table 2: groups are relations, and pairs of attributes.
    """
    grouped = pairs.only(pairs.groups != "")
    if not len(grouped.scores):
        return {}
    images, rows = np.unique(grouped.images, return_inverse=True)
    names, groups = np.unique(grouped.groups, return_inverse=True)
    sizes = (len(images), len(names))
    return {"macro": group_mean_interval(100.0 * grouped.right, rows, groups, sizes, samples, level)}


def examples(pairs: ScoredPairs, samples: int, level: float) -> dict[str, Interval]:
    """`text`, `image` and `group` scores of examples, percent; examples are resampled.

    A group has two pairs: image 0 with caption 0 and caption 1 as its negative, and image 1 the other way round. With
    s(c, i) the score of a caption and an image,

        text:  s(c0, i0) > s(c1, i0)  and  s(c1, i1) > s(c0, i1)
        image: s(c0, i0) > s(c0, i1)  and  s(c1, i1) > s(c1, i0)
        group: both

    Source: Winoground (Thrush et al., CVPR 2022), Eq. 1 to 3.
    """
    first, second = np.argsort(pairs.groups, kind="stable").reshape(-1, 2).T  # [E] each
    text = pairs.right[first] & pairs.right[second]
    image = (pairs.scores[first] > pairs.negative_scores[second]) & (
        pairs.scores[second] > pairs.negative_scores[first]
    )
    found = {"text": text, "image": image, "group": text & image}
    percent = {name: 100.0 * each for name, each in found.items()}
    return mean_intervals(percent, np.arange(len(first)), len(first), samples, level)


def _figures(pairs: ScoredPairs, measures: Sequence[str], samples: int, level: float) -> dict[str, Any]:
    found = {name: each for key in measures for name, each in MEASURES[key](pairs, samples, level).items()}
    counts = {"pairs": len(pairs.scores), "images": len(np.unique(pairs.images))}
    return counts | {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()}


MEASURES: dict[str, Callable[[ScoredPairs, int, float], dict[str, Interval]]] = {
    "pairs": accuracy,
    "macro": macro,
    "examples": examples,
}
