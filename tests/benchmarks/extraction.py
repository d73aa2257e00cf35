"""Extraction from image files, and the extractor alone over the same batches in memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.features.extraction import Extraction, ImageFiles, decode_image, join_features, plan_batches, stack
from itrpipe.features.extractors.base import Extractor
from itrpipe.progress import Reporter

PHOTOGRAPH = (375, 500)
"""Height and width of most images of Flickr30K."""


def write_photographs(folder: Path, count: int, size: tuple[int, int] = PHOTOGRAPH) -> ImageFiles:
    """JPEG files with the compressed size of a photograph (about 120 kB for 375 x 500)."""
    random = np.random.default_rng(0)
    for row in range(count):
        coarse = random.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        grain = np.asarray(image, dtype=np.int16) + random.integers(-12, 13, (*size, 3), dtype=np.int16)
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(folder / f"{row}.jpg", quality=90)
    return ImageFiles(folder, [f"{row}.jpg" for row in range(count)], np.array([size] * count))


def whole_and_forward(
    images: ImageFiles, extractor: Extractor, batch: int, folder: Path, decoders: int, device: torch.device
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Extraction from files to features.h5, and bare forward passes over the decoded batches."""
    batches = plan_batches(images.sizes, extractor.group, batch)
    ids, quiet = [str(row) for row in range(len(images.files))], Reporter(Console(quiet=True))
    options = {"device": device.type, "batch": batch, "decoders": decoders, "strict": True}
    work = Extraction("bench", images, lambda device: extractor, **options)
    loaded = [stack([decode_image(images, row, extractor.transform) for row in rows]) for rows in batches]

    def extract() -> None:
        shutil.rmtree(folder / "parts", ignore_errors=True)
        (folder / "features.h5").unlink(missing_ok=True)
        made = make_parts(work, folder / "parts", MapExecution(workers=1), quiet, print)
        join_features(folder / "features.h5", ids, made.paths, "bench")

    def forward() -> None:
        for pixels, rows in zip(loaded, batches, strict=True):
            extractor(pixels, images.sizes[rows])

    return extract, forward
