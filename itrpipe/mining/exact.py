"""Exact mining as a map over samples of the images, whose parts `join` merges; and all of it in one call, `mine`.

A part is a fair sample of the images, and all captions pass by it in tiles, see `itrpipe.mining.search`. The lists of
its images are complete then; what captions found among them goes into the part's file, and `join` merges the parts. The
few lists whose floor was guessed too high are searched again, without a guess.

Source: AOQ (Chen et al., ECCV 2020) §3.1 says what is mined; the method is ours.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console

from itrpipe.config import Resolved, bind
from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.engine.work import Part, Work, numbered, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.mining.filters import DuplicateCaptions, drop, lowest_positives, outside, positive_scores
from itrpipe.mining.lists import (
    DIRECTIONS,
    CandidateLists,
    HeldRows,
    MinedFile,
    MinedLists,
    Searched,
    layout,
    slices,
    write_slice,
)
from itrpipe.mining.search import NO_CANDIDATE, Block, Precision, Searcher, TopLists, in_threads, unpack
from itrpipe.mining.settings import WindowSettings
from itrpipe.progress import Reporter, SafeConsole
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
        memory: bytes that a tile may take beside the embeddings and lists of a part; see `Searcher`.
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


def mine(
    images: np.ndarray | torch.Tensor,
    texts: np.ndarray | torch.Tensor,
    owners: np.ndarray | torch.Tensor | Sequence[int],
    *,
    num_texts: int = 300,
    num_images: int = 60,
    range_min: int = 0,
    range_max: int | None = None,
    min_score: float | None = None,
    max_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    captions: Sequence[str] | None = None,
    precision: Precision = "bf16+fp32",
    device: str = "auto",
    memory: int = 0,
    progress: bool = False,
) -> MinedLists:
    """The hardest texts of every image and the hardest images of every text, own pairs left out, by exact search.

    The score of a pair is the inner product of its vectors: normalise them for cosines. Equal scores come in the order
    of their rows. What a limit drops makes a list shorter, and the rest moves up.

    Args:
        images: [N, D] vectors of any model.
        texts: [T, D].
        owners: [T] row of the image that each text belongs to, -1 for none.
        num_texts: texts mined for each image, all where there are fewer; 300 and 60 are those of AOQ, section 4.2.
        num_images: images mined for each text.
        range_min, range_max, min_score, max_score, absolute_margin, relative_margin: see `WindowSettings`.
            The positive of an image is its own text with the lowest score.
        captions: T texts; candidates that say what one of the positive's says are dropped, see `plain_text`.
        precision: of the products; `bf16+fp32` finds the lists of `fp32` in bfloat16 and checks them in single
            precision; `bf16` rounds the vectors themselves.
        device: `auto` takes CUDA where there is one.
        memory: bytes that products take at a time, see `Searcher`; the lists come on top, through files in the
            temporary folder.
        progress: show it, on standard error.

    Returns:
        Rows of candidates and their scores, hardest first; -1 and minus infinity behind the last of a shorter list.

    Raises:
        DataError: the arrays do not fit each other, or hold values that are not finite.
        UsageError: there are no candidates, or the limits leave nothing.

    Example:
        >>> images, texts = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
        >>> mine(images, texts, [0, 1, 2, 0], num_texts=2, num_images=1).images_per_text.tolist()
        [[1], [0], [0], [1]]

    Source: AOQ (Chen et al., ECCV 2020), section 3.1.
    """
    limits = {"range_min": range_min, "range_max": range_max, "min_score": min_score, "max_score": max_score}
    limits |= {"absolute_margin": absolute_margin, "relative_margin": relative_margin}
    window = bind(WindowSettings, Resolved(limits, dict.fromkeys(limits, "its caller")), "mine")
    left, right = (
        HeldRows(_array(name, each, 2, "f", "vectors [rows, D] of real numbers").astype(np.float32, copy=False))
        for name, each in (("images", images), ("texts", texts))
    )
    rows = _array("owners", owners, 1, "iu", "one row of an image for each text").astype(np.int64)
    if captions is not None:
        if len(captions) != len(rows):
            raise DataError(f"there are {len(captions):,} captions and {len(rows):,} owners; give one for each text")
        for row, caption in enumerate(captions):
            if not isinstance(caption, str):
                raise DataError(f"caption {row} is {caption!r}; give a text for each, an empty one where there is none")
    reporter = Reporter(SafeConsole(stderr=True) if progress else Console(quiet=True))
    searched = Searched((left, right), rows, (num_texts, num_images))
    work = ExactMining(searched, precision=precision, device=device, memory=memory)
    with TemporaryDirectory(prefix="itrpipe-") as name:
        made = make_parts(work, Path(name) / "parts", MapExecution(workers=1), reporter, reporter.say)
        work.join(made.paths, Path(name) / "mined.arrays")
        lists = MinedFile(Path(name) / "mined.arrays").lists()
    positives = positive_scores(left, right, rows)
    same, kept = None if captions is None else DuplicateCaptions(captions, rows), list[np.ndarray]()
    reasons = Counter[str]()
    for direction, scores in zip(DIRECTIONS, (lowest_positives(positives, rows, len(images)), positives), strict=True):
        found: CandidateLists = getattr(lists, direction)
        going = {} if same is None else {"duplicates": same.mark(direction, slice(0, len(scores)), found)}
        remaining, dropped = drop(found, going | outside(window, found, scores))
        kept += vars(remaining).values()
        reasons.update(dropped)
    mined = MinedLists(*kept)
    if not mined.texts_for_images.counts.any() and not mined.images_for_texts.counts.any():
        counts = ", ".join(f"{name} {count:,}" for name, count in reasons.items())
        raise UsageError(f"no candidates are left, which were dropped by {counts}; widen the limits")
    return mined


def _array(name: str, given: Any, axes: int, kinds: str, what: str) -> np.ndarray:
    """What was given as an array, with so many axes and of one of these kinds of numbers."""
    if isinstance(given, torch.Tensor):
        kept = given.detach().cpu()
        given = (kept.float() if kept.is_floating_point() else kept).numpy()
    found = np.asarray(given)
    if found.ndim != axes or found.dtype.kind not in kinds or not found.size:
        raise DataError(f"{name} are {found.dtype} {list(found.shape)} and not {what}")
    return found
