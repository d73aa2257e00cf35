"""Top-k selection whose result is unique: by falling score, and by rising index where scores are equal.

`torch.topk` picks any of several equal scores, a different one on another device or in a larger batch. Here a
score and its index are packed into one 64-bit key, and keys are never equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST_INDEX = 2**31 - 1
NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest index: no other key is below it."""
_REPAIR_VALUES = 1 << 23
"""Scores packed at a time where ties at the end of a list have to be resolved."""


def pack(scores: Tensor, indices: Tensor) -> Tensor:
    """Keys that sort by score, then against the index.

    The upper half holds the bits of the score, those of negative scores inverted, which makes their order as
    integers that of the numbers; the lower half counts down from the largest index.

    Args:
        scores: [...] float32, finite or infinite.
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


def top_keys(scores: Tensor, k: int, first_index: int = 0) -> Tensor:
    """Keys of the best min(k, C) columns of every row, in no particular order.

    Args:
        scores: [Q, C] float32 without NaN.
        k: candidates wanted per row.
        first_index: index of column 0.

    Returns:
        [Q, min(k, C)] int64.
    """
    width = scores.shape[1]
    columns = torch.arange(first_index, first_index + width, device=scores.device)
    if width <= k:
        return pack(scores, columns)
    # One candidate more than wanted shows whether the last place is contested: packing only the k chosen scores
    # is several times cheaper than packing all, and contested rows are rare.
    values, chosen = scores.topk(k + 1, dim=1, sorted=False)
    worst = values.min(dim=1, keepdim=True)
    contested = (values == worst.values).sum(dim=1) > 1  # [Q]
    chosen = _without_column(chosen, worst.indices)
    keys = pack(scores.gather(1, chosen), chosen + first_index)
    rows = contested.nonzero()[:, 0]
    for part in rows.split(max(1, _REPAIR_VALUES // width)):
        keys[part] = pack(scores[part], columns).topk(k, dim=1, sorted=False).values
    return keys


def _without_column(table: Tensor, column: Tensor) -> Tensor:
    """Drop from each row the entry at `column` [Q, 1] by moving the last entry to its place."""
    return table.scatter(1, column, table[:, -1:])[:, :-1]
