"""Runs an extractor over image files: decoding in worker processes, one writer, resumable after any batch.

Which images share a batch depends on the dataset and the batch size alone, never on what an earlier run or another
machine has done already. So features come out equal, byte for byte, in one go, in shards, and after a kill.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from itrpipe.artifacts.disk import reading_error
from itrpipe.artifacts.integrity import damage_of
from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import read_rgb
from itrpipe.errors import DataError, ItrpipeError
from itrpipe.features.extractors.base import Extractor, Images, Transform
from itrpipe.features.journal import RowJournal
from itrpipe.features.store import FeatureWriter, largest_magnitudes

# Batches whose rows wait for the writer while the device computes the next ones.
_UNWRITTEN_BATCHES = 2
_NOTHING_FOUND = "has no region: the extractor found nothing in it"
_NOT_FINITE = "has features that are not finite or too large for float16"
_FLOAT16_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class ImageFiles:
    """The images to extract, in the order of their rows.

    Attributes:
        root: folder that no image may leave.
        files: N paths relative to it.
        sizes: [N, 2] int64 height and width in pixels, after EXIF rotation.
        drawn: whether they are files of an artifact, which must be as it says.
    """

    root: Path
    files: list[str]
    sizes: np.ndarray
    drawn: bool = False


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
            image = read_rgb(path)
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
    return DecodedBatch(np.array(usable, dtype=np.int64), _stack(pixels), failed)


def extract_images(
    images: ImageFiles,
    extractor: Extractor,
    batches: Sequence[np.ndarray],
    writer: FeatureWriter,
    journal: RowJournal,
    *,
    slots: np.ndarray,
    datasets: frozenset[str],
    workers: int,
    device: torch.device,
    strict: bool,
    on_done: Callable[[int], None],
) -> None:
    """Extracts every batch that the journal does not have and writes its rows.

    Args:
        images: all images of the dataset.
        extractor: see `Extractor`.
        batches: of `plan_batches`; a part of them for a shard.
        writer: of the feature file.
        journal: of its rows.
        slots: [N] int64, row of each image in the feature file; differs from its own for a shard.
        datasets: which of the extractor's datasets are written.
        workers: decoding processes; 0 decodes in this one.
        device: where the extractor computes; batches for CUDA are pinned.
        strict: raise at the first image that cannot be used.
        on_done: called with the number of images of each finished batch.

    Raises:
        DataError: `strict`, and an image cannot be used; or one that an artifact holds is damaged.
        UnavailableError: the disk cannot give an image now, whatever it holds.
        ItrpipeError: a decoding process died.
    """
    for rows in batches:  # A file may have been restored since; then its whole batch is as if it had never failed.
        journal.forget_failures(slots[rows])
    todo = [rows for rows in batches if not journal.done[slots[rows]].all()]
    unwritten: deque[_Unwritten] = deque()

    def settle() -> None:
        batch = unwritten.popleft()
        sums = batch.written.result()
        for slot, reason in batch.failed:
            journal.fail(slot, reason)
        journal.record(batch.slots, sums, writer)
        on_done(len(batch.slots) + len(batch.failed))

    with ThreadPoolExecutor(1, thread_name_prefix="write") as pool, _worker_deaths_as_errors():
        for batch in _decoded(images, todo, extractor.transform, workers, pin=device.type == "cuda"):
            if batch.stop is not None:
                raise batch.stop
            rows, arrays, failed = _compute(extractor, batch, images.sizes, datasets)
            if strict and failed:
                row, reason = failed[0]
                raise DataError(f"{images.root / images.files[row]}: {reason}; restore the file, or leave --strict")
            if len(unwritten) == _UNWRITTEN_BATCHES:
                settle()
            # A row that is on the disk stays as it is, should an earlier run have cut the batches otherwise.
            new = ~journal.done[slots[rows]]
            arrays = {name: values[new] for name, values in arrays.items()}
            written = pool.submit(_write, writer, slots[rows][new], arrays)
            unwritten.append(_Unwritten(written, slots[rows][new], [(int(slots[row]), why) for row, why in failed]))
        while unwritten:
            settle()
    journal.save(writer)


class _Unwritten(NamedTuple):
    """A batch on its way to the disk."""

    written: Future[np.ndarray]
    slots: np.ndarray
    failed: list[tuple[int, str]]


def _write(writer: FeatureWriter, slots: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    return writer.write(slots, arrays) if len(slots) else np.empty(0, dtype=np.uint32)


def _compute(
    extractor: Extractor, batch: DecodedBatch, sizes: np.ndarray, datasets: frozenset[str]
) -> tuple[np.ndarray, dict[str, np.ndarray], list[tuple[int, str]]]:
    """Rows with features, the features, and the images that have none."""
    if batch.images is None:
        return batch.rows, {}, batch.failed
    everything = extractor(batch.images, sizes[batch.rows])
    found = everything["count"] > 0 if "count" in everything else np.ones(len(batch.rows), dtype=bool)
    arrays = {name: everything[name] for name in datasets}
    finite = np.ones(len(batch.rows), dtype=bool)
    for name in datasets & {"regions", "global"}:
        finite &= largest_magnitudes(arrays[name]) <= _FLOAT16_MAX
    usable = found & finite
    if usable.all():
        return batch.rows, arrays, batch.failed
    reasons = [(int(row), _NOTHING_FOUND) for row in batch.rows[~found]]
    reasons += [(int(row), _NOT_FINITE) for row in batch.rows[found & ~finite]]
    return batch.rows[usable], {name: values[usable] for name, values in arrays.items()}, batch.failed + reasons


def _require_known_size(image: np.ndarray, size: np.ndarray) -> None:
    if image.shape[:2] != tuple(size):
        raise DataError(
            f"has {image.shape[1]} x {image.shape[0]} pixels and had {size[1]} x {size[0]} when it was prepared"
        )


def _stack(pixels: list[np.ndarray]) -> Images | None:
    if not pixels:
        return None
    if all(image.shape == pixels[0].shape for image in pixels):
        return torch.from_numpy(np.stack(pixels))
    return [torch.from_numpy(np.ascontiguousarray(image)) for image in pixels]


class _Decoding(Dataset):
    """Batches by number, for the workers of a data loader."""

    def __init__(self, images: ImageFiles, batches: Sequence[np.ndarray], transform: Transform) -> None:
        self._images, self._batches, self._transform = images, batches, transform

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> DecodedBatch:
        return decode_batch(self._images, self._batches[number], self._transform)


def _unchanged(batch: Any) -> Any:
    return batch


def _decoded(
    images: ImageFiles, batches: Sequence[np.ndarray], transform: Transform, workers: int, *, pin: bool
) -> Iterator[DecodedBatch]:
    """Yields decoded batches in their order, made ahead in worker processes."""
    loader = DataLoader(
        _Decoding(images, batches, transform),
        batch_size=None,
        collate_fn=_unchanged,
        num_workers=min(workers, len(batches)),
        pin_memory=pin,
        # Workers are forked: they need no start-up, and never touch the device.
        multiprocessing_context="fork" if workers and batches and sys.platform == "linux" else None,
    )
    yield from loader


@contextmanager
def _worker_deaths_as_errors() -> Iterator[None]:
    """torch reports a decoding process that was killed wherever the main one is at that moment."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        reason = " ".join(str(error).split())
        raise ItrpipeError(
            f"a decoding process died ({reason}); too little memory or shared memory? The same command goes on; "
            "try `--set workers=0`"
        ) from None
