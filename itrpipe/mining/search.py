"""Exact search of both directions in one product: the best captions of images, and the best images of captions.

Images meet captions in tiles of products [t captions, b images]. Every image and every caption has a list of the best k
so far and a threshold that further candidates have to reach: its k-th best score, or a floor that is guessed from the
first products seen. Pairs that reach the threshold of their caption or of their image are scored in float32, each by
itself, and enter the lists. A floor proves right if k candidates reach it in the end.

Products in bfloat16 cost a quarter of those in float32. With x' and y' the rounded vectors,

    |x.y - x'.y'| <= |x - x'| |y'| + |x| |y - y'|        (Cauchy-Schwarz)

where |x - x'| <= 2^-8 |x|, and adding up D products in float32 is off by at most D * 2^-23 |x||y|. Thresholds are
lowered by this bound before products are compared with them, so that no pair of a list is missed. A product that is
rounded to bfloat16 itself needs no more than a threshold that is rounded too, since rounding keeps the order.

Candidates are ordered by falling score, and by rising row where scores are equal: lists depend neither on the tiles nor
on who makes them, nor on whether products are in bfloat16.

On a GPU the host waits twice a tile: for the number of pairs that reach a threshold (`reaching`), and for the lists of
the captions (`TopLists.fetched`). All other shapes follow from what the host knows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.engine.work import has_bfloat16_units
from itrpipe.mining.lists import Searched, slices
from itrpipe.models.base import to_device
from itrpipe.storage.arrays import take

Precision = Literal["fp32", "bf16", "bf16+fp32"]
"""What finds the candidates, which are then scored in float32: products in float32, or in bfloat16 where the machine is
faster with these. "bf16" rounds the embeddings as well, which reorders candidates whose scores differ by less than
about 0.1 percent."""
NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest row: no other key is below it."""
HALF_UNIT = 2.0**-8
"""What rounding to bfloat16 takes away from a number at most, as a share of it."""
DEFAULT_MEMORY = 256 * 2**20
"""Bytes that a tile takes on a processor."""
BYTES_PER_PAIR, BYTES_PER_NUMBER = 96, 8
"""Of a tile where all its pairs become candidates, and of its vectors with their rounded copy."""
_DEVIATIONS = 3.0
_GROUPS = 8
_SELECT_ROWS = 64
_GATHERED_PAIRS = 1 << 18
_LOW = 0xFFFFFFFF
_SIGN = 2**31 - 1


def on_gpu(values: Tensor) -> bool:
    """Whether the ways of a GPU are taken; a function, so that tests can take them on a processor."""
    return values.is_cuda


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a GPU; of a processor 0."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch's operations in the calling thread alone; also a decorator.

    Where other programs compete for the cores, an operation split over threads ends when the last thread got its
    turn. A product is worth that wait; thousands of small operations are not.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pack(scores: Tensor, rows: Tensor) -> Tensor:
    """64-bit keys that sort by score, then against the row, so that no two are equal.

    The upper half holds the bits of the score, those of negative scores inverted, which makes their order as integers
    that of the numbers; the lower half counts down from the largest row.

    Args:
        scores: [...] float32 without NaN.
        rows: [...] integers in 0..2^32 - 1.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero turns -0.0, which equals 0.0, into 0.0
    return ((bits ^ ((bits >> 31) & _SIGN)).to(torch.int64) << 32) | (_LOW - rows)


def unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (float32) and rows (int64) of keys made by `pack`."""
    bits = (keys >> 32).to(torch.int32)
    return (bits ^ ((bits >> 31) & _SIGN)).view(torch.float32), _LOW - (keys & _LOW)


@dataclass(frozen=True)
class Block:
    """Some embeddings of one side on the device, b images or t captions.

    Attributes:
        rows: [b] int64 of the side, rising.
        owners: [b] int64 row of the image that each belongs to, -1 for none; of an image itself.
        exact: [b, D] float32.
        rounded: [b, D] as they are multiplied.
        norms: [b] Euclidean norm of every vector.
    """

    rows: Tensor
    owners: Tensor
    exact: Tensor
    rounded: Tensor
    norms: Tensor

    def bounds(self, others: Block) -> Tensor:
        """How far the product [b] of each vector with any of the others can lie from their score.

        Products added up in bfloat16 units round twice per term, and the float32 score itself rounds once.
        """
        lost = HALF_UNIT if self.rounded.dtype == torch.bfloat16 else 0.0
        relative = lost * (2 + lost) + 1.5 * self.exact.shape[1] * 2.0**-23
        return self.norms * (others.norms.max() * relative * (1 + 1e-5)) + 1e-30


class TopLists:
    """The best k candidates so far of each of A anchors.

    Args:
        wanted: [A] bool, the anchors that get a list.
        k: its length.
        candidates: how many there are in all; 0 where floors have to be certain.

    Attributes:
        keys: [A, k] in any order, `NO_CANDIDATE` in free places.
        floors: [A] float32, below which nothing enters.
    """

    def __init__(self, wanted: Tensor, k: int, candidates: int = 0) -> None:
        self.keys, self._merged = torch.full((len(wanted), k), NO_CANDIDATE, device=wanted.device), False
        self.floors = torch.where(wanted, math.nan, math.inf)
        self._candidates, self._lowest, self._is_new = candidates, self.keys[:, 0], True
        self._waiting: list[tuple[Tensor, Tensor]] = []

    @one_thread()
    def limits(self, products: Tensor, bounds: Tensor) -> Tensor:
        """The lowest product [A] whose pair is scored.

        Args:
            products: [A, c], from which floors are found where there are none yet.
            bounds: [A] how far a product can lie from the score.
        """
        if self._is_new:
            self.floors = torch.where(self.floors.isnan(), self._first_floors(products, bounds), self.floors)
            self._is_new = False
        return self._thresholds() - bounds

    def _thresholds(self) -> Tensor:
        return torch.maximum(self.floors, unpack(self._lowest)[0])

    def _first_floors(self, products: Tensor, bounds: Tensor) -> Tensor:
        """The score that k of all candidates are expected to reach, less three deviations of that count.

        The n-th largest of the products seen is found among the largest of groups of them, which is much faster and
        gives that one or a slightly smaller one.
        """
        seen, k = products.shape[1], self.keys.shape[1]
        share = min(1.0, seen / (self._candidates or seen))
        rank = math.ceil(k * share + _DEVIATIONS * math.sqrt(k * share * (1 - share))) + 1
        if rank > seen:
            return torch.full_like(bounds, -math.inf)
        groups = min(seen, _GROUPS * rank)
        largest = products[:, : seen - seen % groups].reshape(len(products), -1, groups).amax(dim=1).float()
        if on_gpu(largest):
            floors = largest.kthvalue(groups - rank + 1, dim=1).values
        else:
            floors = torch.from_numpy(np.partition(largest.numpy(), groups - rank, axis=1)[:, groups - rank].copy())
        # Where nothing is guessed, k products do reach the floor; the scores behind them may be less, by the rounding
        # of the product and the bound.
        return floors - floors.abs() * 2**-8 - bounds if share == 1 else floors

    @one_thread()
    def take(self, places: Tensor, rows: Tensor, scores: Tensor) -> None:
        """Lets candidates enter.

        Args:
            places: [P] the anchor of each.
            rows: [P] the candidate.
            scores: [P] float32.
        """
        enters = scores >= self._thresholds()[places]
        if on_gpu(scores):  # how many enter would have to be waited for
            self.put(places, pack(scores, rows).masked_fill(~enters, NO_CANDIDATE))
        else:
            chosen = enters.nonzero()[:, 0]
            self.put(places[chosen], pack(scores[chosen], rows[chosen]))

    def put(self, places: Tensor, keys: Tensor) -> None:
        """Puts keys [P] into the lists of anchors [P], when there are enough of them to make it worth while."""
        self._waiting.append((places, keys))
        if sum(len(each) for each, _ in self._waiting) > self.keys.numel():
            self.merge()

    @one_thread()
    def merge(self) -> None:
        """Puts all keys that wait into the lists."""
        if not self._waiting:
            return
        places, keys = (torch.cat(each) for each in zip(*self._waiting, strict=True))
        self._waiting.clear()
        (anchors, k), device = self.keys.shape, places.device
        if on_gpu(keys):  # the best of an anchor first: one round is enough, and nobody asks how many there are
            keys, order = keys.sort(descending=True)
            places = places[order]
        places, order = places.int().sort(stable=True)
        keys = torch.cat([keys[order], self.keys.new_full((1,), NO_CANDIDATE)])
        starts = torch.searchsorted(places, torch.arange(anchors + 1, dtype=torch.int32, device=device))
        begin, end = starts[:-1, None], starts[1:, None]
        for first in range(0, k if on_gpu(keys) else int((end - begin).max()), k):
            column = begin + torch.arange(first, first + k, device=device)
            new = keys[torch.where(column < end, column, -1)]  # behind the last key of an anchor there is no candidate
            if self._merged:
                new = torch.cat([self.keys, new], dim=1).topk(k, dim=1, sorted=False).values
            self.keys, self._merged = new, True
        self._lowest = self.keys.amin(dim=1)

    def sorted(self) -> np.ndarray:
        """Keys [A, k], falling."""
        self.merge()
        return self.keys.sort(dim=1, descending=True).values.numpy(force=True)

    def fetched(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys [A, k] in any order, and floors [A]; a GPU is waited for once."""
        self.merge()
        both = torch.cat([self.keys, self.floors.view(torch.int32)[:, None]], dim=1).numpy(force=True)
        return both[:, :-1], both[:, -1].astype(np.int32).view(np.float32)


@one_thread()
def reaching(products: Tensor, row_limits: Tensor, column_limits: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the products that reach the limit of their row or of their column; minus infinity reaches nothing.

    Args:
        products: [r, c] of any precision.
        row_limits: [r] float32; rounded as products are, which keeps the order.
        column_limits: [c] float32.

    Returns:
        Rows and columns, int64, row after row and columns rising.
    """
    limits = (row_limits[:, None], column_limits)
    by_row, by_column = (each.to(products.dtype).clamp(min=torch.finfo(products.dtype).min) for each in limits)
    if on_gpu(products):
        row, column = ((products >= by_row) | (products >= by_column)).nonzero(as_tuple=True)
        return row, column
    # On a processor NumPy is several times as fast, with few enough rows at a time to stay in the cache. It does not
    # know bfloat16, of which the bits of numbers above zero have their order.
    bits = products.dtype == torch.bfloat16 and bool((by_row > 0).all() and (by_column > 0).all())
    compared, rows, columns = (
        (each.view(torch.int16) if bits else each.float()).numpy() for each in (products, by_row, by_column)
    )
    found = []
    for part in slices(len(compared), _SELECT_ROWS):
        reached = compared[part] >= columns
        reached |= compared[part] >= rows[part]
        found.append(np.flatnonzero(reached) + part.start * len(columns))
    places = torch.from_numpy(np.concatenate(found))
    return places // len(columns), places % len(columns)


def pair_scores(texts: Tensor, images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Inner products of chosen pairs in float32; each depends on its two vectors alone, not on the other pairs.

    Args:
        texts: [t, D] float32.
        images: [b, D] float32.
        rows: [P] rows of `texts`, rising.
        columns: [P] rows of `images`.

    Returns:
        [P] float32.
    """
    if on_gpu(texts):
        # Pieces of one size: a GPU adds up in another order where there are few rows.
        pieces = (F.pad(each, (0, -len(rows) % _GATHERED_PAIRS)).split(_GATHERED_PAIRS) for each in (rows, columns))
        found = [(texts[row] * images[column]).sum(dim=1) for row, column in zip(*pieces, strict=True)]
        return torch.cat(found)[: len(rows)]
    offsets = torch.zeros(len(texts) + 1, dtype=torch.int64)
    torch.cumsum(rows.bincount(minlength=len(texts)), dim=0, out=offsets[1:])
    # A product that is computed only where a sparse matrix has places: no vector is copied.
    with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(False):
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        size = (len(texts), len(images))
        wanted = torch.sparse_csr_tensor(offsets, columns, torch.zeros(len(rows)), size=size)
        return torch.sparse.sampled_addmm(wanted, texts, images.T, beta=0.0).values()


class Searcher:
    """Compares images with captions on a device, a tile at a time.

    Args:
        searched: both sides.
        precision: of the products.
        device: where they are computed.
        memory: bytes that a tile may take; 0: 256 MiB, on a GPU half of what is free.
    """

    def __init__(self, searched: Searched, precision: Precision, device: torch.device, memory: int) -> None:
        self._searched, self._device, free = searched, device, free_memory(device)
        self._rounds, self._memory = precision == "bf16", memory or free // 2 or DEFAULT_MEMORY
        halved = precision != "fp32" and has_bfloat16_units(device.type)
        self._products = torch.bfloat16 if halved else torch.float32
        self._room, self._kept = free // 4, dict[tuple[int, int, int], Block]()
        # Partial sums in bfloat16 would be less exact than the bound says.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def block(self, side: int, rows: np.ndarray) -> Block:
        """Some images or captions, by their rows [b]."""
        owners = self._searched.owners[rows] if side else rows
        vectors = np.ascontiguousarray(take(self._searched.sides[side], rows), dtype=np.float32)
        there = [to_device(torch.from_numpy(each), self._device) for each in (rows, owners, vectors)]
        exact = there[2].bfloat16().float() if self._rounds else there[2]
        return Block(there[0], there[1], exact, exact.to(self._products), exact.norm(dim=1))

    def tiles(self, side: int, others: int) -> Iterator[tuple[slice, Block]]:
        """Yields all of a side, in tiles that keep to the memory, as vectors and as products with so many `others`.

        A tile stays on a GPU while there is room: every part meets it.
        """
        count, dim = self._searched.sides[side].shape
        at_once = self._memory // max(BYTES_PER_PAIR * others, BYTES_PER_NUMBER * dim)
        for part in slices(count, max(1, at_once)):
            key = (side, part.start, part.stop)
            block = self._kept.get(key) or self.block(side, np.arange(part.start, part.stop))
            if key not in self._kept and (size := 6 * block.exact.numel()) <= self._room:
                self._room -= size
                self._kept[key] = block
            yield part, block

    def compare(self, images: Block, texts: Block, by_image: TopLists | None, by_text: TopLists | None) -> None:
        """Lets the lists of images [b] and of captions [t] take in each other; None leaves a direction alone."""
        products = _multiply(texts.rounded, images.rounded)
        column = torch.searchsorted(images.rows, texts.owners).clamp(max=len(images.rows) - 1)[:, None]
        own = images.rows[column] == texts.owners[:, None]
        products.scatter_(1, column, products.gather(1, column).masked_fill(own, -math.inf))
        limits = []
        for lists, seen, ours, others in ((by_text, products, texts, images), (by_image, products.T, images, texts)):
            bounds = ours.bounds(others)
            limits.append(lists.limits(seen, bounds) if lists else torch.full_like(bounds, math.inf))
        row, column = reaching(products, *limits)
        scores = pair_scores(texts.exact, images.exact, row, column)
        if by_text:
            by_text.take(row, images.rows[column], scores)
        if by_image:
            by_image.take(column, texts.rows[row], scores)


def _multiply(texts: Tensor, images: Tensor) -> Tensor:
    """Products [t, b] of vectors of one type, rounded to it; of float32 they are exact but for adding up."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return torch.mm(texts, images.T)
    finally:
        torch.set_float32_matmul_precision(before)
