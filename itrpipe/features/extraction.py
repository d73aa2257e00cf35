"""Extracts features from image files: a map over images, whose parts hold the rows of some of them.

Which images share a batch depends on the dataset and the batch size alone, never on what an earlier run or another
machine has done already. So features come out equal, byte for byte, in one go, in parts, and after a kill.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import read_rgb
from itrpipe.engine.work import Part, Work, cut, resolve_device
from itrpipe.errors import DataError, ItrpipeError
from itrpipe.features.extractors.base import Extractor, Images, Transform
from itrpipe.features.store import FeatureSpec, stored_rows
from itrpipe.storage.disk import reading_error
from itrpipe.storage.integrity import damage_of
from itrpipe.storage.parts import ArrayFile, write_arrays

BATCHES_PER_PART = 8
"""A part holds so many batches of the size that suits the extractor; what is lost in a kill is at most a part."""


@dataclass(frozen=True)
class ImageFiles:
    """Images to extract.

    Attributes:
        root: folder that no image may leave.
        files: N paths relative to it.
        sizes: [N, 2] int64 height and width in pixels, after EXIF rotation.
        drawn: whether they are files of an artifact, which must be as it says.
        boxes: [N, 4] int64 left, top, right and bottom of the part of each that counts as the image, of the size that
            `sizes` says; what lies beyond the file is black. None: all of it.
    """

    root: Path
    files: list[str]
    sizes: np.ndarray
    drawn: bool = False
    boxes: np.ndarray | None = None

    def of(self, rows: np.ndarray) -> ImageFiles:
        """Some of them."""
        boxes = None if self.boxes is None else self.boxes[rows]
        return ImageFiles(self.root, [self.files[row] for row in rows.tolist()], self.sizes[rows], self.drawn, boxes)


class DecodedBatch(NamedTuple):
    """A batch as it comes from a decoding process.

    Attributes:
        rows: [B] int64, rows of the images that could be decoded.
        images: their transformed pixels, see `Images`; None where there are none.
        failed: row and reason of each of the others.
        stop: why all extraction has to stop: the disk could not give a file, or an artifact is damaged.
    """

    rows: np.ndarray
    images: Images | None
    failed: list[tuple[int, str]]
    stop: ItrpipeError | None = None


def plan_batches(sizes: np.ndarray, group: Callable[[int, int], tuple[int, int]], batch: int) -> list[np.ndarray]:
    """Cuts the rows into batches of equal groups.

    Args:
        sizes: [N, 2] height and width of every image.
        group: of an extractor.
        batch: images per batch at most.

    Returns:
        Rows [B] int64 of each batch; groups in the order of their keys, rows rising within a group.
    """
    distinct, index = np.unique(sizes, axis=0, return_inverse=True)
    keys = np.array([group(int(height), int(width)) for height, width in distinct], dtype=np.int64).reshape(-1, 2)
    _, group_of = np.unique(keys, axis=0, return_inverse=True)
    group_of = group_of.reshape(-1)[index.reshape(-1)]
    order = np.argsort(group_of, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1)
    return [rows[start : start + batch] for rows in groups for start in range(0, len(rows), batch)]


class Extraction(Work["_Extracting"]):
    """Features of images by one extractor; a part has `rows` [n] int64 and a row of every dataset for each of these.

    Args:
        name: of the extractor, for people.
        images: all images of the dataset.
        build: makes the extractor on a device; it is pickled.
        device: `auto`, `cpu` or `cuda`.
        batch: images per forward pass, at most those of a part; 0 for what suits the extractor.
        decoders: threads of a worker that decode images.
        strict: stop at the first image that cannot be used.
    """

    unit, overlap, in_one_thread = "images", 2, True

    def __init__(
        self,
        name: str,
        images: ImageFiles,
        build: Callable[[torch.device], Extractor],
        *,
        device: str = "cpu",
        batch: int = 0,
        decoders: int = 2,
        strict: bool = False,
    ) -> None:
        self.title = f"extracting {name}"
        self._images, self._build, self.device = images, build, device
        self._batch, self._decoders, self._strict = batch, decoders, strict

    def __getstate__(self) -> dict[str, Any]:
        """Each worker opens its own, and is told of the images of each part alone."""
        return {name: value for name, value in self.__dict__.items() if name not in ("extractor", "_images")}

    @cached_property
    def extractor(self) -> Extractor:
        """The extractor, opened once in every process."""
        return self._build(torch.device(resolve_device(self.device)))

    @cached_property
    def spec(self) -> FeatureSpec:
        """Which datasets are written; where other extractors write some of this one's, it is set to the others."""
        return self.extractor.spec

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know of the extractor."""
        return self.extractor.notes

    def parts(self) -> list[Part]:
        """Images of equal groups beside each other, some at a time."""
        order = np.concatenate(plan_batches(self._images.sizes, self.extractor.group, len(self._images.sizes)))
        parts = cut(order, BATCHES_PER_PART * self.extractor.batch)
        return [replace(part, content=(part.content, self._images.of(part.content))) for part in parts]

    def open(self) -> _Extracting:
        """The extractor with threads that decode images for it."""
        return _Extracting(self.extractor, self._decoders, self.slots, pinned=resolve_device(self.device) == "cuda")

    def make(self, worker: _Extracting, part: Part, path: Path) -> None:
        """Extracts the images of a part.

        Raises:
            DataError: `strict`, and an image cannot be used; or one that an artifact holds is damaged.
            UnavailableError: the disk cannot give an image now, whatever it holds.
        """
        rows, images = part.content
        extractor = worker.extractor
        batches = plan_batches(images.sizes, extractor.group, self._batch or extractor.batch)
        found: list[dict[str, np.ndarray]] = []
        failed: dict[str, str] = {}
        for batch in worker.decoded(images, batches):
            usable, arrays, refused = compute(extractor, batch, images.sizes, self.spec)
            if self._strict and refused:
                row, reason = refused[0]
                raise DataError(f"{images.root / images.files[row]}: {reason}; restore the file, or leave --strict")
            failed |= {str(rows[row]): reason for row, reason in refused}
            if len(usable):
                found.append({"rows": rows[usable], **arrays})
        joined = {name: np.concatenate([each[name] for each in found]) for name in found[0]} if found else {}
        write_arrays(path, joined, failed)

    def keeps(self, path: Path) -> bool:
        """Whether a part is as it was written, and no image of it failed: the file may have been restored since."""
        return super().keeps(path) and not ArrayFile(path).facts


class _Extracting:
    """An extractor, and threads that decode the next images while it computes.

    Parts take turns: while some are computed, the images of the next are decoded and the rows of the last are written.

    Args:
        extractor: computes.
        decoders: threads.
        turns: parts that are computed at the same time.
        pinned: batches are for a GPU.
    """

    def __init__(self, extractor: Extractor, decoders: int, turns: int, *, pinned: bool) -> None:
        self.extractor = extractor
        self._pinned, self._ahead = pinned, decoders + 1
        self._pool = ThreadPoolExecutor(decoders, thread_name_prefix="decode")
        self._turn, self._stopped = threading.Semaphore(turns), threading.Event()

    def decoded(self, images: ImageFiles, batches: Sequence[np.ndarray]) -> Iterator[DecodedBatch]:
        """Yields batches in their order; from the first on it is the turn of the one who asks.

        Raises:
            ItrpipeError: all extraction has to stop.
        """
        todo, waiting = iter(batches), deque[Future[DecodedBatch]]()

        def decode_more(count: int) -> None:
            for rows in islice(todo, count):
                waiting.append(self._pool.submit(self._decode, images, rows))

        decode_more(self._ahead)
        with self._turn:
            while waiting:
                batch = waiting.popleft().result()
                decode_more(1)
                if batch.stop is not None:
                    raise batch.stop
                yield batch

    def _decode(self, images: ImageFiles, rows: np.ndarray) -> DecodedBatch:
        if self._stopped.is_set():
            raise CancelledError
        batch = decode_batch(images, rows, self.extractor.transform)
        if self._pinned and batch.images is not None:
            pinned = [image.pin_memory() for image in batch.images]
            batch = batch._replace(images=torch.stack(pinned).pin_memory() if torch.is_tensor(batch.images) else pinned)
        return batch

    def stop(self) -> None:
        """Lets parts that are being made end, unfinished."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def decode_batch(images: ImageFiles, rows: np.ndarray, transform: Transform) -> DecodedBatch:
    """Decodes and transforms the images of some rows; those that cannot be used come back with their reason."""
    inside = ImageRoot(images.root, images.root)
    usable: list[int] = []
    pixels: list[np.ndarray] = []
    failed: list[tuple[int, str]] = []
    for row in rows.tolist():
        try:
            path = inside.resolve(images.files[row], record="image")
            if images.drawn and (damage := damage_of(path)):
                return DecodedBatch(rows, None, [], damage)
            image = read_rgb(path) if images.boxes is None else _part(read_rgb(path), images.boxes[row])
            _require_known_size(image, images.sizes[row])
            pixels.append(transform(image))
            usable.append(row)
        except DataError as error:
            failed.append((row, " ".join(str(error).split())))
        except OSError as error:
            path = images.root / images.files[row]
            return DecodedBatch(
                rows, None, [], reading_error(error, path, DataError(f"{path} cannot be read ({error})"))
            )
    return DecodedBatch(np.array(usable, dtype=np.int64), stack(pixels), failed)


def compute(
    extractor: Extractor, batch: DecodedBatch, sizes: np.ndarray, spec: FeatureSpec
) -> tuple[np.ndarray, dict[str, np.ndarray], list[tuple[int, str]]]:
    """Runs an extractor on a batch.

    Args:
        extractor: any.
        batch: some of N images.
        sizes: [N, 2] height and width of all of them.
        spec: the extractor's, or the part of it that is wanted.

    Returns:
        Rows of the images with features; their features in the types of the file; row and reason of each that has none.
    """
    if batch.images is None:
        return batch.rows, {}, batch.failed
    arrays, refused = stored_rows(spec, extractor(batch.images, sizes[batch.rows]))
    if not refused:
        return batch.rows, arrays, batch.failed
    usable = np.setdiff1d(np.arange(len(batch.rows)), list(refused))
    reasons = [(int(batch.rows[position]), reason) for position, reason in sorted(refused.items())]
    return batch.rows[usable], {name: values[usable] for name, values in arrays.items()}, batch.failed + reasons


def _require_known_size(image: np.ndarray, size: np.ndarray) -> None:
    if image.shape[:2] != tuple(size):
        raise DataError(
            f"has {image.shape[1]} x {image.shape[0]} pixels and had {size[1]} x {size[0]} when it was prepared"
        )


def _part(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    return np.array(Image.fromarray(image).crop(tuple(box.tolist())))


def stack(pixels: Sequence[np.ndarray]) -> Images | None:
    """Transformed images [3, h, w] as an extractor takes them; None where there are none."""
    if not pixels:
        return None
    if all(image.shape == pixels[0].shape for image in pixels):
        return torch.from_numpy(np.stack(pixels))
    return [torch.from_numpy(np.ascontiguousarray(image)) for image in pixels]
