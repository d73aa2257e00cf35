"""Products of images with captions on a device, and the scores of the pairs that their lists may take in.

A `Searcher` reads vectors as `Block`s, multiplies them in the faster type of the device, and gives the lists of both
sides (`TopLists`) the pairs whose product reaches a limit, scored in float32; see `exact` for why none is missed.

Lists of the best candidates are tensors of 64-bit keys. A key holds a score and a row, so that sorting keys sorts
candidates by falling score, and by rising row where scores are equal.

Shapes: b images and t captions of a block, P pairs, D width of a vector.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.engine.work import CUDA, to_device
from itrpipe.mining.lists import Searched, slices
from itrpipe.storage.arrays import take

Precision = Literal["fp32", "bf16", "bf16+fp32"]
"""Finds the candidates, which are then scored in float32: products in float32, or in bfloat16 where these are
faster (`faster_products`). "bf16" rounds the embeddings as well, which reorders candidates whose scores differ by less
than about 0.1 percent."""
DEFAULT_MEMORY = 128 * 2**20
"""Bytes that a tile takes on a core; a fixed sum would leave many cores a few captions each."""
BYTES_PER_PAIR = 96
"""Bytes of a pair where all pairs of a tile become candidates."""
_BYTES_PER_TILED_NUMBER = 32
"""Bytes of a number of vectors that are read ahead."""
_BYTES_PER_GUESS = 16
"""Bytes of a product that only shows a floor."""
_BYTES_PER_SAMPLED_NUMBER = 8
"""Bytes of a number of a sample with its rounded copy."""
_BYTES_PER_KEPT_NUMBER = 6
_MEASURED_ROWS = 128
_MEASUREMENTS = 6
_ADVANTAGE = 1.15
"""Factor by which bfloat16, which leaves more pairs to be scored, has to be faster."""
_FEWEST_SAMPLED = 512
_CAPTIONS_PER_SAMPLED = 30
_SELECTED_ROWS = 64
_GATHERED_PAIRS = 1 << 18
NO_CANDIDATE = -0x7F800001 << 32
"""The key of a score of minus infinity at the largest row: no other key is below it."""
_LOW_BITS = 0xFFFFFFFF
_ALL_BUT_SIGN = 2**31 - 1
_DEVIATIONS = 3.0
_GROUPS_PER_RANK = 8
_MERGED_PLACES = 1 << 18
"""Places of lists that a processor merges at a time."""
Item = TypeVar("Item")
Found = TypeVar("Found")


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


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a GPU; of a processor 0."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations in the calling thread alone; also a decorator.

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
        is_faster = _ADVANTAGE * seconds[torch.bfloat16] < seconds[torch.float32]
    return torch.bfloat16 if is_faster else torch.float32


@one_thread()
def product_seconds() -> dict[torch.dtype, float]:
    """Measure a product of two small matrices in both types on one core; they alternate, and the fastest run counts."""
    left = torch.ones(_MEASURED_ROWS, 4 * _MEASURED_ROWS)
    right = torch.ones(4 * _MEASURED_ROWS, _MEASURED_ROWS)
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(_MEASUREMENTS):
        for kind in seconds:
            pair = left.to(kind), right.to(kind)
            start = time.perf_counter()
            torch.mm(*pair)
            seconds[kind] = min(seconds[kind], time.perf_counter() - start)
    return seconds


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
        largest = others.norms.max()
        most_lost = others.lost.max()
        of_lost = self.lost * (largest + most_lost)
        of_norms = self.norms * (most_lost + adding_up * largest)
        return (of_lost + of_norms) * (1 + 1e-5) + 1e-30


def reaching(
    products: Tensor,
    row_limits: Tensor,
    column_limits: Tensor,
) -> tuple[Tensor, Tensor]:
    """Find the products that reach the limit of their row or of their column; minus infinity reaches nothing.

    Args:
        products: [r, c] of any precision.
        row_limits: [r] float32; rounded as products are, which keeps the order.
        column_limits: [c] float32.

    Returns:
        Rows and columns, int64, row after row and columns rising.
    """
    lowest = torch.finfo(products.dtype).min
    by_row = row_limits[:, None].to(products.dtype).clamp(min=lowest)
    by_column = column_limits.to(products.dtype).clamp(min=lowest)
    if on_gpu(products):
        reached = (products >= by_row) | (products >= by_column)
        row, column = reached.nonzero(as_tuple=True)
        return row, column

    # On a processor NumPy is several times as fast, with few enough rows at a time to stay in the cache. It does not
    # know bfloat16, of which the bits of numbers above zero have their order.
    kind = torch.float32
    is_rounded = products.dtype == torch.bfloat16
    if is_rounded and bool((by_row > 0).all() and (by_column > 0).all()):
        kind = torch.int16
        products = products.view(kind)
        by_row = by_row.view(kind)
        by_column = by_column.view(kind)
    compared = products.to(kind).numpy()
    rows = by_row.to(kind).numpy()
    columns = by_column.to(kind).numpy()
    places = []
    for part in slices(len(compared), _SELECTED_ROWS):
        reached = compared[part] >= columns
        reached |= compared[part] >= rows[part]
        places.append(np.flatnonzero(reached) + part.start * len(columns))
    place = np.concatenate(places)
    row = place // len(columns)
    column = place - row * len(columns)
    return torch.from_numpy(row), torch.from_numpy(column)


def pair_scores(texts: Tensor, images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute inner products of chosen pairs in float32; each depends on its two vectors alone, not on other pairs.

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
        padding = (0, -len(rows) % _GATHERED_PAIRS)
        row_pieces = F.pad(rows, padding).split(_GATHERED_PAIRS)
        column_pieces = F.pad(columns, padding).split(_GATHERED_PAIRS)
        scores = []
        for row, column in zip(row_pieces, column_pieces, strict=True):
            products = texts[row] * images[column]
            scores.append(products.sum(dim=1))
        return torch.cat(scores)[: len(rows)]
    counts = rows.bincount(minlength=len(texts))
    offsets = torch.zeros(len(texts) + 1, dtype=torch.int64)
    torch.cumsum(counts, dim=0, out=offsets[1:])
    # A product that is computed only where a sparse matrix has places: no vector is copied.
    pairs = torch.sparse_csr_tensor(
        offsets,
        columns,
        torch.zeros(len(rows)),
        size=(len(texts), len(images)),
        check_invariants=False,
    )
    products = torch.sparse.sampled_addmm(pairs, texts, images.T, beta=0.0)
    return products.values()


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

    def __init__(
        self,
        searched: Searched,
        precision: Precision,
        device: torch.device,
        memory: int,
    ) -> None:
        self._searched = searched
        self._device = device
        self.threads = torch.get_num_threads()
        if on_gpu(torch.empty(0, device=device)):
            self.threads = 1
        self._pool = ThreadPoolExecutor(self.threads)
        free = free_memory(device)
        self._memory = memory or free // 2 or DEFAULT_MEMORY * self.threads
        self._rounds_vectors = precision == "bf16"
        self._product_type = torch.float32 if precision == "fp32" else faster_products(device.type)
        self._room = free // 4
        self._kept = dict[tuple[int, int, int], Block]()
        with warnings.catch_warnings():  # Torch says once that sparse matrices are in beta, of whichever thread.
            warnings.simplefilter("ignore")
            torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1), check_invariants=False)
        # Partial sums in bfloat16 would be less exact than the bound says.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def in_threads(
        self,
        function: Callable[[Item], Found],
        items: Iterable[Item],
    ) -> Iterator[Found]:
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
        """Read some images or captions, by their rows [b]."""
        owners = self._searched.owners[rows] if side else rows
        vectors = take(self._searched.sides[side], rows)
        exact = self._on_device(np.ascontiguousarray(vectors, dtype=np.float32))
        if self._rounds_vectors:
            exact = exact.bfloat16().float()
        rounded = exact.to(self._product_type)
        norms = exact.norm(dim=1)
        lost = torch.zeros_like(norms)
        if rounded is not exact:
            lost = (exact - rounded).norm(dim=1)
        return Block(
            self._on_device(rows),
            self._on_device(owners),
            exact,
            rounded,
            norms,
            lost,
        )

    def _on_device(self, array: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(array), self._device)

    def tiles(self, side: int, others: int) -> Iterator[tuple[slice, Block]]:
        """Yield all of a side, in tiles that keep to the memory, as vectors and as products with so many `others`.

        A tile stays on a GPU while there is room: every part meets it.
        """
        count, dim = self._searched.sides[side].shape
        bytes_per_row = max(BYTES_PER_PAIR * others, _BYTES_PER_TILED_NUMBER * dim)
        rows_at_once = max(1, self._memory // bytes_per_row // self.threads)
        for part in slices(count, rows_at_once):
            key = (side, part.start, part.stop)
            block = self._kept.get(key)
            if block is None:
                block = self.block(side, np.arange(part.start, part.stop))
                size = _BYTES_PER_KEPT_NUMBER * block.exact.numel()
                if size <= self._room:
                    self._room -= size
                    self._kept[key] = block
            yield part, block

    def guess(self, images: Block, lists: TopLists) -> None:
        """Guess the floors of images by a fair sample of the captions, whatever their order."""
        count = self._searched.counts[1]
        room = self._memory // (_BYTES_PER_SAMPLED_NUMBER * images.exact.shape[1])
        fair_size = _FEWEST_SAMPLED + count // _CAPTIONS_PER_SAMPLED
        size = max(1, min(fair_size, count, room))
        rows = np.random.default_rng(0).choice(count, size, replace=False)
        sample = self.block(1, np.sort(rows))
        images_at_once = max(1, self._memory // (_BYTES_PER_GUESS * size) // self.threads)
        for part in slices(len(images.rows), images_at_once):
            some = Block(*(values[part] for values in images))
            products = self.products(some, sample)
            lists.guess(part, products.T, some.bounds(sample))

    def products(self, images: Block, texts: Block) -> Tensor:
        """Return products [t, b] of images [b] and captions [t]; minus infinity for captions with their own image."""
        products = _multiply(texts.rounded, images.rounded)
        column = torch.searchsorted(images.rows, texts.owners)
        column = column.clamp(max=len(images.rows) - 1)[:, None]
        is_own = images.rows[column] == texts.owners[:, None]
        own = products.gather(1, column)
        without_own = own.masked_fill(is_own, -math.inf)
        return products.scatter_(1, column, without_own)

    def compare(
        self,
        images: Block,
        texts: Block,
        by_image: TopLists,
        by_text: TopLists,
    ) -> None:
        """Let the lists of images [b] and of captions [t] take in each other, where these want a list."""
        products = self.products(images, texts)
        row_limits = by_text.limits(products, texts.bounds(images))
        column_limits = by_image.limits(products.T, images.bounds(texts))
        row, column = reaching(products, row_limits, column_limits)
        scores = pair_scores(texts.exact, images.exact, row, column)
        by_text.enter(row, images.rows[column], scores)
        by_image.enter(column, texts.rows[row], scores)


def _multiply(texts: Tensor, images: Tensor) -> Tensor:
    """Multiply vectors of one type, [t, b] rounded to it; in float32 the products are exact but for adding up."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return torch.mm(texts, images.T)
    finally:
        torch.set_float32_matmul_precision(before)
