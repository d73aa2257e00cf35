"""Runs an extractor over image files: decoding in threads, one writer, resumable after any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from itrpipe.errors import DataError
from itrpipe.features.store import FeatureSpec, FeatureWriter


class Extractor(Protocol):
    """Turns a batch of images of one size into feature rows.

    Attributes:
        spec: which datasets it fills.
    """

    spec: FeatureSpec

    def __call__(self, images: torch.Tensor) -> dict[str, np.ndarray]:
        """Rows for `FeatureWriter.write` from images [B, 3, H, W] uint8."""
        ...


def decode(path: Path) -> np.ndarray:
    """Pixels [H, W, 3] uint8 of an image file.

    Raises:
        DataError: the file is missing or does not decode.
    """
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} cannot be decoded ({reason}); restore it and run `itrpipe prepare` again") from None


def extract_files(
    files: Sequence[Path],
    extractor: Extractor,
    writer: FeatureWriter,
    *,
    start: int,
    batch: int,
    workers: int,
    on_written: Callable[[int], None],
) -> None:
    """Extracts images `start ...` and writes their rows.

    Args:
        files: all images of the feature file, in the order of its rows; one size each.
        extractor: see `Extractor`.
        writer: of the feature file.
        start: first row that is not yet written.
        batch: images per forward pass.
        workers: decoding threads.
        on_written: called with the number of rows that are written so far.
    """
    row = start
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        for pixels in _batches(pool, files[start:], batch):
            arrays = extractor(torch.from_numpy(pixels).permute(0, 3, 1, 2))
            writer.write(row, arrays)
            row += len(pixels)
            on_written(row)


def _batches(pool: ThreadPoolExecutor, files: Sequence[Path], batch: int) -> Iterator[np.ndarray]:
    """Yields [B, H, W, 3] arrays, decoding the next batch while the caller works on the present one."""
    groups = [files[start : start + batch] for start in range(0, len(files), batch)]
    pending = [pool.submit(decode, path) for path in groups[0]] if groups else []
    for number in range(len(groups)):
        ready, pending = (
            pending,
            [pool.submit(decode, path) for path in (groups[number + 1] if number + 1 < len(groups) else [])],
        )
        yield np.stack([future.result() for future in ready])
