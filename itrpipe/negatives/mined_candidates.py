"""Several mined candidates for every anchor of a batch, and what mining knew of the candidates that a batch has.

Shapes: A anchors with lists, K candidates of each, B anchors in a batch, n drawn for each, C candidates of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import UsageError


class MinedCandidates:
    """Draws from the mined lists of one direction, each candidate of an anchor at most once.

    Args:
        direction: name of the lists, for messages.
        lists: [A, K] rows of candidates, hardest first; a missing one is negative and stands behind the last.
        top: draw among the first so many.
        skip: leave out the first so many of these.

    Raises:
        UsageError: the lists are shorter, or no anchor has a candidate left.
    """

    def __init__(self, direction: str, lists: np.ndarray, top: int, skip: int = 0) -> None:
        if top > lists.shape[1]:
            raise UsageError(
                f"{direction}: the first {top} are to be drawn from, but the mined lists hold {lists.shape[1]}; lower "
                "--set loss.top_texts=… and loss.top_images=…, or mine more"
            )
        self._lists = lists[:, skip:top]
        if not (self._lists >= 0).any():
            raise UsageError(f"{direction}: no anchor has a candidate left; loosen what mine-negatives was given")

    def draw(self, anchors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Rows [B, n] of candidates; -1 where an anchor has fewer.

        Args:
            anchors: [B] rows.
            count: n.
            rng: source of randomness.
        """
        offered = self._lists[anchors]
        order = np.where(offered >= 0, rng.random(offered.shape, dtype=np.float32), np.inf)
        if count < offered.shape[1]:
            places = np.argpartition(order, count - 1, axis=1)[:, :count]
            offered = np.take_along_axis(offered, places, axis=1)
        return np.where(offered >= 0, offered, -1)


class Known(NamedTuple):
    """What is known of some pairs of anchors and candidates of a batch.

    Attributes:
        anchors, candidates: int64 [n], their places in the batch.
        values: float32 [n].
    """

    anchors: np.ndarray
    candidates: np.ndarray
    values: np.ndarray

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same as tensors."""
        return tuple(map(torch.from_numpy, self))  # pyright: ignore[reportReturnType]


def known_pairs(lists: np.ndarray, values: np.ndarray, candidates: np.ndarray) -> Known:
    """The values of those pairs of lists that a batch has.

    Args:
        lists: [B, K] rows of candidates of the anchors of the batch, below 0 where there are none.
        values: [B, K] of these.
        candidates: [C] rows of the candidates of the batch, in any order and also several times.
    """
    rows, first, inverse = np.unique(candidates, return_index=True, return_inverse=True)
    place = np.searchsorted(rows, lists).clip(max=len(rows) - 1)
    anchors, columns = np.nonzero(rows[place] == lists)
    found, known = place[anchors, columns], values[anchors, columns].astype(np.float32)
    if len(first) == len(candidates):
        return Known(anchors, first[found], known)
    order = np.argsort(inverse, kind="stable")
    counts = np.bincount(inverse)
    starts = np.cumsum(counts) - counts
    repeats = counts[found]
    inside = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return Known(
        np.repeat(anchors, repeats), order[np.repeat(starts[found], repeats) + inside], np.repeat(known, repeats)
    )
