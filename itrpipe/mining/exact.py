"""Exact top-k mining in both directions from one pass of blocked matrix products, a map over blocks of images.

A part is one block of images times all captions, which pass by in tiles: it holds the final lists of its images, and
of every caption the candidates of this block that may belong to its list. `itrpipe.mining.merging` joins them.
Candidates are ordered by falling score, and by rising index where scores are equal, so that the lists depend neither
on the parts nor on who makes them.

With precision "bf16+fp32" a tile is multiplied in bfloat16. Every pair whose product lies within the bound of the
rounding error (`products.error_bounds`) of what either list demands is scored in float32, and lists are made of
these scores alone: no pair that belongs to a list can be missed, and the size of the tiles does not matter either.
With the other two precisions the products are the scores, and the size of the tiles can change their last bit.

Source: AOQ (Chen et al., ECCV 2020) §3.1 says what is mined; the method is ours.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.engine.work import AGAIN, Part, Work, name_of, numbered, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.mining.products import (
    Embeddings,
    Norms,
    Precision,
    error_bounds,
    faster_in_two_steps,
    in_two_steps,
    multiply,
    pair_scores,
    reaching,
    rounded,
    score_dtype,
)
from itrpipe.mining.running_lists import RunningLists, guessed_floors
from itrpipe.mining.threads import one_thread
from itrpipe.mining.top_k import LARGEST_INDEX, NO_CANDIDATE, keep_largest, matrix_of_keys, pack
from itrpipe.mining.vectors import Rows, Stripes, slices, take
from itrpipe.storage.disk import check_stamp
from itrpipe.storage.parts import ArrayFile, array_writer

DEFAULT_MEMORY = 256 * 2**20
"""Bytes that a tile and what is computed with it take."""
IMAGE_KEYS, FLOORS, COUNTS, KEYS = "image_keys", "floors", "counts", "keys"
_TEXTS_AT_ONCE = 1_024
_PAIRS_AT_ONCE = 1 << 21
_BYTES_PER_CANDIDATE = 80
_BYTES_OF_RUN = 1 << 14
_OWNERS_AT_ONCE = 1 << 20


class ExactMining(Work["_Miner"]):
    """The highest-scoring captions of every image and images of every caption, own pairs left out.

    A part's file holds `image_keys` [b, num_texts] (see `top_k.pack`), the lists of its images, with `NO_CANDIDATE`
    where a floor was too high; `counts` [T] and, caption after caption, `keys`, the candidates among its images; and
    `floors` [T], the scores below which a caption's candidates were left out.

    Args:
        images: [N, D] one vector per image.
        texts: [T, D] one vector per caption; the score of a pair is the inner product.
        owners: [T] row of the image each caption belongs to, -1 for none; these pairs are never candidates.
        norms: of both sides.
        num_texts: captions wanted per image.
        num_images: images wanted per caption.
        block: images per part, at most; 0 to choose it from `memory`.
        text_block: captions per tile, at most; 0 to choose it from `memory`.
        precision: "fp32"; "bf16" to round the embeddings to bfloat16 and add their products in float32, which
            reorders candidates whose scores differ by less than about 0.1 percent; "bf16+fp32" for the lists of
            "fp32" (up to the last bit of a score) at nearly the speed of bfloat16; or "fp32+fp32" for exactly those of
            "bf16+fp32" where the processor multiplies single precision faster. Of these two each worker takes the one
            that its machine is faster with, unless `as_given`.
        device: where the products are computed.
        memory: bytes that decide the size of the tiles.
        as_given: keep the precision.
        anchors: how many images and captions, the first ones, get lists; the others are candidates alone. None: all.

    Raises:
        DataError: the arrays do not fit each other.
        UsageError: fewer candidates exist than were asked for, or `memory` holds no tile.
    """

    title, unit = "mining", "images"

    def __init__(
        self,
        images: Rows,
        texts: Rows,
        owners: Rows,
        norms: Norms,
        num_texts: int,
        num_images: int,
        *,
        block: int = 0,
        text_block: int = 0,
        precision: Precision = "fp32",
        device: str = "cpu",
        memory: int = DEFAULT_MEMORY,
        as_given: bool = False,
        anchors: tuple[int, int] | None = None,
    ) -> None:
        check_inputs(images, texts, owners, num_texts, num_images)
        self.images, self.texts, self.owners, self.norms = images, texts, owners, norms
        self.num_texts, self.num_images, self.device = num_texts, num_images, device
        self.anchors = anchors or (images.shape[0], texts.shape[0])
        self._precision: Precision = precision
        self._as_given = as_given
        count, captions, dim = images.shape[0], texts.shape[0], images.shape[1]
        density = min(1.0, num_texts / captions + num_images / count)
        automatic = tile_shape(count, captions, dim, density, memory)
        self.tile_texts = min(captions, text_block or automatic[1])
        block = block or automatic[0]
        run = max(1, min(math.ceil(count / math.ceil(count / block)), _BYTES_OF_RUN // (4 * dim)))
        self.stripes = Stripes(count, math.ceil(math.ceil(count / run) / (block // run)), run)
        self.block = math.ceil(count / self.stripes.count)
        self.key = json.dumps([self.stripes.count, run, *self.anchors])

    def parts(self) -> list[Part]:
        """Blocks of images."""
        return numbered((len(self.stripes.of(number)), number) for number in range(self.stripes.count))

    def open(self) -> _Miner:
        """What multiplies."""
        device = torch.device(resolve_device(self.device))
        precision = self._precision
        if in_two_steps(precision) and not self._as_given:
            precision = faster_in_two_steps(device)
        return _Miner(precision, device)

    def make(self, worker: _Miner, part: Part, path: Path) -> None:
        """Mines one block of images."""
        rows = self.stripes.of(part.content)
        vectors, norms = self.stripes.read(self.images, part.content), self.norms.images.of(rows)
        block = Embeddings.of(vectors, norms, worker.device)
        image_rows = torch.from_numpy(rows).to(worker.device)
        captions = self.texts.shape[0]
        by_image = RunningLists(len(rows), self.num_texts, captions, worker.device)
        by_image.floors[image_rows >= self.anchors[0]] = float("inf")
        first = worker.first(path.with_name(name_of(0) + self.suffix)) if part.content else None
        arrays: dict[str, Any] = {
            FLOORS: ("<f4", (captions,)),
            COUNTS: ("<i4", (captions,)),
            IMAGE_KEYS: ("<i8", (len(rows), self.num_texts)),
            KEYS: ("<i8", (0,)),
        }
        with array_writer(path, arrays) as writer:
            for tile in slices(captions, self.tile_texts):
                texts = self._texts(tile, worker.device)
                owners = torch.from_numpy(self.owners.read(tile.start, tile.stop)).to(worker.device)
                floors = None if first is None else torch.from_numpy(first[FLOORS].read(tile.start, tile.stop))
                scores = worker.products(block, image_rows, texts, owners)
                found = self._by_text(worker, scores, block, image_rows, texts, floors)
                found.floors[max(0, self.anchors[1] - tile.start) :] = float("inf")
                writer.write(FLOORS, tile.start, found.floors.numpy(force=True))
                self._search(worker, scores, block, texts, tile.start, by_image, found)
                writer.write(COUNTS, tile.start, np.concatenate(found.counts))
                writer.append(KEYS, np.concatenate(found.keys))
            writer.write(IMAGE_KEYS, 0, by_image.sorted_keys())

    def _texts(self, tile: slice, device: torch.device) -> Embeddings:
        vectors = self.texts.read(tile.start, tile.stop)
        return Embeddings.of(vectors, self.norms.texts.read(tile.start, tile.stop), device)

    def _by_text(
        self,
        worker: _Miner,
        scores: Tensor,
        block: Embeddings,
        image_rows: Tensor,
        texts: Embeddings,
        floors: Tensor | None,
    ) -> _TextLists:
        """Empty lists of the captions of a tile, with their floors: those of the first block, or by this one."""
        bounds = error_bounds(texts, block, worker.precision)
        if floors is None:
            every = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
            floors = guessed_floors(scores, every, bounds, self.num_images, self.stripes.rows)
        return _TextLists(floors.to(scores.device), bounds, image_rows, self.num_images)

    def _search(
        self,
        worker: _Miner,
        scores: Tensor,
        block: Embeddings,
        texts: Embeddings,
        start: int,
        by_image: RunningLists | None,
        by_text: _TextLists | None,
    ) -> None:
        """Lets the lists of images [b] and of captions [t] take in each other; a direction of None is left alone.

        Args:
            worker: multiplies.
            scores: [t, b] products.
            block: the images.
            texts: of consecutive captions.
            start: the first of these.
            by_image: lists of the images, by their place in the block.
            by_text: lists of the captions.
        """
        images = torch.arange(len(block.vectors), device=worker.device)
        image_limit = torch.full((len(images),), float("inf"), device=worker.device)
        if by_image is not None:
            bounds = error_bounds(block, texts, worker.precision)
            by_image.set_floors(scores.T, images, bounds)
            image_limit = by_image.thresholds(images) - bounds
        text_limit = torch.full((len(scores),), float("inf"), device=worker.device)
        if by_text is not None:
            text_limit = by_text.floors - by_text.bounds

        waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # images wait, so that their lists are merged seldom
        for first in range(0, len(scores), _TEXTS_AT_ONCE):
            part = slice(first, first + _TEXTS_AT_ONCE)
            row, column = reaching(scores[part], text_limit[part], image_limit)
            exact = worker.exact(scores[part], texts.vectors[part], block.vectors, row, column)
            with one_thread():
                if by_text is not None:
                    by_text.take(part, row, column, exact)
                if by_image is not None:
                    enters = exact >= by_image.thresholds(images)[column]
                    waiting.append((column[enters], row[enters] + (start + first), exact[enters]))
                    if sum(len(pairs[0]) for pairs in waiting) > _PAIRS_AT_ONCE:
                        _take_all(by_image, images, waiting)
        if by_image is not None:
            _take_all(by_image, images, waiting)

    def images_again(self, worker: _Miner, rows: np.ndarray) -> np.ndarray:
        """Keys [r, num_texts] of the lists of a few images, made from all captions at once."""
        block = Embeddings.of(take(self.images, rows), self.norms.images.of(rows), worker.device)
        image_rows = torch.from_numpy(rows).to(worker.device)
        lists = RunningLists(len(rows), self.num_texts, self.texts.shape[0], worker.device)
        every = torch.ones(len(rows), dtype=torch.bool, device=worker.device)
        for tile in slices(self.texts.shape[0], self.tile_texts):
            texts = self._texts(tile, worker.device)
            owners = torch.from_numpy(self.owners.read(tile.start, tile.stop)).to(worker.device)
            scores = worker.products(block, image_rows, texts, owners)
            if tile.start == 0:  # what k captions of the first tile reach, k of all do
                width = min(self.num_texts, len(scores))
                bounds = error_bounds(block, texts, worker.precision)
                floors = guessed_floors(scores.T, every, bounds, width, len(scores))
                lists.floors = floors if width == self.num_texts else torch.full_like(floors, float("-inf"))
            self._search(worker, scores, block, texts, tile.start, lists, None)
        return lists.sorted_keys()

    def texts_again(self, worker: _Miner, rows: np.ndarray) -> np.ndarray:
        """Keys [r, num_images] of the lists of a few captions, made from all images."""
        texts = Embeddings.of(take(self.texts, rows), self.norms.texts.of(rows), worker.device)
        owners = torch.from_numpy(take(self.owners, rows)).to(worker.device)
        best = np.full((len(rows), self.num_images), NO_CANDIDATE, dtype=np.int64)
        for stripe in range(self.stripes.count):
            own = self.stripes.of(stripe)
            vectors = self.stripes.read(self.images, stripe)
            block = Embeddings.of(vectors, self.norms.images.of(own), worker.device)
            image_rows = torch.from_numpy(own).to(worker.device)
            scores = worker.products(block, image_rows, texts, owners)
            bounds = error_bounds(texts, block, worker.precision)
            # Of a block at most the k best can belong to a list: as if its images were all there are.
            every = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
            width = min(self.num_images, len(own))
            floors = guessed_floors(scores, every, bounds, width, len(own))
            found = _TextLists(floors, bounds, image_rows, self.num_images)
            self._search(worker, scores, block, texts, 0, None, found)
            counts, keys = (torch.from_numpy(np.concatenate(each)) for each in (found.counts, found.keys))
            joined = torch.cat([torch.from_numpy(best), matrix_of_keys(keys, counts)], dim=1)
            best = keep_largest(joined, self.num_images).numpy()
        return np.sort(best, axis=1)[:, ::-1].copy()  # torch takes no negative stride, not even of a single column


class _TextLists:
    """The candidates of the captions of one tile among the images of one block.

    Attributes:
        floors: [t] score below which a candidate does not enter.
        bounds: [t] how far a product can lie from the score.
        counts, keys: of so many captions at a time, how many candidates each has, and these, caption after caption.
    """

    def __init__(self, floors: Tensor, bounds: Tensor, image_rows: Tensor, k: int) -> None:
        self.floors, self.bounds = floors, bounds
        self.counts: list[np.ndarray] = []
        self.keys: list[np.ndarray] = []
        self._image_rows, self._k = image_rows, k

    def take(self, part: slice, row: Tensor, column: Tensor, scores: Tensor) -> None:
        """Takes the candidates of some captions, in their order; of each at most k.

        Args:
            part: of the captions of the tile.
            row: [P] of the part, rising.
            column: [P] of the block.
            scores: [P] float32.
        """
        floors = self.floors[part]
        enters = scores >= floors[row]
        row, keys = row[enters], pack(scores[enters], self._image_rows[column[enters]])
        counts = torch.bincount(row, minlength=len(floors))
        if len(row) and int(counts.max()) > self._k:
            matrix = keep_largest(matrix_of_keys(keys, counts), self._k)
            counts = counts.clamp(max=self._k)
            keys = matrix[matrix != NO_CANDIDATE]
        self.counts.append(counts.numpy(force=True).astype(np.int32))
        self.keys.append(keys.numpy(force=True))


class _Miner:
    """Multiplies tiles.

    Args:
        precision: of the products.
        device: where they are computed.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.precision: Precision = precision
        self.device = device
        self._buffer = torch.empty(0, dtype=score_dtype(precision, device), device=device)
        self._first: ArrayFile | None = None

    def first(self, path: Path) -> ArrayFile | None:
        """The part of the first block, once it is there; None also where it is damaged and has yet to be made again."""
        if self._first is None or self._first.path != path:
            try:
                check_stamp(path, AGAIN)
                self._first = ArrayFile(path)
            except (FileNotFoundError, DataError):
                return None
        return self._first

    def products(self, block: Embeddings, image_rows: Tensor, texts: Embeddings, owners: Tensor) -> Tensor:
        """Products [t, b] of a tile, minus infinity for captions with their own image; valid until the next call.

        Args:
            block: b images.
            image_rows: [b] their rows, rising.
            texts: t captions.
            owners: [t] rows of their images.
        """
        height, width = len(texts.vectors), len(block.vectors)
        if len(self._buffer) < height * width:
            self._buffer = torch.empty(height * width, dtype=self._buffer.dtype, device=self.device)
        scores = self._buffer[: height * width].view(height, width)
        right = rounded(block.vectors, self.precision)
        for rows, out in zip(texts.vectors.split(_TEXTS_AT_ONCE), scores.split(_TEXTS_AT_ONCE), strict=True):
            multiply(rounded(rows, self.precision), right, self.precision, out)
        column = torch.searchsorted(image_rows, owners).clamp(max=width - 1)
        row = (image_rows[column] == owners).nonzero()[:, 0]
        scores[row, column[row]] = float("-inf")
        return scores

    def exact(self, scores: Tensor, texts: Tensor, images: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The scores [P] that rank the pairs found in a part of a tile."""
        return pair_scores(texts, images, row, column) if in_two_steps(self.precision) else scores[row, column]


@one_thread()
def _take_all(lists: RunningLists, rows: Tensor, waiting: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Gives the candidates that wait to the lists of anchors [a], and empties the queue."""
    if waiting:
        lists.take(rows, *(torch.cat(parts) for parts in zip(*waiting, strict=True)))
        waiting.clear()


def tile_shape(images: int, texts: int, dim: int, density: float, memory: int) -> tuple[int, int]:
    """Images and captions of the largest tile that fits in memory, about four captions to an image.

    Fewer images than captions, since their vectors should stay in the processor's cache.

    Args:
        images: N.
        texts: T.
        dim: D.
        density: share of the scores that become candidates.
        memory: bytes.

    Raises:
        UsageError: not even a single image and four captions fit.
    """
    per_pair = 4 + _BYTES_PER_CANDIDATE * density
    per_vector = 8 * dim
    # 4 b^2 pairs and b vectors; captions are converted a few at a time.
    fixed = per_vector * min(texts, _TEXTS_AT_ONCE)
    rest = memory - fixed
    if rest < 4 * per_pair + per_vector:
        raise UsageError(f"{memory} bytes of memory hold no tile of vectors of width {dim}: give {2 * fixed} or more")
    wide = (math.sqrt(per_vector**2 + 16 * per_pair * rest) - per_vector) / (8 * per_pair)
    tile_images = min(images, int(wide))
    tile_texts = min(texts, int((rest - per_vector * tile_images) / (per_pair * tile_images)))
    if tile_texts == texts:
        tile_images = min(images, int(rest / (per_pair * texts + per_vector)))
    return max(1, tile_images), max(1, tile_texts)


def check_inputs(images: Rows, texts: Rows, owners: Rows, num_texts: int, num_images: int) -> int:
    """Refuses arrays that do not fit each other and lists longer than there are candidates.

    Args:
        images: [N, D].
        texts: [T, D].
        owners: [T] rows of images, -1 for none.
        num_texts: captions wanted per image.
        num_images: images wanted per caption.

    Returns:
        The largest number of captions of one image.

    Raises:
        DataError: the arrays do not fit each other.
        UsageError: fewer candidates exist than were asked for, or more rows than keys can tell apart.
    """
    if images.shape[1] != texts.shape[1] or owners.shape[0] != texts.shape[0]:
        raise DataError(
            f"embeddings of images {images.shape}, of captions {texts.shape} and {owners.shape[0]} caption rows "
            "do not fit each other: embed both sides with one model, each caption with its row"
        )
    if max(images.shape[0], texts.shape[0]) >= LARGEST_INDEX:
        raise UsageError(f"more than {LARGEST_INDEX - 1:,} rows of one side cannot be mined: leave some out")
    counts = np.zeros(images.shape[0], dtype=np.int64)
    for part in slices(texts.shape[0], _OWNERS_AT_ONCE):
        rows = owners.read(part.start, part.stop)
        if rows.min() < -1 or rows.max() >= len(counts):
            raise DataError(
                f"captions name image rows {rows.min()}..{rows.max()}, but {len(counts)} images are embedded: encode "
                "the whole split"
            )
        counts += np.bincount(rows[rows >= 0], minlength=len(counts))
    largest_own = int(counts.max())
    for name, wanted, available in (
        ("captions per image", num_texts, texts.shape[0] - largest_own),
        ("images per caption", num_images, images.shape[0] - 1),
    ):
        if not 1 <= wanted <= available:
            raise UsageError(
                f"{wanted} {name} were asked for, but {available} candidates exist: ask for 1..{available}"
            )
    return largest_own
