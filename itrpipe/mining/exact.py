"""Exact mining as a map over samples of the images, whose parts `join` merges.

A part is a fair sample of the images, and all captions pass by it in tiles, see `itrpipe.mining.search`. The lists of
its images are complete then; what captions found among them goes into the part's file, and `join` merges the parts. The
few lists whose floor was guessed too high are searched again, without a guess.

Source: AOQ (Chen et al., ECCV 2020) §3.1 says what is mined; the method is ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.engine.work import Part, Work, numbered, resolve_device
from itrpipe.errors import DataError
from itrpipe.mining.lists import (
    DIRECTIONS,
    CandidateLists,
    MinedFile,
    Searched,
    layout,
    slices,
    write_slice,
)
from itrpipe.mining.search import NO_CANDIDATE, Block, Precision, Searcher, TopLists, in_threads, unpack
from itrpipe.storage.arrays import runs
from itrpipe.storage.parts import ArrayFile, ArrayWriter, array_writer

IMAGE_KEYS, FLOORS, COUNTS, KEYS = "image_keys", "floors", "counts", "keys"
_SHARES, _FEWEST, _MOST = 6, 2_048, 8_192
"""Parts of a small set, and images of a part."""
_RUN_NUMBERS = 1 << 12
_SEARCHED_AGAIN = 1_024
"""Lists at a time."""
SAMPLED_ANCHORS = 200
_ROUNDING = 1e-5
"""Scores that differ by less than this share of the best one count as equal: engines add up in different orders."""
_PLACES = 1 << 18
"""Of lists that are joined at a time."""


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
            for tile, (keys, counts, floors) in in_threads(compared, worker.tiles(1, self._block), worker.threads):
                writer.write(FLOORS, tile.start, floors)
                writer.write(COUNTS, tile.start, counts)
                writer.append(KEYS, keys)
            keys = by_image.sorted()[: len(anchors)]
            lacking = np.flatnonzero(self._is_short(0, anchors, keys))
            for some, found in self._search_again(worker, 0, anchors[lacking]):
                keys[lacking[some]] = found
            writer.write(IMAGE_KEYS, 0, keys)

    def join(self, paths: Sequence[Path], target: Path, advance: Callable[[int], object] = lambda count: None) -> None:
        """Writes the lists of both directions as a file of arrays, see `itrpipe.mining.lists.layout`.

        Args:
            paths: of all parts.
            target: the file.
            advance: called with numbers of lists.

        Raises:
            DataError: products are off by more than floating-point arithmetic allows.
            DiskFullError: no space is left.
        """
        searched, files = self.searched, [ArrayFile(path) for path in paths]
        with array_writer(target, layout(searched.shapes)) as writer:
            for number, file in enumerate(files):
                keys = file[IMAGE_KEYS].read()
                self._write(writer, 0, self.images_of(number)[: len(keys)], keys)
                advance(len(keys))
            if len(again := self._join_texts(files, writer, advance)):
                for some, keys in self._search_again(self.open(), 1, again):
                    self._write(writer, 1, again[some], keys)

    def _join_texts(self, files: Sequence[ArrayFile], writer: ArrayWriter, advance: Callable) -> np.ndarray:
        """Merges the candidates of captions; returns the rows of those that may lack some."""
        unproven, read, (_, width) = [], [0] * len(files), self.searched.widths
        for part in slices(self.searched.anchors[1], max(1, _PLACES // width)):
            rows = np.arange(part.start, part.stop)
            lists = TopLists(torch.ones(len(rows), dtype=torch.bool), width)
            floors = np.full(len(rows), -np.inf, dtype=np.float32)
            for number, file in enumerate(files):
                counts = torch.from_numpy(file[COUNTS].read(part.start, part.stop)).long()
                keys = torch.from_numpy(file[KEYS].read(read[number], read[number] + int(counts.sum())))
                lists.put(torch.arange(len(rows)).repeat_interleave(counts), keys)
                floors = np.maximum(floors, file[FLOORS].read(part.start, part.stop))
                read[number] += len(keys)
            keys = lists.sorted()
            # A candidate that a floor has kept out belongs to the list if it is better than the last one there.
            last = unpack(torch.from_numpy(keys[:, -1]))[0].numpy()
            unproven.append(rows[~(last >= floors) | self._is_short(1, rows, keys)])
            self._write(writer, 1, rows, keys)
            advance(len(rows))
        return np.concatenate(unproven)

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
            if short := int(self._is_short(side, rows[part], keys).sum()):
                raise DataError(
                    f"{short} lists lack candidates that exist: products are less exact on this machine than they have "
                    "to be; mine with precision fp32"
                )
            yield part, keys

    def _is_short(self, side: int, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return which lists of anchors [r] have fewer candidates than exist, from their keys [r, k]; bool [r]."""
        searched = self.searched
        own = searched.own_counts[rows] if side == 0 else searched.owners[rows] >= 0
        existing = np.minimum(searched.counts[1 - side] - own, searched.widths[side])
        return (keys != NO_CANDIDATE).sum(axis=1) < existing

    def _write(self, writer: ArrayWriter, side: int, rows: np.ndarray, keys: np.ndarray) -> None:
        """Writes the lists of anchors [r], rising, from their keys [r, k]."""
        scores, candidates = (each.numpy() for each in unpack(torch.from_numpy(keys)))
        for first, stop in runs(rows):
            lists = CandidateLists(candidates[first:stop], scores[first:stop])
            write_slice(writer, DIRECTIONS[side], int(rows[first]), lists)

    def recall(self, mined: MinedFile) -> dict[str, float]:
        """Compares the lists of some anchors with exact ones; they are the same ones every time.

        Args:
            mined: lists by the scores of these embeddings, before any filter.

        Returns:
            direction -> share, 0..1, of the exact candidates that the lists hold. One of several candidates with the
            last score of a list is as good as another.
        """
        generator, worker, found = np.random.default_rng(0), self.open(), {}
        for side, name in enumerate(DIRECTIONS):
            count, width = mined.shapes[name]
            anchors, hits = np.sort(generator.permutation(count)[:SAMPLED_ANCHORS]), 0
            for part, keys in self._search_again(worker, side, anchors):
                exact = unpack(torch.from_numpy(keys))[0].numpy()
                last = exact[:, -1] - _ROUNDING * np.abs(exact).max(axis=1)
                lists = np.concatenate([mined.read(name, row, row + 1).scores for row in anchors[part].tolist()])
                hits += int((lists >= last[:, None]).sum())
            found[name] = hits / (len(anchors) * width)
        return found
