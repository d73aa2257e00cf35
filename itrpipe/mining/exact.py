"""Exact mining as a map over samples of the images, whose parts `lists` merges.

A part is a fair sample of the images, and all captions pass by it in tiles, see `itrpipe.mining.search`. The lists of
its images are complete then; what captions found among them goes into the part's file, and `lists` merges the parts as
they are asked for, so that there is no second copy of them. The few lists whose floor was guessed too high are searched
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
from itrpipe.mining.lists import (
    DIRECTIONS,
    CandidateLists,
    ListFiles,
    Searched,
    list_slices,
    row_type,
    slices,
)
from itrpipe.mining.search import NO_CANDIDATE, Block, Precision, Searcher, TopLists, unpack
from itrpipe.storage.arrays import ArrayFile, array_writer

IMAGE_KEYS, FLOORS, COUNTS, KEYS = "image_keys", "floors", "counts", "keys"
_SHARES, _FEWEST, _MOST = 6, 2_048, 8_192
"""Parts of a small set, and images of a part."""
_RUN_NUMBERS = 1 << 12
_SEARCHED_AGAIN = 1_024
"""Lists at a time."""
SAMPLED_ANCHORS = 200
_ROUNDING = 1e-5
"""Scores that differ by less than this share of the best one count as equal: engines add up in different orders."""


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
        repaired = self._search_again(self.open(), 1, unproven) if len(unproven) else iter(())
        waiting = np.empty((0, width), np.int64)
        parts = list_slices(anchors, width)
        for part, *found in zip(parts, *(_text_entries(file, parts) for file in files), strict=True):
            lists = TopLists(torch.ones(part.stop - part.start, dtype=torch.bool), width)
            for places, keys in found:
                lists.put(torch.from_numpy(places), keys)
            keys = lists.sorted()
            first, stop = np.searchsorted(unproven, (part.start, part.stop)).tolist()
            while len(waiting) < stop - first:
                waiting = np.concatenate([waiting, next(repaired)[1]])
            keys[unproven[first:stop] - part.start] = waiting[: stop - first]
            waiting = waiting[stop - first :]
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
