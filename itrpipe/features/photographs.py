"""Photographs that belong to no dataset, read by the extractors of a dataset's features: the same rows, in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itrpipe.datasets.pictures import DECODER_ERRORS, picture_rgb, read_rgb, refusal
from itrpipe.engine.run import usable_cores
from itrpipe.errors import DataError
from itrpipe.features.declaration import EXTRACTORS, FeatureSettings
from itrpipe.features.extraction import MOST_DECODERS, Decoded, Decoders, Item, divide, plan_batches, stack
from itrpipe.features.extractors.base import Extractor
from itrpipe.features.store import TYPES, FeatureFile, stored_rows
from itrpipe.storage.disk import unavailable

Photograph = str | os.PathLike[str] | Image.Image | np.ndarray
"""Path of a file, an image of Pillow, or [H, W, 3] uint8 RGB."""


@dataclass(frozen=True, eq=False)
class GivenPhotographs:
    """Photographs by their row.

    Attributes:
        photographs: N of them.
    """

    photographs: Sequence[Photograph]

    def read(self, row: int) -> np.ndarray:
        """Read a photograph, [H, W, 3] uint8 RGB.

        Raises:
            DataError: it cannot be used.
            UnavailableError: the disk cannot give it now.
        """
        pixels = _decoded(self.photographs[row], np.asarray)
        if isinstance(pixels, str):
            raise DataError(f"{_name_of(self.photographs, row)} {pixels}")
        return pixels


def open_extractors(parts: Mapping[str, FeatureSettings], device: str) -> dict[str, Extractor]:
    """Open the extractors of `itrpipe.features.declaration.passes_of`, none of which is an importer."""
    extractors = {}
    for name, part in parts.items():
        extractors[name] = EXTRACTORS.module(part.kind).build(part, torch.device(device))
    return extractors


def read_photographs(
    extractors: Mapping[str, Extractor],
    photographs: Sequence[Photograph],
    batch: int,
    refused: Callable[[int, str], object] | None = None,
) -> Iterator[FeatureFile]:
    """Yield the features of some photographs at a time, in their order; the next are decoded meanwhile.

    Args:
        extractors: name -> extractor; a group of datasets comes from the first that has it.
        photographs: N of them, whose ids are the numbers 0 to N - 1.
        batch: at a time.
        refused: is told the place and the reason of each photograph that cannot be used, which has no row then.

    Raises:
        DataError: a photograph cannot be used, and `refused` is None.
        UnavailableError: the disk cannot give one now.
    """
    specs = divide({name: extractor.spec for name, extractor in extractors.items()})

    def transform(image: np.ndarray) -> tuple[tuple[int, ...], dict[str, np.ndarray]]:
        return image.shape[:2], {name: extractor.transform(image) for name, extractor in extractors.items()}

    for rows, images, reasons in _decoded_batches(transform, photographs, batch):
        features: dict[str, np.ndarray] = {}
        sizes = np.array([size for size, _ in images], dtype=np.int64).reshape(-1, 2)
        for name, spec in specs.items():
            extractor = extractors[name]
            for dataset, shape in spec.items():
                features[dataset] = np.zeros((len(rows), *shape), TYPES[dataset])
            for places in plan_batches(sizes, extractor.group, extractor.batch):
                pixels = stack([images[place][1][name] for place in places])
                try:  # in the types of the file, so that a photograph is as exact as the dataset's images
                    arrays, unfit = stored_rows(spec, extractor(pixels, sizes[places]))
                except DataError as error:
                    raise DataError(f"{_name_of(photographs, rows[places[0]])}: {error}") from None
                for dataset, values in arrays.items():
                    features[dataset][places] = values
                for place, reason in unfit.items():
                    reasons[rows[places[place]]] = reason
        _refuse(photographs, reasons, refused)
        usable = [place for place, row in enumerate(rows) if row not in reasons]
        if usable:
            usable_rows = np.array(rows)[usable]
            path = Path(_name_of(photographs, usable_rows[0]))
            arrays = {name: values[usable] for name, values in features.items()}
            yield FeatureFile(path, usable_rows.astype(str), arrays)


def read_frames(
    framed: Callable[[np.ndarray], Tensor],
    photographs: Sequence[Photograph],
    batch: int,
    refused: Callable[[int, str], object] | None,
) -> Iterator[Tensor]:
    """Yield the frames [b, 3, h, w] of some photographs at a time, in their order; the next are decoded meanwhile.

    Args:
        framed: makes the frame [3, h, w] of a photograph [H, W, 3] uint8 RGB.
        photographs, batch, refused: see `read_photographs`.

    Raises:
        DataError, UnavailableError: see `read_photographs`.
    """
    for _, frames, reasons in _decoded_batches(framed, photographs, batch):
        _refuse(photographs, reasons, refused)
        if frames:
            yield torch.stack(frames)


def _decoded_batches(
    transform: Callable[[np.ndarray], Item], photographs: Sequence[Photograph], batch: int
) -> Iterator[Decoded[list[Item]]]:
    """Yield some photographs at a time, transformed, and why others cannot be used; the next are decoded meanwhile."""

    def decode(row: int) -> Item | str:
        return _decoded(photographs[row], transform)

    rows = range(len(photographs))
    batches = [rows[start : start + batch] for start in rows[::batch]]
    decoders = Decoders(min(MOST_DECODERS, usable_cores()))
    try:
        yield from decoders.ahead(batches, decode, list)
    finally:
        decoders.stop()


def _refuse(
    photographs: Sequence[Photograph], reasons: Mapping[int, str], refused: Callable[[int, str], object] | None
) -> None:
    for row, reason in reasons.items():
        if refused is None:
            raise DataError(f"{_name_of(photographs, row)} {reason}; give another photograph")
        refused(row, reason)


def _name_of(photographs: Sequence[Photograph], row: int) -> str:
    photograph = photographs[row]
    if isinstance(photograph, str | os.PathLike):
        return os.fspath(photograph)
    return f"image {row}"


def _decoded(photograph: Photograph, transform: Callable[[np.ndarray], Item]) -> Item | str:
    """Return the photograph, transformed, or why it cannot be used."""
    try:
        if isinstance(photograph, Image.Image):
            pixels = picture_rgb(photograph)
        elif isinstance(photograph, str | os.PathLike):
            pixels = read_rgb(Path(photograph).expanduser())
        elif not isinstance(photograph, np.ndarray):
            return f"is a {type(photograph).__name__} and no path, image of Pillow or array"
        elif photograph.shape[2:] != (3,) or photograph.dtype != np.uint8 or not photograph.size:
            return f"is {photograph.dtype} {list(photograph.shape)} and not uint8 [height, width, 3]"
        else:
            pixels = photograph
    except DECODER_ERRORS as error:
        disk_error = unavailable(error)
        if disk_error:
            raise disk_error from None
        return refusal(error)
    return transform(pixels)
