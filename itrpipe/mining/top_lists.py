"""Lists of the best candidates while exact search goes on, as tensors of 64-bit keys on a processor or a GPU.

A key holds a score and a row, so that sorting keys sorts candidates by falling score, and by rising row where scores
are equal. `TopLists` takes in candidates in any order, some at a time, and keeps the best of every anchor.
"""

from __future__ import annotations

import math
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from itrpipe.mining.lists import slices

NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest row: no other key is below it."""
_LOW_BITS = 0xFFFFFFFF
_ALL_BUT_SIGN = 2**31 - 1
_DEVIATIONS = 3.0
_GROUPS_PER_RANK = 8
_MERGED_PLACES = 1 << 18
"""Places of lists that a processor merges at a time."""


def on_gpu(values: Tensor) -> bool:
    """Tell whether the ways of a GPU are taken; a function, so that tests can take them on a processor."""
    return values.is_cuda


def pack_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Return 64-bit keys that sort by score, then against the row, so that no two are equal.

    The upper half holds the bits of the score, those of negative scores inverted, which makes their order as integers
    that of the numbers; the lower half counts down from the largest row.

    Args:
        scores: [...] float32 without NaN.
        rows: [...] integers in 0..2^32 - 1.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0, which equals 0.0, into 0.0
    ordered = _invert_negative(bits).to(torch.int64)
    return (ordered << 32) | (_LOW_BITS - rows)


def unpack_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores (float32) and rows (int64) of keys made by `pack_keys`."""
    bits = _invert_negative((keys >> 32).to(torch.int32))
    rows = _LOW_BITS - (keys & _LOW_BITS)
    return bits.view(torch.float32), rows


def _invert_negative(bits: Tensor) -> Tensor:
    """Invert the bits of negative numbers but for their sign."""
    return bits ^ ((bits >> 31) & _ALL_BUT_SIGN)


class TopLists:
    """The best k candidates so far of each of A anchors.

    Args:
        wanted: [A] bool, the anchors that get a list.
        k: its length.
        candidates: how many there are in all; 0 where floors have to be certain.

    Attributes:
        keys: [A, k] rising, `NO_CANDIDATE` in free places.
        floors: [A] float32, below which nothing enters.
    """

    def __init__(self, wanted: Tensor, k: int, candidates: int = 0) -> None:
        self.keys = torch.full((len(wanted), k), NO_CANDIDATE, device=wanted.device)
        self.floors = torch.where(wanted, math.nan, math.inf)
        self._candidates = candidates
        self._merged = False
        self._is_new = True
        # Candidates that wait to be merged, and their anchors: as many as the lists hold.
        self._waiting = torch.empty_like(self.keys).view(-1)
        self._places = torch.empty_like(self._waiting, dtype=torch.int32)
        self._count = 0
        self._lock = Lock()

    def limits(self, products: Tensor, bounds: Tensor) -> Tensor:
        """Return the lowest product [A] whose pair is scored.

        Args:
            products: [A, c], from which floors are found where there are none yet.
            bounds: [A] how far a product can lie from the score.
        """
        if self._is_new:
            self.guess(slice(None), products, bounds)
        return self.floors - bounds

    def guess(self, anchors: slice, products: Tensor, bounds: Tensor) -> None:
        """Guess the floors of some anchors from products [a, c] of theirs, see `limits`.

        A floor is the score that k of all candidates are expected to reach, less three deviations of that count. The
        n-th largest of the products seen is found among the largest of groups of them, which is much faster and gives
        that one or a slightly smaller one.
        """
        self._is_new = False
        k = self.keys.shape[1]
        seen = products.shape[1]
        share = min(1.0, seen / (self._candidates or seen))
        deviation = math.sqrt(k * share * (1 - share))
        rank = math.ceil(k * share + _DEVIATIONS * deviation) + 1
        floors = torch.full_like(bounds, -math.inf)
        if rank <= seen:
            groups = min(seen, _GROUPS_PER_RANK * rank)
            whole = products[:, : seen - seen % groups]
            grouped = whole.reshape(len(products), -1, groups)
            largest = grouped.amax(dim=1).float()
            floors = _sort_rows(largest)[:, groups - rank]
            if share == 1:
                # Nothing is guessed, and k products do reach the floor; the scores behind them may be less, by the
                # rounding of the product and the bound.
                floors = floors - floors.abs() * 2**-8 - bounds
        before = self.floors[anchors]
        self.floors[anchors] = torch.where(before.isnan(), floors, before)

    def enter(self, places: Tensor, rows: Tensor, scores: Tensor) -> None:
        """Put candidates into the lists, those that reach the floor of theirs.

        Args:
            places: [P] the anchor of each.
            rows: [P] the candidate.
            scores: [P] float32.
        """
        enters = scores >= self.floors[places]
        if on_gpu(scores):  # how many enter would have to be waited for
            keys = pack_keys(scores, rows)
            self.put(places, keys.masked_fill(~enters, NO_CANDIDATE))
        else:
            chosen = torch.from_numpy(np.flatnonzero(enters.numpy()))
            keys = pack_keys(scores[chosen], rows[chosen])
            self.put(places[chosen], keys)

    def put(self, places: Tensor, keys: Tensor) -> None:
        """Put keys [P] into the lists of anchors [P], when there are enough of them to make it worth while."""
        with self._lock:
            if self._count + len(keys) > len(self._waiting):
                self.merge()
            if len(keys) > len(self._waiting):
                self._waiting = keys.new_empty(len(keys))
                self._places = self._places.new_empty(len(keys))
            new = slice(self._count, self._count + len(keys))
            self._waiting[new] = keys
            self._places[new] = places
            self._count = new.stop

    def merge(self) -> None:
        """Put all keys that wait into the lists; the last of a full list becomes its floor."""
        if not self._count:
            return
        keys = self._waiting[: self._count]
        places = self._places[: self._count]
        self._count = 0
        anchors, k = self.keys.shape
        if on_gpu(keys):
            keys, order = keys.sort(descending=True)
            places, order = places[order].sort(stable=True)
            anchors_at_once = anchors
        else:
            short = places.numpy().astype(np.min_scalar_type(anchors))  # NumPy sorts short integers by their digits
            order = torch.from_numpy(np.argsort(short, kind="stable"))
            places = places[order]
            anchors_at_once = max(1, _MERGED_PLACES // k)
        keys = keys[order]
        borders = torch.arange(anchors + 1, dtype=torch.int32, device=places.device)
        starts = torch.searchsorted(places, borders)
        for part in slices(anchors, anchors_at_once):
            begin = starts[:-1][part, None]
            end = starts[1:][part, None]
            most = k  # on a GPU the best of an anchor come first: one round is enough, and nobody asks for counts
            if not on_gpu(keys):
                most = int((end - begin).max())
            is_empty = not self._merged
            for first in range(0, most, k):
                column = begin + torch.arange(first, first + k, device=places.device)
                new = keys[column.clamp(max=len(keys) - 1)]
                new.masked_fill_(column >= end, NO_CANDIDATE)
                if not is_empty:
                    new = torch.cat([self.keys[part], new], dim=1)
                self.keys[part] = _sort_rows(new)[:, -k:]
                is_empty = False
        self._merged = True
        last_scores, _ = unpack_keys(self.keys[:, 0])
        self.floors = torch.maximum(self.floors, last_scores)

    def sorted(self) -> np.ndarray:
        """Return all keys [A, k], falling."""
        self.merge()
        return self.keys.flip(1).numpy(force=True)

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return keys [P], anchor after anchor, how many each has [A], and floors [A]; a GPU is waited for once.

        Only of lists that met one tile, whose candidates came anchor after anchor: most often no list is too short.
        """
        if not on_gpu(self.keys) and not self._merged:
            places = self._places[: self._count].numpy()
            counts = np.bincount(places, minlength=len(self.keys))
            if counts.max() <= self.keys.shape[1]:
                return self._waiting[: self._count].numpy(), counts, self.floors.numpy()
        self.merge()
        floor_bits = self.floors.view(torch.int32)[:, None]
        both = torch.cat([self.keys, floor_bits], dim=1).numpy(force=True)
        keys = both[:, :-1]
        floors = both[:, -1].astype(np.int32).view(np.float32)
        is_candidate = keys != NO_CANDIDATE
        return keys[is_candidate], is_candidate.sum(axis=1), floors


def _sort_rows(numbers: Tensor) -> Tensor:
    """Sort each row of [A, n], rising; NumPy has vector instructions for it."""
    if on_gpu(numbers):
        return numbers.sort(dim=1).values
    ordered = np.sort(numbers.numpy(), axis=1)
    return torch.from_numpy(ordered)
