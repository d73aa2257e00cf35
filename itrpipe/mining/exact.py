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

On a GPU the host waits twice a tile: for the number of pairs that reach a threshold (`searcher.reaching`), and for the
lists of the captions (`TopLists.entries`). All other shapes follow from what the host knows.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.engine.work import Part, Work, numbered, resolve_device
from itrpipe.errors import DataError
from itrpipe.mining.lists import DIRECTIONS, CandidateLists, ListFiles, Searched, list_slices, row_type, slices
from itrpipe.mining.searcher import NO_CANDIDATE, Block, Precision, Searcher, TopLists, unpack_keys
from itrpipe.storage.arrays import ArrayFile, array_writer

IMAGE_KEYS = "image_keys"
FLOORS = "floors"
COUNTS = "counts"
KEYS = "keys"
_PARTS = 6
"""Parts of a small set."""
_FEWEST_IMAGES = 2_048
_MOST_IMAGES = 8_192
_NUMBERS_PER_RUN = 1 << 12
_SEARCHED_AGAIN = 1_024
"""Lists that are searched again at a time."""
SAMPLED_ANCHORS = 200
_ROUNDING = 1e-5
"""Scores that differ by less than this share of the best one count as equal: engines add up in different orders."""


class ExactMining(Work[Searcher]):
    """The highest-scoring captions of every image and images of every caption, own pairs left out.

    A part's file holds `image_keys` [b, num_texts] (see `pack_keys`), the lists of its images; `counts` [T] and,
    caption after caption, `keys`, the candidates among its images; and `floors` [T], the scores below which a caption's
    candidates were left out.

    Args:
        searched: both sides.
        block: images per part, at most; 0 to choose it by their number.
        precision: of the products; "fp32" and "bf16+fp32" give the same lists.
        device: where the products are computed.
        memory: bytes that all tiles may take beside the embeddings and lists of a part; see `Searcher`.
    """

    title = "mining"
    unit = "images"

    def __init__(
        self,
        searched: Searched,
        *,
        block: int = 0,
        precision: Precision = "bf16+fp32",
        device: str = "cpu",
        memory: int = 0,
    ) -> None:
        self.searched = searched
        self.shapes = searched.shapes
        self.device = device
        self._precision: Precision = precision
        self._memory = memory
        count = searched.counts[0]
        # Neighbours stay together in short runs, so that a part is read in few pieces.
        dim = searched.sides[0].shape[1]
        run = max(1, _NUMBERS_PER_RUN // dim)
        if not block:
            images = math.ceil(count / _PARTS / run) * run
            block = min(max(images, _FEWEST_IMAGES), _MOST_IMAGES)
        block = min(count, block)
        self._run = min(run, block)
        runs = math.ceil(count / self._run)
        self._parts = math.ceil(runs / (block // self._run))
        self._block = block
        self.key = json.dumps([self._parts, self._run, *searched.anchors])

    def images_of(self, number: int) -> np.ndarray:
        """Return the rows of a part's images: a fair sample, whatever the order of all."""
        count = self.searched.counts[0]
        starts = np.arange(number * self._run, count, self._parts * self._run)
        rows = starts[:, None] + np.arange(self._run)
        return rows[rows < count]

    def parts(self) -> list[Part]:
        """Return samples of the images."""
        contents = []
        for number in range(self._parts):
            contents.append((len(self.images_of(number)), number))
        return numbered(contents)

    def open(self) -> Searcher:
        """Open the device that compares."""
        device = torch.device(resolve_device(self.device))
        return Searcher(self.searched, self._precision, device, self._memory)

    def make(self, worker: Searcher, part: Part, path: Path) -> None:
        """Compare the images of a part with all captions.

        Raises:
            DataError: products are off by more than floating-point arithmetic allows.
        """
        num_images, num_texts = self.searched.counts
        image_width, text_width = self.searched.widths
        image_anchors, text_anchors = self.searched.anchors
        rows = self.images_of(part.content)
        anchors = rows[rows < image_anchors]
        images = worker.block(0, rows)
        by_image = TopLists(images.rows < image_anchors, image_width, num_texts)
        worker.guess(images, by_image)
        arrays: dict[str, Any] = {
            FLOORS: ("<f4", (num_texts,)),
            COUNTS: ("<i4", (num_texts,)),
            IMAGE_KEYS: ("<i8", (len(anchors), image_width)),
            KEYS: ("<i8", (0,)),
        }

        def compare(of_tile: tuple[slice, Block]) -> tuple[int, tuple[np.ndarray, ...]]:
            tile, captions = of_tile
            by_text = TopLists(captions.rows < text_anchors, text_width, num_images)
            worker.compare(images, captions, by_image, by_text)
            return tile.start, by_text.entries()

        tiles = worker.tiles(1, self._block)
        with array_writer(path, arrays) as writer:
            for start, (keys, counts, floors) in worker.in_threads(compare, tiles):
                writer.write(FLOORS, start, floors)
                writer.write(COUNTS, start, counts)
                writer.append(KEYS, keys)
            keys = by_image.sorted()[: len(anchors)]
            lengths = (keys != NO_CANDIDATE).sum(axis=1)
            lacking = np.flatnonzero(lengths < self._full_lengths(0, anchors))
            for some, keys_again in self._search_again(worker, 0, anchors[lacking]):
                keys[lacking[some]] = keys_again
            writer.write(IMAGE_KEYS, 0, keys)

    def lists(
        self,
        paths: Sequence[Path],
        direction: str,
    ) -> Iterator[tuple[slice, CandidateLists]]:
        """Yield all lists of a direction, some consecutive anchors at a time.

        Args:
            paths: of all parts.
            direction: which.

        Raises:
            DataError: products are off by more than floating-point arithmetic allows.
        """
        files = [ArrayFile(path) for path in paths]
        _, _, num_candidates = self.shapes[direction]
        kind = row_type(num_candidates)
        blocks = self._image_keys(files) if direction == DIRECTIONS[0] else self._text_keys(files)
        for part, keys in blocks:
            scores, rows = unpack_keys(torch.from_numpy(keys))
            candidates = rows.numpy().astype(kind)
            yield part, CandidateLists(candidates, scores.numpy())

    def _image_keys(
        self,
        files: Sequence[ArrayFile],
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of the images and the keys [a, num_texts] of their lists."""
        anchors, width, _ = self.shapes[DIRECTIONS[0]]
        images_of_files = [self.images_of(number) for number in range(len(files))]
        for part in list_slices(anchors, width):
            keys = np.empty((part.stop - part.start, width), np.int64)
            for images, file in zip(images_of_files, files, strict=True):
                first, stop = np.searchsorted(images, (part.start, part.stop)).tolist()
                rows = images[first:stop] - part.start
                keys[rows] = file[IMAGE_KEYS].read(first, stop)
            yield part, keys

    def _text_keys(
        self,
        files: Sequence[ArrayFile],
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of the captions and the keys [a, num_images] of their lists, merged."""
        anchors, width, _ = self.shapes[DIRECTIONS[1]]
        parts = list_slices(anchors, width)
        unproven = self._unproven(files)
        repaired = self._repaired_keys(unproven)
        entries_of_files = [_text_entries(file, parts) for file in files]
        for part, *entries in zip(parts, *entries_of_files, strict=True):
            everyone = torch.ones(part.stop - part.start, dtype=torch.bool)
            lists = TopLists(everyone, width)
            for places, keys in entries:
                lists.put(torch.from_numpy(places), keys)
            keys = lists.sorted()
            first, stop = np.searchsorted(unproven, (part.start, part.stop))
            for row in unproven[first:stop]:
                keys[row - part.start] = next(repaired)
            yield part, keys

    def _repaired_keys(self, captions: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the keys [num_images] of the list of each caption, searched again."""
        for _, keys in self._search_again(self.open(), 1, captions):
            yield from keys

    def _unproven(self, files: Sequence[ArrayFile]) -> np.ndarray:
        """Return the captions whose lists may lack a candidate that a floor has kept out, rising.

        A list is complete if as many candidates as it takes reach the highest floor.
        """
        anchors, width, _ = self.shapes[DIRECTIONS[1]]
        floors = np.full(anchors, -np.inf, np.float32)
        for file in files:
            np.maximum(floors, file[FLOORS].read(0, anchors), out=floors)
        reaching = np.zeros(anchors, np.int64)
        parts = list_slices(anchors, width)
        for file in files:
            entries = _text_entries(file, parts)
            for part, (places, keys) in zip(parts, entries, strict=True):
                scores, _ = unpack_keys(keys)
                reached = scores.numpy() >= floors[part][places]
                counts = np.bincount(places[reached], minlength=part.stop - part.start)
                reaching[part] += counts
        lengths = self._full_lengths(1, np.arange(anchors))
        return np.flatnonzero(reaching < lengths)

    def _search_again(
        self,
        worker: Searcher,
        side: int,
        rows: np.ndarray,
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices [r] of images or captions and the keys [r, k] of their lists, found without a guess."""
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
            lengths = (keys != NO_CANDIDATE).sum(axis=1)
            short = np.count_nonzero(lengths < self._full_lengths(side, rows[part]))
            if short:
                raise DataError(
                    f"{short} lists lack candidates that exist: products are less exact on this machine than they have "
                    "to be; mine with precision fp32"
                )
            yield part, keys

    def _full_lengths(self, side: int, rows: np.ndarray) -> np.ndarray:
        """Return how many candidates the full lists of anchors [r] have."""
        searched = self.searched
        own = searched.own_counts[rows] if side == 0 else searched.owners[rows] >= 0
        return np.minimum(searched.counts[1 - side] - own, searched.widths[side])

    def recall(self, mined: ListFiles) -> dict[str, float]:
        """Compare the lists of some anchors with exact ones; they are the same ones every time.

        Args:
            mined: lists by the scores of these embeddings, before any filter.

        Returns:
            direction -> share, 0..1, of the exact candidates that the lists hold. One of several candidates with the
            last score of a list is as good as another.
        """
        generator = np.random.default_rng(0)
        worker = self.open()
        recall = {}
        for side, direction in enumerate(DIRECTIONS):
            count, width, _ = self.shapes[direction]
            anchors = np.sort(generator.permutation(count)[:SAMPLED_ANCHORS])
            hits = 0
            for part, keys in self._search_again(worker, side, anchors):
                scores, _ = unpack_keys(torch.from_numpy(keys))
                exact = scores.numpy()
                tolerance = _ROUNDING * np.abs(exact).max(axis=1)
                least = exact[:, -1] - tolerance
                rows = anchors[part].tolist()
                lists = [mined.read(direction, row, row + 1).scores for row in rows]
                is_hit = np.concatenate(lists) >= least[:, None]
                hits += int(is_hit.sum())
            recall[direction] = hits / (len(anchors) * width)
        return recall


def _text_entries(
    file: ArrayFile,
    parts: Sequence[slice],
) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
    """Yield the candidates that slices of the captions found in a part: the caption of each, and their keys [P]."""
    start = 0
    for part in parts:
        counts = file[COUNTS].read(part.start, part.stop)
        keys = file[KEYS].read(start, start + int(counts.sum()))
        start += len(keys)
        captions = np.arange(len(counts)).repeat(counts)
        yield captions, torch.from_numpy(keys)
