"""Which part of the candidates is used: by rank, by score, and by distance to the score of the positive.

The names are those of sentence-transformers' `mine_hard_negatives`. The positive of a caption is its image. That
of an image is the own caption with the lowest score: training pairs an image with each of its captions in turn
and draws from the same list every time, so a margin holds for all these pairs only if it holds for that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.mining.lists import CandidateLists, drop
from itrpipe.mining.vectors import Rows, rows_at_once, slices, take


@dataclass(frozen=True)
class Window:
    """Limits on candidates; None or 0 sets no limit.

    Attributes:
        range_min: hardest candidates that are skipped, as they are often unlabelled positives.
        range_max: rank, counted from the hardest, at which the candidates end.
        min_score: candidates below are too easy.
        max_score: candidates above are taken for unlabelled positives.
        absolute_margin: a candidate scores at most the positive's score less this.
        relative_margin: a candidate scores at most the positive's score less this share of its size: for positive
            scores p that is p * (1 - relative_margin).

    Raises:
        UsageError: the limits leave nothing.
    """

    range_min: int = 0
    range_max: int | None = None
    min_score: float | None = None
    max_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None

    def __post_init__(self) -> None:
        if self.range_min < 0:
            raise UsageError(f"range_min = {self.range_min} is negative: give 0 or more")
        if self.range_max is not None and self.range_max <= self.range_min:
            raise UsageError(f"range_max = {self.range_max} is not above range_min = {self.range_min}: raise it")
        if self.min_score is not None and self.max_score is not None and self.max_score < self.min_score:
            raise UsageError(f"max_score = {self.max_score} is below min_score = {self.min_score}: raise it")

    def reasons(self, lists: CandidateLists, positives: np.ndarray) -> dict[str, np.ndarray]:
        """Marks candidates outside the window, for `lists.drop`.

        Args:
            lists: of one direction, hardest first and unfiltered: their columns are the ranks.
            positives: [A] score of each anchor with its positive; NaN for one without, which no margin limits.

        Returns:
            Name of each limit that is set -> [A, K] bool.
        """
        rank = np.broadcast_to(np.arange(lists.scores.shape[1]), lists.scores.shape)
        marks: dict[str, np.ndarray] = {}
        if self.range_min:
            marks["range_min"] = rank < self.range_min
        if self.range_max is not None:
            marks["range_max"] = rank >= self.range_max
        if self.max_score is not None:
            marks["max_score"] = lists.scores > self.max_score
        if self.min_score is not None:
            marks["min_score"] = lists.scores < self.min_score
        if self.absolute_margin is not None:
            marks["absolute_margin"] = lists.scores > (positives - self.absolute_margin)[:, None]
        if self.relative_margin is not None:
            marks["relative_margin"] = lists.scores > (positives - self.relative_margin * np.abs(positives))[:, None]
        return marks


def filtered(
    lists: CandidateLists, window: Window, positives: np.ndarray, going: Mapping[str, np.ndarray] | None = None
) -> tuple[CandidateLists, dict[str, int]]:
    """Lists without the candidates outside a window.

    Args:
        lists: of one direction, hardest first and unfiltered, [A, K].
        window: its limits.
        positives: [A] score of each anchor with its positive.
        going: reason -> [A, K] bool, further candidates that are dropped.

    Returns:
        See `lists.drop`.
    """
    return drop(lists, {**(going or {}), **window.reasons(lists, positives)})


def positive_scores(images: Rows, texts: Rows, owners: Rows) -> np.ndarray:
    """Score of every caption with its own image.

    Args:
        images: [N, D].
        texts: [T, D].
        owners: [T] image row of each caption, -1 for none.

    Returns:
        [T] float32, NaN for a caption of no image.
    """
    scores = np.full(texts.shape[0], np.nan, dtype=np.float32)
    for part in slices(len(scores), rows_at_once(texts)):
        rows = owners.read(part.start, part.stop)
        owned = rows >= 0
        pairs = texts.read(part.start, part.stop)[owned], take(images, rows[owned])
        scores[part.start + np.flatnonzero(owned)] = np.einsum("td,td->t", *pairs)
    return scores


def lowest_positives(positives: np.ndarray, caption_image: np.ndarray, num_images: int) -> np.ndarray:
    """Lowest score of every image with an own caption.

    Args:
        positives: [T] score of every caption with its image, NaN for a caption of none.
        caption_image: [T] image row of each caption.
        num_images: N.

    Returns:
        [N] float32, NaN for an image without captions, which no margin limits.
    """
    lowest = np.full(num_images, np.nan, dtype=np.float32)
    owned = ~np.isnan(positives)
    np.fmin.at(lowest, caption_image[owned], positives[owned])
    return lowest
