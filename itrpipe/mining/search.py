"""Exact search of both directions in one product: the best captions of images, and the best images of captions.

Images meet captions in tiles of products [t captions, b images]. Every image and every caption has a list of the best k
so far and a threshold that further candidates have to reach: its k-th best score, or a floor that is guessed from the
first products seen. Pairs that reach the threshold of their caption or of their image are scored in float32, each by
itself, and enter the lists. A floor proves right if k candidates reach it in the end.

Products in bfloat16 cost a quarter of those in float32. With x' and y' the rounded vectors,

    |x.y - x'.y'| <= |x - x'| |y'| + |x| |y - y'|        (Cauchy-Schwarz)

and adding up D products in float32 is off by at most D * 2^-23 |x||y|. Thresholds are lowered by this bound before
products are compared with them, so that no pair of a list is missed. A product that is rounded to bfloat16 itself needs
no more than a threshold that is rounded too, since rounding keeps the order.

Candidates are ordered by falling score, and by rising row where scores are equal: lists depend neither on the tiles nor
on who makes them, nor on whether products are in bfloat16.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from itrpipe.engine.work import CUDA, has_bfloat16_units
from itrpipe.mining.rows import slices
from itrpipe.storage.arrays import Rows, take

Precision = Literal["fp32", "bf16", "bf16+fp32"]
"""What finds the candidates, which are then scored in float32: products in float32, or in bfloat16 where the machine is
faster with these. "bf16" rounds the embeddings as well, which reorders candidates whose scores differ by less than
about 0.1 percent."""
NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest row: no other key is below it."""
DEFAULT_MEMORY = 256 * 2**20
"""Bytes that a tile takes on a processor."""
BYTES_PER_PAIR = 96
"""Of a tile where all its pairs become candidates."""
_DEVIATIONS = 3.0
_GROUPS = 8
_SELECT_ROWS = 64
_GATHERED_PAIRS = 1 << 18
_LOW = 0xFFFFFFFF
_SIGN = 2**31 - 1


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


class Block:
    """Some embeddings of one side on the device, b images or t captions.

    Args:
        rows: [b] of the side, rising.
        vectors: [b, D] float32.
        products: type of the numbers that are multiplied.

    Attributes:
        exact: [b, D] float32.
        rounded: [b, D] as they are multiplied.
        norms: [b] Euclidean norm of every vector.
        lost: [b] norm of what rounding takes away from it.
    """

    @one_thread()
    def __init__(self, rows: np.ndarray, vectors: Tensor, products: torch.dtype) -> None:
        self.rows, self.exact, self.rounded = rows, vectors, vectors.to(products)
        self.norms, self.lost = vectors.norm(dim=1), (self.rounded.float() - vectors).norm(dim=1)

    def bounds(self, others: Block) -> Tensor:
        """How far the product [b] of each vector with any of the others can lie from their score.

        Products added up in bfloat16 units round twice per term, and the float32 score itself rounds once. Residuals
        are measured rather than bounded by half a unit in the last place, which makes the bound 2.5 times tighter.
        """
        norm, lost = others.norms.max(), others.lost.max()
        adding_up = 1.5 * self.exact.shape[1] * 2.0**-23
        bound = self.lost * (norm + lost) + self.norms * (lost + adding_up * norm)
        return bound * (1 + 1e-5) + 1e-30


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
        self.keys = torch.full((len(wanted), k), NO_CANDIDATE, device=wanted.device)
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
        largest = products[:, : seen - seen % groups].reshape(len(products), -1, groups).amax(dim=1)
        floors = largest.kthvalue(groups - rank + 1, dim=1).values
        # Where nothing is guessed, k products do reach the floor; the scores behind them may be less, by the rounding
        # of the product and the bound.
        return floors - floors.abs() * 2**-8 - bounds if share == 1 else floors

    @one_thread()
    def take(self, places: Tensor, others: Tensor, rows: np.ndarray, scores: Tensor) -> None:
        """Lets candidates enter.

        Args:
            places: [P] the anchor of each.
            others: [P] the candidate, as a place in a block.
            rows: [c] those of the block.
            scores: [P] float32.
        """
        enters = scores >= self._thresholds()[places]
        self.put(places[enters], pack(scores[enters], torch.from_numpy(rows).to(places.device)[others[enters]]))

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
        anchors, k = self.keys.shape
        places, order = places.int().sort(stable=True)
        counts = places.bincount(minlength=anchors)
        column = torch.arange(len(keys), device=places.device) - (counts.cumsum(0) - counts)[places]
        for first in range(0, int(counts.max()), k):
            now = (column >= first) & (column < first + k)
            new = torch.full_like(self.keys, NO_CANDIDATE)
            new[places[now], column[now] - first] = keys[order[now]]
            self.keys = torch.cat([self.keys, new], dim=1).topk(k, dim=1, sorted=False).values
        self._lowest = self.keys.amin(dim=1)

    def sorted(self) -> Tensor:
        """Keys [A, k], falling."""
        self.merge()
        return self.keys.sort(dim=1, descending=True).values


@one_thread()
def reaching(products: Tensor, row_limits: Tensor, column_limits: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the products that reach the limit of their row or of their column; minus infinity reaches nothing.

    Args:
        products: [r, c] float32.
        row_limits: [r] float32.
        column_limits: [c] float32.

    Returns:
        Rows and columns, int64, row after row and columns rising.
    """
    by_row, by_column = (each.clamp(min=torch.finfo(each.dtype).min) for each in (row_limits[:, None], column_limits))
    if products.is_cuda:
        row, column = ((products >= by_row) | (products >= by_column)).nonzero(as_tuple=True)
        return row, column
    # On a processor NumPy is several times as fast, with few enough rows at a time to stay in the cache.
    width, found = products.shape[1], []
    for part in slices(len(products), _SELECT_ROWS):
        reached = products[part].numpy() >= by_column.numpy()
        reached |= products[part].numpy() >= by_row[part].numpy()
        found.append(np.flatnonzero(reached) + part.start * width)
    places = torch.from_numpy(np.concatenate(found))
    return places // width, places % width


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
    if texts.is_cuda:
        pieces = zip(rows.split(_GATHERED_PAIRS), columns.split(_GATHERED_PAIRS), strict=True)
        return torch.cat([(texts[row] * images[column]).sum(dim=1) for row, column in pieces])
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
        precision: of the products.
        device: where they are computed.
        memory: bytes that a tile may take; 0: 256 MiB, on a GPU half of what is free.

    Attributes:
        pairs: of a tile, at most.
    """

    def __init__(self, precision: Precision, device: torch.device, memory: int) -> None:
        self._device, self._rounds = device, precision == "bf16"
        halved = precision != "fp32" and has_bfloat16_units(device.type)
        self._products = torch.bfloat16 if halved else torch.float32
        self._room, self._kept = 0, dict[tuple[int, range], Block]()
        if device.type == CUDA:
            free = torch.cuda.mem_get_info(device)[0]
            memory, self._room = memory or free // 2, free // 4
            # Partial sums in bfloat16 would be less exact than the bound says.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.pairs = max(1, (memory or DEFAULT_MEMORY) // BYTES_PER_PAIR)

    def block(self, side: int, values: Rows, rows: np.ndarray | range) -> Block:
        """Some rows of the embeddings of a side on the device; a GPU with room keeps a range of them there."""
        if isinstance(rows, range) and (side, rows) in self._kept:
            return self._kept[side, rows]
        every = np.asarray(rows)
        vectors = torch.from_numpy(np.ascontiguousarray(take(values, every), dtype=np.float32)).to(self._device)
        block = Block(every, vectors.bfloat16().float() if self._rounds else vectors, self._products)
        size = 6 * vectors.numel()
        if isinstance(rows, range) and size <= self._room:
            self._room -= size
            self._kept[side, rows] = block
        return block

    def lists(self, wanted: np.ndarray, k: int, candidates: int = 0) -> TopLists:
        """Empty lists on the device, see `TopLists`."""
        return TopLists(torch.from_numpy(wanted).to(self._device), k, candidates)

    def compare(
        self, images: Block, texts: Block, owners: np.ndarray, by_image: TopLists | None, by_text: TopLists | None
    ) -> None:
        """Lets the lists of images [b] and of captions [t] take in each other; None leaves a direction alone.

        Args:
            images, texts: both sides of the tile.
            owners: [t] rows of the captions' images, -1 for none.
            by_image, by_text: their lists.
        """
        products = _multiply(texts.rounded, images.rounded)
        column = np.searchsorted(images.rows, owners).clip(max=len(images.rows) - 1)
        own = np.flatnonzero(images.rows[column] == owners)
        products[torch.from_numpy(own), torch.from_numpy(column[own])] = -math.inf
        limits = []
        for lists, seen, ours, others in ((by_text, products, texts, images), (by_image, products.T, images, texts)):
            bounds = ours.bounds(others)
            limit = lists.limits(seen, bounds) if lists else torch.full_like(bounds, math.inf)
            limits.append(limit.to(self._products).float())  # rounded as products are
        row, column = reaching(products, *limits)
        scores = pair_scores(texts.exact, images.exact, row, column)
        if by_text:
            by_text.take(row, column, images.rows, scores)
        if by_image:
            by_image.take(column, row, texts.rows, scores)


def _multiply(texts: Tensor, images: Tensor) -> Tensor:
    """Products [t, b] float32 of vectors of one type, rounded to it; of float32 they are exact but for adding up."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return torch.mm(texts, images.T).float()
    finally:
        torch.set_float32_matmul_precision(before)
