"""Lists of different lengths, one behind the other in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def runs(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Indices of several runs, one run behind the other.

    Args:
        starts: int [n], first index of each run.
        counts: int64 [n], its length, which may be zero.

    Returns:
        int64 [sum of counts].
    """
    return np.arange(counts.sum()) + np.repeat(starts - (counts.cumsum() - counts), counts)


@dataclass(frozen=True)
class Ragged:
    """n lists of different lengths.

    Attributes:
        offsets: int64 [n + 1], where each list begins; the last one is where the last list ends.
        values: [offsets[-1], ...], the values of all lists in their order.
    """

    offsets: np.ndarray
    values: np.ndarray

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[Any] | np.ndarray], dtype: Any = np.int64) -> Ragged:
        """Lists as Python or numpy has them."""
        values = np.concatenate([np.zeros(0, dtype), *lists]).astype(dtype, copy=False)
        return cls.of_counts(np.array([len(each) for each in lists], dtype=np.int64), values)

    @classmethod
    def of_counts(cls, counts: np.ndarray, values: np.ndarray | None = None) -> Ragged:
        """Values that are cut into lists of these lengths, int [n]; without values each gets its own index."""
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return cls(offsets, np.arange(offsets[-1]) if values is None else values)

    @classmethod
    def of_owners(cls, owners: np.ndarray, count: int, values: np.ndarray | None = None) -> Ragged:
        """Values given with the number of their list, int [v] in 0..count - 1, in any order.

        A list keeps the order in which its values come; without values each gets its own index, as in "the captions of
        every image".
        """
        order = np.argsort(owners, kind="stable")
        return cls.of_counts(np.bincount(owners, minlength=count), order if values is None else values[order])

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The lists of all parts, at least one, in their order."""
        counts, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "values"))
        return cls.of_counts(counts, values)

    @property
    def counts(self) -> np.ndarray:
        """Length of each list, int64 [n]."""
        return np.diff(self.offsets)

    def owners(self) -> np.ndarray:
        """Number of the list of each value, int64 [v]."""
        return np.repeat(np.arange(len(self)), self.counts)

    def places(self) -> np.ndarray:
        """Place of each value in its list, int64 [v]."""
        return runs(np.zeros(len(self), np.int64), self.counts)

    def take(self, rows: np.ndarray) -> Ragged:
        """The lists of some rows, int [m], in this order, also several times."""
        starts = self.offsets[:-1][rows]
        counts = self.offsets[1:][rows] - starts
        return Ragged.of_counts(counts, self.values[runs(starts, counts)])

    def padded(self, width: int | None = None, fill: Any = 0) -> np.ndarray:
        """The lists as rows [n, width, ...], cut at the width, with `fill` behind the last value of each.

        By default the width is that of the longest list, and 0 where there is no list.
        """
        counts = self.counts
        width = int(counts.max(initial=0)) if width is None else width
        table = np.full((len(self), width, *self.values.shape[1:]), fill, dtype=self.values.dtype)
        kept = np.minimum(counts, width)
        table[np.arange(width) < kept[:, None]] = self.values[runs(self.offsets[:-1], kept)]
        return table

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Values of one list; row may count from the end."""
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]
