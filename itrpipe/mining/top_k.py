"""Top-k selection whose result is unique: by falling score, and by rising index where scores are equal.

`torch.topk` picks any of several equal scores, a different one on another device or in a larger batch. Here a
score and its index are packed into one 64-bit key, and no two keys are equal.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_LARGEST_INDEX = 2**31 - 1
NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest index: no other key is below it."""


def pack(scores: Tensor, indices: Tensor) -> Tensor:
    """Keys that sort by score, then against the index.

    The upper half holds the bits of the score, those of negative scores inverted, which makes their order as
    integers that of the numbers; the lower half counts down from the largest index.

    Args:
        scores: [...] float32 without NaN.
        indices: [...] integers in 0..2^31 - 1.

    Returns:
        [...] int64.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0, which equals 0.0, into 0.0
    ordered = bits ^ ((bits >> 31) & _LARGEST_INDEX)
    return (ordered.to(torch.int64) << 32) | (_LARGEST_INDEX - indices)


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (float32) and indices (int32) of keys made by `pack`."""
    ordered = (keys >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & _LARGEST_INDEX)).view(torch.float32)
    return scores, (_LARGEST_INDEX - (keys & 0xFFFFFFFF)).to(torch.int32)


def kth_largest(scores: Tensor, k: int) -> Tensor:
    """The k-th largest value [Q] of every row of scores [Q, C], 1 <= k <= C."""
    if scores.is_cuda:
        return scores.topk(k, dim=1, sorted=False).values.amin(dim=1)
    place = scores.shape[1] - k
    # numpy partitions with vector instructions, in a third of the time of torch's scalar selection.
    return torch.from_numpy(np.partition(scores.numpy(), place, axis=1)[:, place].copy())


def most_reaching(scores: Tensor, threshold: Tensor) -> int:
    """Largest number of scores [b, T], over the columns, that are at least the threshold [T] of their column."""
    reached = (scores >= threshold).view(torch.uint8)
    counts = [part.sum(dim=0, dtype=torch.uint8).int() for part in reached.split(255)]  # as many as a byte can count
    return int(torch.stack(counts).sum(dim=0).max())


def keys_reaching(scores: Tensor, threshold: Tensor, first_index: int = 0) -> Tensor:
    """Keys of the scores that are at least the threshold of their row.

    Args:
        scores: [Q, C] float32 without NaN.
        threshold: [Q].
        first_index: index of column 0.

    Returns:
        [Q, m] int64, m the largest number of such scores in a row; shorter rows end in `NO_CANDIDATE`.
    """
    row, column = _reaching(scores, threshold)
    counts = row.bincount(minlength=len(scores))
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    keys = torch.full((len(scores), int(counts.max())), NO_CANDIDATE, device=row.device)
    keys[row, place] = pack(scores[row, column], column + first_index)
    return keys


def _reaching(scores: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the scores that reach the threshold of their row, row after row, columns rising."""
    if scores.is_contiguous():
        row, column = (scores >= threshold[:, None]).nonzero(as_tuple=True)
        return row, column
    # A transposed view is searched in the order of its memory: sorting the few found is cheaper than copying it.
    column, row = (threshold <= scores.T).nonzero(as_tuple=True)
    order = row.argsort(stable=True)
    return row[order], column[order]


def largest_keys(keys: Tensor, k: int) -> Tensor:
    """The k largest keys [Q, k] of every row of keys [Q, m], m >= k, in falling order."""
    return keys.topk(k, dim=1, sorted=True).values
