"""The best candidates of every query, as the `rankings` table stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.evaluation.ranks import check_finite

_BLOCK_VALUES = 1 << 22
"""Scores selected from at a time."""


@dataclass(frozen=True)
class Candidates:
    """The k best candidates of each query, best first.

    Attributes:
        indices: [Q, k] int32, rows or columns of the score matrix.
        scores: [Q, k] their scores.
    """

    indices: np.ndarray
    scores: np.ndarray


def rankings(
    scores: np.ndarray, k: int, image_ids: Sequence[str], caption_ids: Sequence[str]
) -> tuple[Candidates, Candidates]:
    """The k best captions of each image and the k best images of each caption.

    Candidates with equal scores come in the order of their ids, so that a ranking does not depend on the order
    of the rows, nor on the machine.

    Args:
        scores: [N, T] score of image n with caption t.
        k: candidates per query.
        image_ids: N ids, in the order of the rows.
        caption_ids: T ids, in the order of the columns.

    Returns:
        Captions per image [N, k], and images per caption [T, k].

    Raises:
        UsageError: there are fewer than k captions or images.
        DataError: a score is NaN or infinite.
    """
    if not 1 <= k <= min(scores.shape):
        raise UsageError(
            f"{k} candidates per query were asked for, but there are {scores.shape[0]} images and "
            f"{scores.shape[1]} captions: ask for 1..{min(scores.shape)}"
        )
    check_finite(scores)
    return _best(scores, k, caption_ids), _best(scores.T, k, image_ids)


def _best(scores: np.ndarray, k: int, ids: Sequence[str]) -> Candidates:
    """Best k columns of every row; equal scores in the order of `ids`."""
    by_id = np.argsort(np.asarray(ids), kind="stable")
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    found = [_best_of_block(scores[row : row + height][:, by_id], k) for row in range(0, len(scores), height)]
    columns = np.concatenate([columns for columns, _ in found])
    return Candidates(by_id[columns].astype(np.int32), np.concatenate([values for _, values in found]))


def _best_of_block(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Best k columns of every row and their scores; equal scores by ascending column."""
    threshold = np.partition(scores, scores.shape[1] - k, axis=1)[:, -k, None]  # [Q, 1] the k-th largest
    chosen = scores > threshold
    tied = scores == threshold
    places = k - chosen.sum(axis=1, keepdims=True)  # how many of the tied ones still fit
    chosen |= tied & (np.cumsum(tied, axis=1) <= places)
    columns = np.nonzero(chosen)[1].reshape(len(scores), k)
    values = np.take_along_axis(scores, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(values, order, axis=1)
