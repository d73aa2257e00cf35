"""Runs an extractor over image files: decoding in worker processes, one writer, resumable after any batch.

Which images share a batch depends on the dataset and the batch size alone, never on what an earlier run or another
machine has done already. So features come out equal, byte for byte, in one go, in shards, and after a kill.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import read_rgb
from itrpipe.errors import DataError, ItrpipeError
from itrpipe.features.extractors.base import Extractor, Images, Transform
from itrpipe.features.journal import RowJournal
from itrpipe.features.store import FeatureWriter

# Batches whose rows wait for the writer while the device computes the next ones.
_UNWRITTEN_BATCHES = 2
_NOTHING_FOUND = "has no region: the extractor found nothing in it"


@dataclass(frozen=True)
class ImageFiles:
    """The images to extract, in the order of their rows.

    Attributes:
        root: folder that no image may leave.
        files: N paths relative to it.
        sizes: [N, 2] int64 height and width in pixels, after EXIF rotation.
    """

    root: Path
    files: list[str]
    sizes: np.ndarray


@dataclass(frozen=True)
class DecodedBatch:
    """A batch as it comes from a decoding process.

    Attributes:
        rows: [B] int64, rows of the images that could be decoded.
        images: their transformed pixels, see `Images`; None where there are none.
        failed: row and reason of each of the others.
    """

    rows: np.ndarray
    images: Images | None
    failed: list[tuple[int, str]]


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
            image = read_rgb(inside.resolve(images.files[row], record="image"))
            _require_known_size(image, images.sizes[row])
            pixels.append(transform(image))
            usable.append(row)
        except FileNotFoundError:
            failed.append((row, "is not there"))
        except (OSError, DataError) as error:
            failed.append((row, " ".join(str(error).split()) or type(error).__name__))
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
        DataError: `strict`, and an image cannot be used.
        ItrpipeError: a decoding process died.
    """
    todo = [rows for rows in batches if not journal.done[slots[rows]].all()]
    unwritten: deque[tuple[Future[None], np.ndarray, int]] = deque()

    def settle() -> None:
        future, written, count = unwritten.popleft()
        future.result()
        journal.record(written, writer)
        on_done(count)

    with ThreadPoolExecutor(1, thread_name_prefix="write") as pool:
        for batch in _decoded(images, todo, extractor.transform, workers, pin=device.type == "cuda"):
            total = len(batch.rows) + len(batch.failed)
            rows, arrays, failed = _compute(extractor, batch, images.sizes)
            for row, reason in failed:
                if strict:
                    raise DataError(f"{images.root / images.files[row]}: {reason}; restore the file, or leave --strict")
                journal.fail(int(slots[row]), reason)
            kept = {name: arrays[name] for name in datasets} if len(rows) else {}
            if len(unwritten) == _UNWRITTEN_BATCHES:
                settle()
            future = pool.submit(writer.write, slots[rows], kept) if len(rows) else pool.submit(lambda: None)
            unwritten.append((future, slots[rows], total))
        while unwritten:
            settle()
    journal.save(writer)


def _compute(
    extractor: Extractor, batch: DecodedBatch, sizes: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray], list[tuple[int, str]]]:
    """Rows with features, the features, and the images that have none."""
    if batch.images is None:
        return batch.rows, {}, batch.failed
    arrays = extractor(batch.images, sizes[batch.rows])
    found = arrays["count"] > 0 if "count" in arrays else np.ones(len(batch.rows), dtype=bool)
    if found.all():
        return batch.rows, arrays, batch.failed
    nothing = [(int(row), _NOTHING_FOUND) for row in batch.rows[~found]]
    return batch.rows[found], {name: values[found] for name, values in arrays.items()}, batch.failed + nothing


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

    def __getitem__(self, number: int) -> tuple[np.ndarray, Images | None, list[tuple[int, str]]]:
        batch = decode_batch(self._images, self._batches[number], self._transform)
        return batch.rows, batch.images, batch.failed


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
    try:
        for rows, pixels, failed in loader:
            yield DecodedBatch(rows, pixels, failed)
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        reason = " ".join(str(error).split())
        raise ItrpipeError(
            f"a decoding process died ({reason}); too little memory or shared memory? The same command goes on; "
            "try `--set workers=0`"
        ) from None
