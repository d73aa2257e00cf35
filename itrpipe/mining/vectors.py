"""Embeddings where they lie: read a slice at a time, so that mining needs no more memory for more of them.

`.npy`, contiguous HDF5 and Parquet are read; what is read is copied and nothing stays mapped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from itrpipe.storage.arrays import StoredRows


class Rows(Protocol):
    """Rows of numbers, such as one vector per image."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop, in memory."""
        ...


@dataclass(frozen=True)
class HeldRows:
    """Rows that are in memory anyway."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        return self.array.shape

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        return self.array[start:stop]


def stored(mapped: np.ndarray) -> Rows:
    """The rows of a memory map of a whole dataset, where they lie; those of another array as they are."""
    if not isinstance(mapped, np.memmap) or not isinstance(mapped.filename, str | os.PathLike):
        return HeldRows(mapped)
    return StoredRows(Path(mapped.filename).absolute(), mapped.offset, mapped.dtype, mapped.shape)


@dataclass(frozen=True)
class EqualRows:
    """So many rows of one number, such as the image of captions that belong to nobody.

    Attributes:
        shape: of them.
        value: the number.
    """

    shape: tuple[int, ...]
    value: int

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        return np.full((min(stop, self.shape[0]) - start, *self.shape[1:]), self.value, dtype=np.int64)


@dataclass(frozen=True)
class JoinedRows:
    """The rows of several, one behind the other."""

    parts: Sequence[Rows]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        found, before = [], 0
        for part in self.parts:
            count = part.shape[0]
            if start < before + count and stop > before:
                found.append(part.read(max(0, start - before), min(count, stop - before)))
            before += count
        return np.concatenate(found) if found else self.parts[0].read(0, 0)


@dataclass(frozen=True)
class Stripes:
    """Rows dealt out to `count` stripes, some neighbours at a time: each is a fair sample, whatever the order of rows.

    Attributes:
        rows: n.
        count: stripes, at least 1.
        run: neighbours that stay together, so that a stripe is read in few pieces.
    """

    rows: int
    count: int
    run: int

    def of(self, stripe: int) -> np.ndarray:
        """Rows of a stripe, int64, rising."""
        starts = np.arange(stripe * self.run, self.rows, self.count * self.run)
        rows = (starts[:, None] + np.arange(self.run)).reshape(-1)
        return rows[rows < self.rows]

    def read(self, values: Rows, stripe: int) -> np.ndarray:
        """The values of a stripe's rows."""
        starts = range(stripe * self.run, self.rows, self.count * self.run)
        pieces = [values.read(start, min(start + self.run, self.rows)) for start in starts]
        return np.concatenate(pieces)

    def place(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Stripe of each row, and its place in there."""
        piece, within = np.divmod(rows, self.run)
        turn, stripe = np.divmod(piece, self.count)
        return stripe, turn * self.run + within


def take(values: Rows, rows: np.ndarray) -> np.ndarray:
    """Values of some rows, in the order asked for.

    Args:
        values: n rows.
        rows: [m] int64, best rising and close together.
    """
    wanted, back = np.unique(rows, return_inverse=True)
    starts = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
    runs = np.split(wanted, starts[1:]) if len(wanted) else []
    if not runs:
        return values.read(0, 0)
    return np.concatenate([values.read(int(run[0]), int(run[-1]) + 1) for run in runs])[back]


def rows_at_once(values: Rows, bytes_at_once: int = 1 << 24) -> int:
    """How many rows a slice of about so many bytes holds."""
    row = 4 * max(1, int(np.prod(values.shape[1:], dtype=np.int64)))
    return max(1, bytes_at_once // row)


def slices(count: int, at_once: int) -> list[slice]:
    """Slices that cover so many rows."""
    return [slice(start, min(start + at_once, count)) for start in range(0, count, at_once)]
