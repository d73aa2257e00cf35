"""What every mining engine returns, and how candidates are dropped from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

NO_ROW = -1
"""Stands where a list has no candidate; its score is minus infinity."""


@dataclass(frozen=True)
class CandidateLists:
    """One direction: the candidates of every anchor, hardest first, in rows of one width.

    Attributes:
        candidates: [A, K] int32, or int64 where there are more, rows of the other side; `NO_ROW` behind the last
            candidate of a shorter list.
        scores: [A, K] float32; minus infinity behind the last candidate.
    """

    candidates: np.ndarray
    scores: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """[A] candidates of each anchor."""
        return (self.candidates != NO_ROW).sum(axis=1)


@dataclass(frozen=True)
class MinedLists:
    """Hard negatives of every image and caption, hardest first.

    Attributes:
        texts_per_image: [N, num_texts] int32, caption indices.
        text_scores: [N, num_texts] float32.
        images_per_text: [T, num_images] int32, image indices.
        image_scores: [T, num_images] float32.
    """

    texts_per_image: np.ndarray
    text_scores: np.ndarray
    images_per_text: np.ndarray
    image_scores: np.ndarray

    @property
    def texts_for_images(self) -> CandidateLists:
        """The captions of every image."""
        return CandidateLists(self.texts_per_image, self.text_scores)

    @property
    def images_for_texts(self) -> CandidateLists:
        """The images of every caption."""
        return CandidateLists(self.images_per_text, self.image_scores)


def drop(lists: CandidateLists, reasons: Mapping[str, np.ndarray]) -> tuple[CandidateLists, dict[str, int]]:
    """Takes candidates out of lists; those that stay keep their order and move up.

    Args:
        lists: of one direction, [A, K].
        reasons: name -> [A, K] bool, True where a candidate is to go.

    Returns:
        Lists of the same width, and for every reason the candidates that went for it. A candidate with several
        reasons counts for the first.
    """
    stays = lists.candidates != NO_ROW
    dropped = {}
    for name, goes in reasons.items():
        going = stays & goes
        dropped[name] = int(going.sum())
        stays &= ~goes
    row, column = stays.nonzero()
    counts = stays.sum(axis=1)
    place = np.arange(len(row)) - (counts.cumsum() - counts)[row]
    candidates = np.full(lists.candidates.shape, NO_ROW, dtype=lists.candidates.dtype)
    scores = np.full(lists.scores.shape, -np.inf, dtype=np.float32)
    candidates[row, place] = lists.candidates[row, column]
    scores[row, place] = lists.scores[row, column]
    return CandidateLists(candidates, scores), dropped


def by_score(candidates: np.ndarray, scores: np.ndarray) -> CandidateLists:
    """Lists by falling score, by rising row where scores are equal, and padding last.

    Args:
        candidates: [A, K] rows, `NO_ROW` anywhere.
        scores: [A, K] numbers without NaN; those of padding are not read.
    """
    missing = candidates == NO_ROW
    ranked = np.where(missing, -np.inf, scores).astype(np.float32)
    order = np.lexsort((candidates, -ranked, missing), axis=1)
    ordered = np.take_along_axis(candidates, order, axis=1)
    return CandidateLists(ordered, np.take_along_axis(ranked, order, axis=1))
