"""Exact search of both directions in one product: the best captions of images, and the best images of captions.

Images meet captions in tiles of products [t captions, b images]. Every image and every caption has a list of the best k
so far and a threshold that further candidates have to reach: its k-th best score, or a floor that is guessed from the
first products seen. Pairs that reach the threshold of their caption or of their image are scored in float32, each by
itself, and enter the lists. A floor proves right if k candidates reach it in the end.

Products in bfloat16 cost a quarter of those in float32. With x' and y' the rounded vectors,

    |x.y - x'.y'| <= |x - x'| |y'| + |x| |y - y'|        (Cauchy-Schwarz)

and adding up D products in float32 is off by at most D * 2^-23 |x||y|. Thresholds are lowered by this bound before
products are compared with them, so that no pair of a list is missed. |x - x'| is measured, since it is a third of the
2^-8 |x| that it can be. A product that is rounded to bfloat16 itself needs no more than a threshold that is rounded
too, since rounding keeps the order.

Candidates are ordered by falling score, and by rising row where scores are equal: lists depend neither on the tiles nor
on who makes them, nor on whether products are in bfloat16.

On a GPU the host waits twice a tile: for the number of pairs that reach a threshold (`reaching`), and for the lists of
the captions (`TopLists.entries`). All other shapes follow from what the host knows.

A part of the map (`ExactMining`) is a fair sample of the images, and all captions pass by it in tiles. The lists of its
images are complete then; what captions found among them goes into the part's file, and `lists` merges the parts as they
are asked for, so that there is no second copy of them. The few lists whose floor was guessed too high are searched
again, without a guess.

Beside the embeddings, memory depends on the sizes of a part and of a tile, and by 40 bytes on the number of images and
captions: a part is a sixth of the images, from 2,048 to 8,192 of them, each with 20 bytes a place of its list and as
many again while lists are merged.

Source: AOQ (Chen et al., ECCV 2020) §3.1 says what is mined; the method is ours.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.engine.work import CUDA, Part, Work, numbered, resolve_device, to_device
from itrpipe.errors import DataError
from itrpipe.mining.lists import (
    DIRECTIONS,
    CandidateLists,
    ListFiles,
    Searched,
    list_slices,
    row_type,
    slices,
)
from itrpipe.storage.arrays import take
from itrpipe.storage.parts import ArrayFile, array_writer

Precision = Literal["fp32", "bf16", "bf16+fp32"]
"""Finds the candidates, which are then scored in float32: products in float32, or in bfloat16 where these are
faster (`faster_products`). "bf16" rounds the embeddings as well, which reorders candidates whose scores differ by less
than about 0.1 percent."""
NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest row: no other key is below it."""
DEFAULT_MEMORY = 128 * 2**20
"""Bytes that a tile takes on a core; a fixed sum would leave many cores a few captions each."""
BYTES_PER_PAIR, _BYTES_PER_TILED_NUMBER = 96, 32
"""A pair takes so many where all pairs of a tile become candidates; and a number of vectors read ahead."""
_BYTES_PER_GUESS, _BYTES_PER_NUMBER = 16, 8
"""A product takes so many that only shows a floor, and a number of a sample with its rounded copy."""
_DEVIATIONS = 3.0
_GROUPS = 8
_PROBED, _TRIES, _MARGIN = 128, 6, 1.15
"""Rows that are multiplied to find the faster type, how often, and by how much bfloat16, which leaves more pairs to be
scored, has to be faster."""
_FEWEST_SAMPLED, _SAMPLED = 512, 30
"""So many captions, and one of so many, show the floors of images."""
_SELECT_ROWS = 64
_MERGED_PLACES = 1 << 18
"""Places of lists that a processor merges at a time."""
_GATHERED_PAIRS = 1 << 18
_LOW = 0xFFFFFFFF
_SIGN = 2**31 - 1
IMAGE_KEYS, FLOORS, COUNTS, KEYS = "image_keys", "floors", "counts", "keys"
_SHARES, _FEWEST, _MOST = 6, 2_048, 8_192
"""Parts of a small set, and images of a part."""
_RUN_NUMBERS = 1 << 12
_SEARCHED_AGAIN = 1_024
"""Lists at a time."""
SAMPLED_ANCHORS = 200
_ROUNDING = 1e-5
"""Scores that differ by less than this share of the best one count as equal: engines add up in different orders."""
Item = TypeVar("Item")
Found = TypeVar("Found")


def on_gpu(values: Tensor) -> bool:
    """Tell whether the ways of a GPU are taken; a function, so that tests can take them on a processor."""
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


@cache
def faster_products(device: str) -> torch.dtype:
    """Return the type in which a device multiplies faster: a processor is asked, in some 50 ms, a GPU says it.

    Processors with instructions for bfloat16 may take a third of the time with them, or half as long again.
    """
    if device == CUDA:
        is_faster = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        seconds = product_seconds()
        is_faster = _MARGIN * seconds[torch.bfloat16] < seconds[torch.float32]
    return torch.bfloat16 if is_faster else torch.float32


@one_thread()
def product_seconds() -> dict[torch.dtype, float]:
    """Measure a product of two small matrices in both types on one core; they alternate, and the fastest run counts."""
    left, right = torch.ones(_PROBED, 4 * _PROBED), torch.ones(4 * _PROBED, _PROBED)
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(_TRIES):
        for kind in seconds:
            pair = left.to(kind), right.to(kind)
            start = time.perf_counter()
            torch.mm(*pair)
            seconds[kind] = min(seconds[kind], time.perf_counter() - start)
    return seconds


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


class Block(NamedTuple):
    """Some embeddings of one side on the device, b images or t captions.

    Attributes:
        rows: [b] int64 of the side, rising.
        owners: [b] int64 row of the image that each belongs to, -1 for none; of an image itself.
        exact: [b, D] float32.
        rounded: [b, D] as they are multiplied.
        norms: [b] Euclidean norm of every vector.
        lost: [b] norm of what rounding takes away from it.
    """

    rows: Tensor
    owners: Tensor
    exact: Tensor
    rounded: Tensor
    norms: Tensor
    lost: Tensor

    def bounds(self, others: Block) -> Tensor:
        """Bound how far the product [b] of each vector with any of the others can lie from their score.

        Products added up in bfloat16 units round twice per term, and the float32 score itself rounds once.
        """
        adding_up = 1.5 * self.exact.shape[1] * 2.0**-23
        largest, most_lost = others.norms.max(), others.lost.max()
        bounds = self.lost * (largest + most_lost) + self.norms * (most_lost + adding_up * largest)
        return bounds * (1 + 1e-5) + 1e-30


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
        """The lowest product [A] whose pair is scored.

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
        seen, k = products.shape[1], self.keys.shape[1]
        share = min(1.0, seen / (self._candidates or seen))
        rank = math.ceil(k * share + _DEVIATIONS * math.sqrt(k * share * (1 - share))) + 1
        floors = torch.full_like(bounds, -math.inf)
        if rank <= seen:
            groups = min(seen, _GROUPS * rank)
            largest = products[:, : seen - seen % groups].reshape(len(products), -1, groups).amax(dim=1).float()
            floors = _sorted(largest)[:, groups - rank]
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
            self.put(places, pack(scores, rows).masked_fill(~enters, NO_CANDIDATE))
        else:
            chosen = torch.from_numpy(np.flatnonzero(enters.numpy()))
            self.put(places[chosen], pack(scores[chosen], rows[chosen]))

    def put(self, places: Tensor, keys: Tensor) -> None:
        """Puts keys [P] into the lists of anchors [P], when there are enough of them to make it worth while."""
        with self._lock:
            if self._count + len(keys) > len(self._waiting):
                self.merge()
            if len(keys) > len(self._waiting):
                self._waiting = keys.new_empty(len(keys))
                self._places = self._places.new_empty(len(keys))
            start, self._count = self._count, self._count + len(keys)
            self._waiting[start : self._count] = keys
            self._places[start : self._count] = places

    def merge(self) -> None:
        """Puts all keys that wait into the lists; the last of a full list becomes its floor."""
        if not self._count:
            return
        keys, places = self._waiting[: self._count], self._places[: self._count]
        self._count = 0
        anchors, k = self.keys.shape
        if on_gpu(keys):  # the best of an anchor first: one round is enough, and nobody asks how many there are
            keys, order = keys.sort(descending=True)
            places, order = places[order].sort(stable=True)
            at_once = anchors
        else:  # NumPy sorts short integers by their digits
            short = places.numpy().astype(np.min_scalar_type(anchors))
            order = torch.from_numpy(np.argsort(short, kind="stable"))
            places = places[order]
            at_once = max(1, _MERGED_PLACES // k)
        keys = keys[order]
        starts = torch.searchsorted(places, torch.arange(anchors + 1, dtype=torch.int32, device=places.device))
        for part in slices(anchors, at_once):
            begin, end = starts[:-1][part, None], starts[1:][part, None]
            is_empty = not self._merged
            for first in range(0, k if on_gpu(keys) else int((end - begin).max()), k):
                column = begin + torch.arange(first, first + k, device=places.device)
                new = keys[column.clamp(max=len(keys) - 1)].masked_fill_(column >= end, NO_CANDIDATE)
                if not is_empty:
                    new = torch.cat([self.keys[part], new], dim=1)
                self.keys[part] = _sorted(new)[:, -k:]
                is_empty = False
        self._merged = True
        self.floors = torch.maximum(self.floors, unpack(self.keys[:, 0])[0])

    def sorted(self) -> np.ndarray:
        """Keys [A, k], falling."""
        self.merge()
        return self.keys.flip(1).numpy(force=True)

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys [P], anchor after anchor, how many each has [A], and floors [A]; a GPU is waited for once.

        Only of lists that met one tile, whose candidates came anchor after anchor: most often no list is too short.
        """
        if not on_gpu(self.keys) and not self._merged:
            counts = np.bincount(self._places[: self._count].numpy(), minlength=len(self.keys))
            if counts.max() <= self.keys.shape[1]:
                return self._waiting[: self._count].numpy(), counts, self.floors.numpy()
        self.merge()
        both = torch.cat([self.keys, self.floors.view(torch.int32)[:, None]], dim=1).numpy(force=True)
        keys, floors = both[:, :-1], both[:, -1].astype(np.int32).view(np.float32)
        found = keys != NO_CANDIDATE
        return keys[found], found.sum(axis=1), floors


def _sorted(rows: Tensor) -> Tensor:
    """Rows [A, n] whose numbers rise; NumPy has vector instructions for it."""
    return rows.sort(dim=1).values if on_gpu(rows) else torch.from_numpy(np.sort(rows.numpy(), axis=1))


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
    places = np.concatenate(found)
    row = places // len(columns)
    return torch.from_numpy(row), torch.from_numpy(places - row * len(columns))


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
    size = (len(texts), len(images))
    wanted = torch.sparse_csr_tensor(offsets, columns, torch.zeros(len(rows)), size=size, check_invariants=False)
    return torch.sparse.sampled_addmm(wanted, texts, images.T, beta=0.0).values()


class Searcher:
    """Compares images with captions on a device, a tile at a time.

    Args:
        searched: both sides.
        precision: of the products.
        device: where they are computed.
        memory: bytes that all tiles may take; 0: 128 MiB for each core, on a GPU half of what is free.

    Attributes:
        threads: that compare tiles at the same time.
    """

    def __init__(self, searched: Searched, precision: Precision, device: torch.device, memory: int) -> None:
        self._searched, self._device, free = searched, device, free_memory(device)
        self.threads = 1 if on_gpu(torch.empty(0, device=device)) else torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self.threads)
        self._rounds, self._memory = precision == "bf16", memory or free // 2 or DEFAULT_MEMORY * self.threads
        self._products = torch.float32 if precision == "fp32" else faster_products(device.type)
        self._room, self._kept = free // 4, dict[tuple[int, int, int], Block]()
        with warnings.catch_warnings():  # Torch says once that sparse matrices are in beta, of whichever thread.
            warnings.simplefilter("ignore")
            torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), check_invariants=False)
        # Partial sums in bfloat16 would be less exact than the bound says.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def in_threads(self, function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[Found]:
        """Yield what a function returns for items, in their order; several threads are at work, each computes alone.

        The threads are those of all parts: what a library of products allocates for a thread, it keeps.

        Args:
            function: of an item.
            items: taken as they are needed.
        """
        if self.threads == 1:
            yield from map(function, items)
            return
        running = deque[Future[Found]]()
        with one_thread():
            for item in items:
                running.append(self._pool.submit(function, item))
                if len(running) > self.threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()

    def block(self, side: int, rows: np.ndarray) -> Block:
        """Some images or captions, by their rows [b]."""
        owners = self._searched.owners[rows] if side else rows
        vectors = np.ascontiguousarray(take(self._searched.sides[side], rows), dtype=np.float32)
        there = [to_device(torch.from_numpy(each), self._device) for each in (rows, owners, vectors)]
        exact = there[2].bfloat16().float() if self._rounds else there[2]
        rounded = exact.to(self._products)
        norms = exact.norm(dim=1)
        lost = torch.zeros_like(norms) if rounded is exact else (exact - rounded).norm(dim=1)
        return Block(there[0], there[1], exact, rounded, norms, lost)

    def tiles(self, side: int, others: int) -> Iterator[tuple[slice, Block]]:
        """Yields all of a side, in tiles that keep to the memory, as vectors and as products with so many `others`.

        A tile stays on a GPU while there is room: every part meets it.
        """
        count, dim = self._searched.sides[side].shape
        at_once = self._memory // max(BYTES_PER_PAIR * others, _BYTES_PER_TILED_NUMBER * dim) // self.threads
        for part in slices(count, max(1, at_once)):
            key = (side, part.start, part.stop)
            block = self._kept.get(key) or self.block(side, np.arange(part.start, part.stop))
            if key not in self._kept and (size := 6 * block.exact.numel()) <= self._room:
                self._room -= size
                self._kept[key] = block
            yield part, block

    def guess(self, images: Block, lists: TopLists) -> None:
        """Guesses the floors of images by a fair sample of the captions, whatever their order."""
        count = self._searched.counts[1]
        room = self._memory // (_BYTES_PER_NUMBER * images.exact.shape[1])
        size = max(1, min(_FEWEST_SAMPLED + count // _SAMPLED, count, room))
        sample = self.block(1, np.sort(np.random.default_rng(0).choice(count, size, replace=False)))
        for part in slices(len(images.rows), max(1, self._memory // (_BYTES_PER_GUESS * size) // self.threads)):
            some = Block(*(values[part] for values in images))
            lists.guess(part, self.products(some, sample).T, some.bounds(sample))

    def products(self, images: Block, texts: Block) -> Tensor:
        """Products [t, b] of images [b] and captions [t]; minus infinity for captions with their own image."""
        products = _multiply(texts.rounded, images.rounded)
        column = torch.searchsorted(images.rows, texts.owners).clamp(max=len(images.rows) - 1)[:, None]
        own = images.rows[column] == texts.owners[:, None]
        return products.scatter_(1, column, products.gather(1, column).masked_fill(own, -math.inf))

    def compare(self, images: Block, texts: Block, by_image: TopLists, by_text: TopLists) -> None:
        """Lets the lists of images [b] and of captions [t] take in each other, where these want a list."""
        products = self.products(images, texts)
        row_limits = by_text.limits(products, texts.bounds(images))
        column_limits = by_image.limits(products.T, images.bounds(texts))
        row, column = reaching(products, row_limits, column_limits)
        scores = pair_scores(texts.exact, images.exact, row, column)
        by_text.enter(row, images.rows[column], scores)
        by_image.enter(column, texts.rows[row], scores)


def _multiply(texts: Tensor, images: Tensor) -> Tensor:
    """Products [t, b] of vectors of one type, rounded to it; of float32 they are exact but for adding up."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return torch.mm(texts, images.T)
    finally:
        torch.set_float32_matmul_precision(before)


# The map


class ExactMining(Work[Searcher]):
    """The highest-scoring captions of every image and images of every caption, own pairs left out.

    A part's file holds `image_keys` [b, num_texts] (see `pack`), the lists of its images; `counts` [T] and, caption
    after caption, `keys`, the candidates among its images; and `floors` [T], the scores below which a caption's
    candidates were left out.

    Args:
        searched: both sides.
        block: images per part, at most; 0 to choose it by their number.
        precision: of the products; "fp32" and "bf16+fp32" give the same lists.
        device: where the products are computed.
        memory: bytes that all tiles may take beside the embeddings and lists of a part; see `Searcher`.
    """

    title, unit = "mining", "images"

    def __init__(
        self,
        searched: Searched,
        *,
        block: int = 0,
        precision: Precision = "bf16+fp32",
        device: str = "cpu",
        memory: int = 0,
    ) -> None:
        self.searched, self.device, self._memory = searched, device, memory
        self.shapes = searched.shapes
        self._precision: Precision = precision
        count = searched.counts[0]
        # Neighbours stay together in short runs, so that a part is read in few pieces.
        run = max(1, _RUN_NUMBERS // searched.sides[0].shape[1])
        self._block = min(count, block or min(max(math.ceil(count / _SHARES / run) * run, _FEWEST), _MOST))
        self._run = min(run, self._block)
        self._parts = math.ceil(math.ceil(count / self._run) / (self._block // self._run))
        self.key = json.dumps([self._parts, self._run, *searched.anchors])

    def images_of(self, number: int) -> np.ndarray:
        """Rows of a part's images: a fair sample, whatever the order of all."""
        count = self.searched.counts[0]
        starts = np.arange(number * self._run, count, self._parts * self._run)
        rows = (starts[:, None] + np.arange(self._run)).ravel()
        return rows[rows < count]

    def parts(self) -> list[Part]:
        """Samples of the images."""
        return numbered((len(self.images_of(number)), number) for number in range(self._parts))

    def open(self) -> Searcher:
        """The device that compares."""
        return Searcher(self.searched, self._precision, torch.device(resolve_device(self.device)), self._memory)

    def make(self, worker: Searcher, part: Part, path: Path) -> None:
        """Compares the images of a part with all captions.

        Raises:
            DataError: products are off by more than floating-point arithmetic allows.
        """
        (count, texts), (image_width, text_width) = self.searched.counts, self.searched.widths
        rows = self.images_of(part.content)
        images, anchors = worker.block(0, rows), rows[rows < self.searched.anchors[0]]
        by_image = TopLists(images.rows < self.searched.anchors[0], image_width, texts)
        worker.guess(images, by_image)
        arrays: dict[str, Any] = {
            FLOORS: ("<f4", (texts,)),
            COUNTS: ("<i4", (texts,)),
            IMAGE_KEYS: ("<i8", (len(anchors), image_width)),
            KEYS: ("<i8", (0,)),
        }

        def compared(of_tile: tuple[slice, Block]) -> tuple[slice, tuple[np.ndarray, np.ndarray, np.ndarray]]:
            tile, captions = of_tile
            by_text = TopLists(captions.rows < self.searched.anchors[1], text_width, count)
            worker.compare(images, captions, by_image, by_text)
            return tile, by_text.entries()

        with array_writer(path, arrays) as writer:
            for tile, (keys, counts, floors) in worker.in_threads(compared, worker.tiles(1, self._block)):
                writer.write(FLOORS, tile.start, floors)
                writer.write(COUNTS, tile.start, counts)
                writer.append(KEYS, keys)
            keys = by_image.sorted()[: len(anchors)]
            lacking = np.flatnonzero((keys != NO_CANDIDATE).sum(axis=1) < self._existing(0, anchors))
            for some, found in self._search_again(worker, 0, anchors[lacking]):
                keys[lacking[some]] = found
            writer.write(IMAGE_KEYS, 0, keys)

    def lists(self, paths: Sequence[Path], direction: str) -> Iterator[tuple[slice, CandidateLists]]:
        """Yield all lists of a direction, some consecutive anchors at a time.

        Args:
            paths: of all parts.
            direction: which.

        Raises:
            DataError: products are off by more than floating-point arithmetic allows.
        """
        files = [ArrayFile(path) for path in paths]
        merged = self._image_keys(files) if direction == DIRECTIONS[0] else self._text_keys(files)
        kind = row_type(self.shapes[direction][2])
        for part, keys in merged:
            scores, candidates = unpack(torch.from_numpy(keys))
            yield part, CandidateLists(candidates.numpy().astype(kind), scores.numpy())

    def _image_keys(self, files: Sequence[ArrayFile]) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields slices of the images and the keys [a, num_texts] of their lists."""
        anchors, width, _ = self.shapes[DIRECTIONS[0]]
        rows = [self.images_of(number) for number in range(len(files))]
        for part in list_slices(anchors, width):
            keys = np.empty((part.stop - part.start, width), np.int64)
            for own, file in zip(rows, files, strict=True):
                first, stop = np.searchsorted(own, (part.start, part.stop)).tolist()
                keys[own[first:stop] - part.start] = file[IMAGE_KEYS].read(first, stop)
            yield part, keys

    def _text_keys(self, files: Sequence[ArrayFile]) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields slices of the captions and the keys [a, num_images] of their lists, merged."""
        anchors, width, _ = self.shapes[DIRECTIONS[1]]
        unproven = self._unproven(files)
        repaired = iter(())
        if len(unproven):
            repaired = chain.from_iterable(keys for _, keys in self._search_again(self.open(), 1, unproven))
        parts = list_slices(anchors, width)
        for part, *found in zip(parts, *(_text_entries(file, parts) for file in files), strict=True):
            lists = TopLists(torch.ones(part.stop - part.start, dtype=torch.bool), width)
            for places, keys in found:
                lists.put(torch.from_numpy(places), keys)
            keys = lists.sorted()
            first, stop = np.searchsorted(unproven, (part.start, part.stop))
            for row in unproven[first:stop]:
                keys[row - part.start] = next(repaired)
            yield part, keys

    def _unproven(self, files: Sequence[ArrayFile]) -> np.ndarray:
        """Returns the captions whose lists may lack a candidate that a floor has kept out, rising.

        A list is complete if as many candidates as it takes reach the highest floor.
        """
        anchors, width, _ = self.shapes[DIRECTIONS[1]]
        floors = np.full(anchors, -np.inf, np.float32)
        for file in files:
            np.maximum(floors, file[FLOORS].read(0, anchors), out=floors)
        reaching = np.zeros(anchors, np.int64)
        parts = list_slices(anchors, width)
        for file in files:
            for part, (places, keys) in zip(parts, _text_entries(file, parts), strict=True):
                reached = unpack(keys)[0].numpy() >= floors[part][places]
                reaching[part] += np.bincount(places[reached], minlength=part.stop - part.start)
        return np.flatnonzero(reaching < self._existing(1, np.arange(anchors)))

    def _search_again(self, worker: Searcher, side: int, rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields slices [r] of images or captions and the keys [r, k] of their lists, found without a guess."""
        for part in slices(len(rows), _SEARCHED_AGAIN):
            anchors = worker.block(side, rows[part])
            lists = TopLists(anchors.rows >= 0, self.searched.widths[side])
            for _, others in worker.tiles(1 - side, len(anchors.rows)):
                nobodys = TopLists(others.rows < 0, 1)
                if side == 0:
                    worker.compare(anchors, others, lists, nobodys)
                else:
                    worker.compare(others, anchors, nobodys, lists)
            keys = lists.sorted()
            short = np.count_nonzero((keys != NO_CANDIDATE).sum(axis=1) < self._existing(side, rows[part]))
            if short:
                raise DataError(
                    f"{short} lists lack candidates that exist: products are less exact on this machine than they have "
                    "to be; mine with precision fp32"
                )
            yield part, keys

    def _existing(self, side: int, rows: np.ndarray) -> np.ndarray:
        """Return how many candidates the full lists of anchors [r] have."""
        searched = self.searched
        own = searched.own_counts[rows] if side == 0 else searched.owners[rows] >= 0
        return np.minimum(searched.counts[1 - side] - own, searched.widths[side])

    def recall(self, mined: ListFiles) -> dict[str, float]:
        """Compares the lists of some anchors with exact ones; they are the same ones every time.

        Args:
            mined: lists by the scores of these embeddings, before any filter.

        Returns:
            direction -> share, 0..1, of the exact candidates that the lists hold. One of several candidates with the
            last score of a list is as good as another.
        """
        generator, worker, found = np.random.default_rng(0), self.open(), {}
        for side, name in enumerate(DIRECTIONS):
            count, width, _ = self.shapes[name]
            anchors, hits = np.sort(generator.permutation(count)[:SAMPLED_ANCHORS]), 0
            for part, keys in self._search_again(worker, side, anchors):
                exact = unpack(torch.from_numpy(keys))[0].numpy()
                last = exact[:, -1] - _ROUNDING * np.abs(exact).max(axis=1)
                lists = np.concatenate([mined.read(name, row, row + 1).scores for row in anchors[part].tolist()])
                hits += int((lists >= last[:, None]).sum())
            found[name] = hits / (len(anchors) * width)
        return found


def _text_entries(file: ArrayFile, parts: Sequence[slice]) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
    """Yields the candidates that slices of the captions found in a part: the caption of each, and their keys [P]."""
    start = 0
    for part in parts:
        counts = file[COUNTS].read(part.start, part.stop)
        keys = file[KEYS].read(start, start + int(counts.sum()))
        start += len(keys)
        yield np.arange(len(counts)).repeat(counts), torch.from_numpy(keys)
