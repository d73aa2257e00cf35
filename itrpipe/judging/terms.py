"""Weighted terms, such as words or facts, of many things, and sums of products over the terms that two have in common.

Shapes: n things, v pairs of a thing and a term, P pairs of things.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from itrpipe.storage.arrays import Ragged

_TABLE_CELLS = 1 << 22
_PAIR_TERMS = 1 << 22
"""Weights that are held at a time: in a table of things by terms, and those of the pairs' other things."""


@dataclass(frozen=True)
class Terms:
    """The terms of n things, each once.

    Attributes:
        lists: term numbers of each thing, rising.
        weights: [v] float32.
        size: how many terms there are.
    """

    lists: Ragged
    weights: np.ndarray
    size: int

    @classmethod
    def summed(cls, things: np.ndarray, terms: np.ndarray, weights: np.ndarray, count: int, size: int) -> Terms:
        """Add up the weights of equal pairs.

        Args:
            things: [v] numbers 0..count - 1, in any order.
            terms: [v] numbers 0..size - 1.
            weights: [v].
            count: how many things there are.
            size: how many terms.
        """
        keys, places = np.unique(things * size + terms, return_inverse=True)
        lists = Ragged.of_counts(np.bincount(keys // size, minlength=count), keys % size)
        return cls(lists, np.bincount(places, weights, len(keys)).astype(np.float32), size)

    @cached_property
    def squares(self) -> np.ndarray:
        """Return the sum of the squared weights of each thing, [n] float32."""
        return np.bincount(self.lists.owners(), self.weights**2, len(self.lists)).astype(np.float32)

    def products(self, rows: np.ndarray, others: Terms, other_rows: np.ndarray) -> np.ndarray:
        """Return for each pair the sum over common terms of the product of weights, [P] float32.

        Args:
            rows: [P] of these things.
            others: things with the same terms.
            other_rows: [P] of these.
        """
        sums = np.zeros(len(rows), np.float32)
        order = np.argsort(rows, kind="stable")
        sorted_rows = rows[order]
        lengths = others.lists.counts[other_rows[order]]
        ends = np.cumsum(lengths)
        table = np.zeros((max(1, _TABLE_CELLS // max(1, self.size)), self.size), np.float32)
        start = 0
        while start < len(rows):
            # As many pairs as the table has rows for, and as have few terms.
            before = ends[start] - lengths[start]
            stop = max(start + 1, np.searchsorted(ends, before + _PAIR_TERMS, side="right"))
            things, places = np.unique(sorted_rows[start:stop], return_inverse=True)
            if len(things) > len(table):
                stop = start + np.searchsorted(places, len(table))
                things, places = things[: len(table)], places[: stop - start]
            own = self._of(things)
            cells = own.lists.owners(), own.lists.values
            table[cells] = own.weights
            other = others._of(other_rows[order[start:stop]])
            products = table[places[other.lists.owners()], other.lists.values] * other.weights
            sums[order[start:stop]] = np.bincount(other.lists.owners(), products, stop - start)
            table[cells] = 0.0
            start = stop
        return sums

    def _of(self, rows: np.ndarray) -> Terms:
        places = Ragged(self.lists.offsets, np.arange(len(self.weights))).take(rows)
        return Terms(Ragged(places.offsets, self.lists.values[places.values]), self.weights[places.values], self.size)
