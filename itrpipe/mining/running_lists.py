"""Top lists of many anchors that take in candidates tile by tile, with a guessed floor that is proven in the end.

The first tile of an anchor shows a sample of its candidates. The score which k of all candidates are expected to
reach, less three standard deviations of that count, is its floor: candidates below it are never looked at again.
That was right if, after all tiles, k candidates are in the list; otherwise the list has to be made again without
the guess.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from itrpipe.mining.products import ordered_bits
from itrpipe.mining.top_k import NO_CANDIDATE, keep_largest, kth_largest, matrix_of_keys, pack, unpack

_MERGED_ROWS = 512
_KTH_ROWS = 256
_DEVIATIONS = 3.0


class RunningLists:
    """The best k candidates so far of every anchor.

    Attributes:
        keys: [A, k] int64 as `top_k.pack` makes them; the first of a row is its smallest, the rest unordered.
        floors: [A] float32, NaN before the first tile of an anchor; no candidate below enters.
    """

    def __init__(self, anchors: int, k: int, candidates: int, device: torch.device | str) -> None:
        self.keys = torch.full((anchors, k), NO_CANDIDATE, device=device)
        self.floors = torch.full((anchors,), float("nan"), device=device)
        self._candidates = candidates

    def set_floors(self, scores: Tensor, rows: Tensor, bounds: Tensor) -> None:
        """Guesses the floors of those anchors that have none yet; see `guessed_floors`.

        Args:
            scores: [a, c] products of the anchors with a sample of their candidates, or with all of them.
            rows: [a] the anchors.
            bounds: [a] how far a product can lie from the score.
        """
        new = self.floors[rows].isnan()
        if bool(new.any()):
            self.floors[rows[new]] = guessed_floors(scores, new, bounds, self.keys.shape[1], self._candidates)

    def thresholds(self, rows: Tensor) -> Tensor:
        """The score [a] that a candidate must reach to enter the list of an anchor."""
        return torch.maximum(self.floors[rows], unpack(self.keys[rows, 0])[0])

    def take(self, rows: Tensor, places: Tensor, candidates: Tensor, scores: Tensor) -> None:
        """Merges candidates into the lists.

        Args:
            rows: [a] anchors.
            places: [P] index into `rows` of the anchor of each candidate.
            candidates: [P] row of the candidate.
            scores: [P] float32.
        """
        enters = scores >= self.thresholds(rows)[places]
        places, keys = places[enters], pack(scores[enters], candidates[enters])
        if not len(places):
            return
        order = _stable_order(places, len(rows))
        places, keys = places[order], keys[order]
        active, counts = places.unique_consecutive(return_counts=True)
        ends = counts.cumsum(0)
        for start in range(0, len(active), _MERGED_ROWS):
            part = slice(start, start + _MERGED_ROWS)
            first, last = int(ends[start] - counts[start]), int(ends[part][-1])
            into = rows[active[part]]
            joined = torch.cat([self.keys[into], matrix_of_keys(keys[first:last], counts[part])], dim=1)
            self.keys[into] = keep_largest(joined, self.keys.shape[1])

    def sorted_keys(self) -> np.ndarray:
        """Keys [A, k] int64, falling; `NO_CANDIDATE` where a floor was too high."""
        pieces = [part.sort(dim=1, descending=True).values.numpy(force=True) for part in self.keys.split(_MERGED_ROWS)]
        return np.concatenate(pieces)


def guessed_floors(scores: Tensor, wanted: Tensor, bounds: Tensor, k: int, candidates: int) -> Tensor:
    """The score that k of all candidates are expected to reach, by a sample, less three deviations of that count.

    Args:
        scores: [a, c] products of anchors with a sample of their candidates, or with all of them.
        wanted: [a] bool, the anchors that need a floor.
        bounds: [a] how far a product can lie from the score.
        k: length of a list.
        candidates: how many there are in all.

    Returns:
        [w] float32 of the wanted ones; minus infinity where the sample is too small to tell.
    """
    seen = scores.shape[1]
    rank = _rank(k, seen, candidates)
    if rank > seen:
        return torch.full((int(wanted.sum()),), float("-inf"), device=scores.device)
    floors = torch.cat([_kth(part, rank) for part in _split(scores, wanted)])
    if seen < candidates:
        return floors
    # k products do reach the k-th one; the scores behind them may be less by the rounding of what is kept in bfloat16,
    # half of the last of 8 bits, and by the bound.
    kept = floors.abs() * 2**-8 if scores.dtype == torch.bfloat16 else 0.0
    return floors - kept - bounds[wanted]


def _rank(k: int, seen: int, candidates: int) -> int:
    """Place in a sample of `seen` candidates at whose score the floor is put."""
    share = seen / candidates
    if share == 1:
        return k
    expected = k * share
    return math.ceil(expected + _DEVIATIONS * math.sqrt(expected * (1 - share))) + 1


def _stable_order(places: Tensor, groups: int) -> Tensor:
    if places.is_cuda or groups > 1 << 16:
        return places.argsort(stable=True)
    # numpy sorts 16-bit integers digit by digit, several times as fast as wider ones.
    return torch.from_numpy(np.argsort(places.numpy().astype(np.uint16), kind="stable"))


def _split(scores: Tensor, wanted: Tensor) -> list[Tensor]:
    """The wanted rows of scores, in pieces; whole slices where all are wanted, which copies nothing."""
    if bool(wanted.all()):
        return list(scores.split(_KTH_ROWS))
    return [scores[rows] for rows in wanted.nonzero()[:, 0].split(_KTH_ROWS)]


def _kth(scores: Tensor, k: int) -> Tensor:
    """The k-th largest [a] float32 of every row of scores [a, c] of either type."""
    if scores.dtype == torch.float32:
        return kth_largest(scores.contiguous(), k)
    bits = scores.contiguous().view(torch.int16)
    place = bits.shape[1] - k
    found = torch.from_numpy(np.partition(bits.numpy(), place, axis=1)[:, place].copy())
    if bool((found < 0).any()):  # the bits of negative numbers are in reverse order
        found = torch.from_numpy(np.partition(ordered_bits(bits).numpy(), place, axis=1)[:, place].copy())
        found = ordered_bits(found)
    return found.view(torch.bfloat16).float()
