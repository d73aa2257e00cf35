"""Top-k selection whose result is unique: by falling score, and by rising index where scores are equal.

`torch.topk` picks any of several equal scores, a different one on another device or in a larger batch. Here a
score and its index are packed into one 64-bit key, and no two keys are equal.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LARGEST_INDEX = 2**32 - 1
"""Rows of either side are below."""
_SIGN = 2**31 - 1
NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest index: no other key is below it."""


def pack(scores: Tensor, indices: Tensor) -> Tensor:
    """Keys that sort by score, then against the index.

    The upper half holds the bits of the score, those of negative scores inverted, which makes their order as
    integers that of the numbers; the lower half counts down from the largest index.

    Args:
        scores: [...] float32 without NaN.
        indices: [...] integers in 0..2^32 - 1.

    Returns:
        [...] int64.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0, which equals 0.0, into 0.0
    ordered = bits ^ ((bits >> 31) & _SIGN)
    return (ordered.to(torch.int64) << 32) | (LARGEST_INDEX - indices)


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (float32) and indices (int64) of keys made by `pack`."""
    ordered = (keys >> 32).to(torch.int32)
    scores = (ordered ^ ((ordered >> 31) & _SIGN)).view(torch.float32)
    return scores, LARGEST_INDEX - (keys & 0xFFFFFFFF)


def kth_largest(scores: Tensor, k: int) -> Tensor:
    """The k-th largest value [Q] of every row of scores [Q, C], 1 <= k <= C."""
    if scores.is_cuda:
        return scores.topk(k, dim=1, sorted=False).values.amin(dim=1)
    place = scores.shape[1] - k
    # numpy partitions with vector instructions, in a third of the time of torch's scalar selection.
    return torch.from_numpy(np.partition(scores.numpy(), place, axis=1)[:, place].copy())


def matrix_of_keys(keys: Tensor, counts: Tensor) -> Tensor:
    """Keys of consecutive groups as the rows of a matrix.

    Args:
        keys: [n] int64, group after group.
        counts: [Q] keys of each group, n in sum.

    Returns:
        [Q, m] int64, m the largest count; shorter rows end in `NO_CANDIDATE`.
    """
    width = int(counts.max())
    filled = torch.arange(width, device=keys.device) < counts[:, None]
    matrix = torch.full(filled.shape, NO_CANDIDATE, device=keys.device)
    matrix[filled] = keys
    return matrix


def keep_largest(keys: Tensor, k: int) -> Tensor:
    """The k largest keys [Q, k] of every row of keys [Q, m], m >= k; the smallest first, the rest in any order."""
    if keys.is_cuda:
        return keys.topk(k, dim=1, sorted=True).values.flip(1)
    place = keys.shape[1] - k
    return torch.from_numpy(np.partition(keys.numpy(), place, axis=1)[:, place:])
