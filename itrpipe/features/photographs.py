"""Photographs that belong to no dataset, read by the extractors of a dataset's features: the same rows, in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from itrpipe.datasets.pictures import DECODER_ERRORS, picture_rgb, read_rgb, refusal
from itrpipe.engine.local import usable_cores
from itrpipe.errors import DataError
from itrpipe.features.declaration import EXTRACTORS, FeatureSettings
from itrpipe.features.extraction import MOST_DECODERS, Decoders, divide, plan_batches, stack
from itrpipe.features.extractors.base import Extractor
from itrpipe.features.store import TYPES, FeatureFile, stored_rows
from itrpipe.storage.disk import unavailable

Photograph = str | os.PathLike[str] | Image.Image | np.ndarray
"""Path of a file, an image of Pillow, or [H, W, 3] uint8 RGB."""

_Decoded = tuple[tuple[int, ...], list[np.ndarray]]
"""Height and width of a photograph, and its pixels as each extractor takes them."""


@dataclass
class Photographs:
    """Extracts features of photographs.

    Args:
        name: of the features.
        extractors: name -> extractor; a group of datasets comes from the first that has it.
    """

    name: str
    extractors: Mapping[str, Extractor]

    @classmethod
    def by(cls, name: str, parts: Mapping[str, FeatureSettings], device: str) -> Photographs:
        """Opens the extractors of `itrpipe.features.declaration.passes_of`, none of which is an importer."""
        place = torch.device(device)
        return cls(name, {each: EXTRACTORS.module(part.kind).build(part, place) for each, part in parts.items()})

    def features(
        self,
        photographs: Sequence[Photograph],
        batch: int,
        ids: Sequence[str] | None = None,
        refused: Callable[[int, str], object] | None = None,
    ) -> Iterator[FeatureFile]:
        """Yields the features of some photographs at a time, in their order; the next are decoded meanwhile.

        Args:
            photographs: N of them.
            batch: at a time.
            ids: N of them, to find the rows by; None for the numbers 0 to N - 1.
            refused: is told the place and the reason of each photograph that cannot be used, which has no row then.

        Raises:
            DataError: a photograph cannot be used, and `refused` is None.
            UnavailableError: the disk cannot give one now.
        """
        specs = divide({name: extractor.spec for name, extractor in self.extractors.items()})
        every = range(len(photographs))
        names = [_name(photograph, row) for row, photograph in enumerate(photographs)]
        batches = (every[start : start + batch] for start in every[::batch])
        decoders = Decoders(min(MOST_DECODERS, usable_cores()))
        try:
            for rows, decoded, reasons in decoders.ahead(batches, lambda row: self._decoded(photographs[row]), list):
                features: dict[str, np.ndarray] = {}
                sizes = np.array([size for size, _ in decoded], dtype=np.int64).reshape(-1, 2)
                for number, (name, spec) in enumerate(specs.items()):
                    extractor = self.extractors[name]
                    features |= {each: np.zeros((len(rows), *shape), TYPES[each]) for each, shape in spec.items()}
                    for places in plan_batches(sizes, extractor.group, extractor.batch):
                        pixels = stack([decoded[place][1][number] for place in places])
                        try:  # in the types of the file, so that a photograph is as exact as the dataset's images
                            arrays, unfit = stored_rows(spec, extractor(pixels, sizes[places]))
                        except DataError as error:
                            raise DataError(f"{names[rows[places[0]]]}: {error}") from None
                        for each, values in arrays.items():
                            features[each][places] = values
                        for place, reason in unfit.items():
                            reasons[rows[places[place]]] = reason
                for row, reason in reasons.items():
                    if refused is None:
                        raise DataError(f"{names[row]} {reason}; give another photograph")
                    refused(row, reason)
                kept = [place for place, row in enumerate(rows) if row not in reasons]
                if kept:
                    own = {name: values[kept] for name, values in features.items()}
                    left = np.array([rows[place] for place in kept])
                    image_ids = left.astype(str) if ids is None else np.array(ids)[left]
                    yield FeatureFile(Path(names[left[0]]), self.name, image_ids, own)
        finally:
            decoders.stop()

    def _decoded(self, photograph: Photograph) -> _Decoded | str:
        """The photograph as its extractors take it, or why it cannot be used."""
        try:
            pixels = _rgb(photograph)
        except DECODER_ERRORS as error:
            if told := unavailable(error):
                raise told from None
            return refusal(error)
        return pixels.shape[:2], [each.transform(pixels) for each in self.extractors.values()]


def _name(photograph: Photograph, row: int) -> str:
    """A photograph, for messages."""
    return os.fspath(photograph) if isinstance(photograph, str | os.PathLike) else f"image {row}"


def _rgb(photograph: Photograph) -> np.ndarray:
    """[H, W, 3] uint8 RGB.

    Raises:
        DataError: it cannot be used. The message is the reason alone.
        Exception: one of `DECODER_ERRORS`.
    """
    if isinstance(photograph, Image.Image):
        return picture_rgb(photograph)
    if isinstance(photograph, np.ndarray):
        if photograph.shape[2:] != (3,) or photograph.dtype != np.uint8 or not photograph.size:
            raise DataError(f"is {photograph.dtype} {list(photograph.shape)} and not uint8 [height, width, 3]")
        return photograph
    if isinstance(photograph, str | os.PathLike):
        return read_rgb(Path(photograph).expanduser())
    raise DataError(f"is a {type(photograph).__name__} and no path, image of Pillow or array")
