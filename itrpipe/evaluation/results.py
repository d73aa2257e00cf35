"""The figures of one evaluation: every protocol with its intervals, as they are written, printed and summed up.

`evaluate` measures any vectors with the functions that the command uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from itrpipe.errors import DataError
from itrpipe.evaluation.intervals import Figures, check_options, fold_figures, mean_figures
from itrpipe.evaluation.metrics import (
    COMPARED,
    CUTOFFS,
    RSUM,
    SIDES,
    Ranks,
    precision_of_matches,
    random_recalls,
    ranks,
    reaches_chance,
    remedy_of_chance,
)
from itrpipe.evaluation.tables import Number, Row, Table, as_lines
from itrpipe.storage.arrays import check_fit, check_numbers, given_vectors

FULL = "full"
ORACLE = "oracle"


@dataclass(frozen=True)
class Evaluation:
    """Measures of how well vectors find texts of images and images of texts; `str()` gives the command's table.

    Attributes:
        metrics: name -> value. `i2t_r1`, `i2t_r5`, `i2t_r10`, `i2t_map_at_r`, `i2t_r_precision` of images as queries
            and `t2i_…` of texts as queries, in percent; `rsum`, the sum of the six recalls; and of either side
            `…_median_rank` and `…_mean_rank`, from one. See `itrpipe.evaluation.metrics`.
        intervals: name -> `value`, `low` and `high`, by bootstrap over images; of median ranks the value alone.
        chance: name -> value that a random order may expect, of the recalls and `rsum`.
        ranks: rank of the best match of every query, from zero.
        owners: [T] row of the image of each text.
        level: share of resampled test sets that the intervals hold.
    """

    metrics: dict[str, float]
    intervals: Figures
    chance: dict[str, float]
    ranks: Ranks
    owners: np.ndarray
    level: float

    def __str__(self) -> str:
        size = len(self.ranks.images_to_texts), len(self.owners)
        return results_text({FULL: self.intervals}, self.level, size)


def evaluate(
    images: ArrayLike,
    texts: ArrayLike,
    owners: ArrayLike,
    *,
    samples: int = 1000,
    level: float = 0.95,
) -> Evaluation:
    """Rank all texts for every image and all images for every text, and measure how high the own ones come.

    The score of a pair is the inner product of its vectors: normalise them for cosines. A wrong candidate with the
    score of the right one counts as ahead of it. All N T scores are in memory at once, with 5 bytes each: 0.6 GB for
    5,000 images with 25,000 texts.

    Args:
        images: [N, D] vectors of any model.
        texts: [T, D].
        owners: [T] row of the image that each text belongs to; every text has an image, and every image a text.
        samples: resampled test sets behind every interval.
        level: share of them that an interval holds, 0..1.

    Raises:
        DataError: the arrays do not fit each other, hold values that are not finite, or an image or a text has no
            match.
        UsageError: fewer than 100 samples, or a level that is not between 0 and 1.

    Example:
        >>> images = np.eye(4, dtype=np.float32)
        >>> owners = [0, 1, 2, 3, 3]
        >>> texts = images[[0, 1, 2, 3, 0]]  # the last one reads like a text of the first image
        >>> evaluation = evaluate(images, texts, owners)
        >>> evaluation.metrics["t2i_r1"], evaluation.chance["t2i_r1"]
        (80.0, 25.0)
        >>> evaluation.intervals["t2i_r1"]
        {'value': 80.0, 'low': 57.142857142857146, 'high': 100.0}
    """
    check_options(samples, level)
    image_vectors, text_vectors, rows = given_vectors(images, texts, owners)
    check_fit(image_vectors.shape, text_vectors.shape, rows)
    if rows.min() < 0:
        raise DataError(f"text {rows.argmin()} has the owner {rows.min()}; leave out texts without an image")
    textless = np.setdiff1d(np.arange(len(image_vectors)), rows)
    if len(textless):
        raise DataError(
            f"{len(textless)} of {len(image_vectors)} images have no text, such as image {textless[0]}; leave them out"
        )
    check_numbers([image_vectors], [text_vectors])

    scores = image_vectors @ text_vectors.T
    full = ranks(scores, rows)
    pairs = rows, np.arange(len(rows))
    figures = with_matches(scores, rows, full, pairs, samples, level)
    values = {name: figure["value"] for name, figure in figures.items()}
    return Evaluation(values, figures, random_recalls(*scores.shape), full, rows, level)


def with_matches(
    matrix: np.ndarray,
    caption_image: np.ndarray,
    ranks: Ranks,
    pairs: tuple[np.ndarray, np.ndarray],
    samples: int,
    level: float,
) -> Figures:
    """Return recalls by ranks of the best of several matches, and mAP@R and R-Precision of all of them, in percent.

    Args:
        matrix: [N, T] score of image n with caption t.
        caption_image: [T] row of the image each caption belongs to, with which it is resampled.
        ranks: of the best match of every query.
        pairs: rows [M] of the image, and of the caption, of every match.
        samples, level: as for `itrpipe.evaluation.intervals.fold_figures`.
    """
    figures = fold_figures([(ranks, caption_image)], samples, level)
    images, captions = pairs
    for side, scores, queries, candidates, query_image in (
        ("i2t", matrix, images, captions, np.arange(len(matrix))),
        ("t2i", matrix.T, captions, images, caption_image),
    ):
        average, r_precision = precision_of_matches(scores, queries, candidates)
        percent = {
            f"{side}_map_at_r": 100.0 * average,
            f"{side}_r_precision": 100.0 * r_precision,
        }
        figures |= mean_figures(percent, query_image, samples, level)
    return figures


def results_text(results: Mapping[str, Figures], level: float, size: tuple[int, int]) -> str:
    """Return recalls and RSum under every protocol with their intervals, and those of chance, as lines.

    Args:
        results: of an evaluation.
        level: share of resampled test sets that its intervals hold.
        size: images and captions of the split.
    """
    images, captions = size
    chance = random_recalls(images, captions)
    rows = []
    for name, figures in {**results, "chance": chance}.items():
        rows.append(Row(name, [Number.of(figures[metric]) for metric in COMPARED]))
    columns = []
    for side in SIDES:
        direction = side.replace("2", "→")
        for k in CUTOFFS:
            columns.append(f"{direction} R@{k}")
    title = f"In percent, with {100 * level:g} % bootstrap intervals over images"
    if ORACLE in results:
        title += f"; {ORACLE}: all correct matches counted"
    lines = as_lines(Table(title, [*columns, "RSum"], rows, head=""))
    if reaches_chance(results[FULL], chance):
        remedy = remedy_of_chance(images)
        lines += [
            "",
            f"This model is at chance: the interval of its RSum reaches down to that of random answers; {remedy}.",
        ]
    return "\n".join(lines)


def summed_up(results: Mapping[str, Figures]) -> dict[str, Any]:
    """Return the numbers that tables of artifacts show."""
    numbers = {}
    for side in SIDES:
        recalls = [results[FULL][f"{side}_r{k}"]["value"] for k in CUTOFFS]
        numbers[f"{side} R@1/5/10"] = " / ".join(f"{value:.1f}" for value in recalls)
    for name, figures in results.items():
        numbers[f"{name} rsum"] = figures[RSUM]["value"]
    return numbers
