"""Photographs that belong to no dataset, read by the extractors of a dataset's features: the same rows, in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from itrpipe.datasets.pictures import DECODER_ERRORS, picture_rgb, read_rgb, refusal
from itrpipe.engine.local import usable_cores
from itrpipe.errors import DataError
from itrpipe.features.declaration import FeatureSettings, extractor_module
from itrpipe.features.extraction import (
    MOST_DECODERS,
    DecodedBatch,
    ahead,
    compute,
    decoding_pool,
    divide,
    plan_batches,
    stack,
)
from itrpipe.features.extractors.base import Extractor
from itrpipe.features.store import TYPES, FeatureFile, FeatureSpec
from itrpipe.storage.disk import unavailable

Photograph = str | os.PathLike[str] | Image.Image | np.ndarray
"""Path of a file, an image of Pillow, or [H, W, 3] uint8 RGB."""
_REMEDY = "give another photograph"
_Decoded = tuple[tuple[int, ...], list[np.ndarray]]
"""Height and width of a photograph, and its pixels as each extractor takes them."""


class Photographs:
    """Extracts features of photographs.

    Args:
        name: of the features.
        extractors: name -> extractor; a group of datasets comes from the first that has it.
    """

    def __init__(self, name: str, extractors: Mapping[str, Extractor]) -> None:
        self.name, self._extractors = name, dict(extractors)

    @classmethod
    def by(cls, name: str, parts: Mapping[str, FeatureSettings], device: str) -> Photographs:
        """Opens the extractors of `itrpipe.features.declaration.passes_of`, none of which is an importer."""
        place = torch.device(device)
        return cls(name, {each: extractor_module(part.kind).build(part, place) for each, part in parts.items()})

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

        def refuse(row: int, reason: str) -> None:
            if refused is None:
                raise DataError(f"{_name(photographs[row], row)} {reason}; {_REMEDY}")
            refused(row, reason)

        def submit(rows: range) -> Future[list[tuple[int, _Decoded | str]]]:
            decoding = [pool.submit(self._decoded, photographs[row]) for row in rows]
            return pool.submit(lambda: [(row, each.result()) for row, each in zip(rows, decoding, strict=True)])

        known = [str(row) for row in range(len(photographs))] if ids is None else ids
        starts = range(0, len(photographs), batch)
        pool = decoding_pool(min(MOST_DECODERS, usable_cores()))
        try:
            for found in ahead(submit, (range(len(photographs))[start : start + batch] for start in starts), 1):
                for row, reason in ((row, each) for row, each in found if isinstance(each, str)):
                    refuse(row, reason)
                decoded = {row: each for row, each in found if not isinstance(each, str)}
                names = [_name(photographs[row], row) for row in decoded]
                features = self._extracted(decoded, names, [known[row] for row in decoded], refuse)
                if len(features):
                    yield features
        finally:
            pool.shutdown(cancel_futures=True)

    @cached_property
    def _specs(self) -> dict[str, FeatureSpec]:
        """Extractor -> the datasets that it fills."""
        return divide({name: each.spec for name, each in self._extractors.items()})

    def _decoded(self, photograph: Photograph) -> _Decoded | str:
        """The photograph as its extractors take it, or why it cannot be used."""
        try:
            pixels = _rgb(photograph)
        except DECODER_ERRORS as error:
            if told := unavailable(error):
                raise told from None
            return refusal(error)
        return pixels.shape[:2], [each.transform(pixels) for each in self._extractors.values()]

    def _extracted(
        self,
        decoded: Mapping[int, _Decoded],
        names: Sequence[str],
        ids: Sequence[str],
        refuse: Callable[[int, str], object],
    ) -> FeatureFile:
        images, places = list(decoded.values()), list(decoded)
        sizes = np.array([size for size, _ in images], dtype=np.int64).reshape(-1, 2)
        kept = np.ones(len(images), dtype=bool)
        # In the types of the file, so that a photograph is as exact as the images of the dataset.
        found: dict[str, np.ndarray | None] = dict.fromkeys("global_" if name == "global" else name for name in TYPES)
        for place, (name, spec) in enumerate(self._specs.items()):
            extractor = self._extractors[name]
            made = {each: np.zeros((len(images), *shape), TYPES[each]) for each, shape in spec.shapes().items()}
            for rows in plan_batches(sizes, extractor.group, extractor.batch):
                batch = DecodedBatch(rows, stack([images[row][1][place] for row in rows.tolist()]), [])
                try:
                    usable, arrays, refused = compute(extractor, batch, sizes, spec)
                except DataError as error:
                    raise DataError(f"{names[rows[0]]}: {error}") from None
                for row, reason in refused:
                    refuse(places[row], reason)
                    kept[row] = False
                for each, values in arrays.items():
                    made[each][usable] = values
            found |= {"global_" if each == "global" else each: values for each, values in made.items()}
        every = bool(kept.all())
        whole = {name: values if values is None or every else values[kept] for name, values in found.items()}
        path = Path(names[0] if names else "")
        return FeatureFile(path=path, extractor=self.name, image_id=np.array(ids, dtype=str)[kept], **whole)  # pyright: ignore


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
        if photograph.ndim != 3 or photograph.shape[2] != 3 or photograph.dtype != np.uint8 or not photograph.size:
            raise DataError(f"is {photograph.dtype} {list(photograph.shape)} and not uint8 [height, width, 3]")
        return photograph
    if isinstance(photograph, str | os.PathLike):
        return read_rgb(Path(photograph).expanduser())
    raise DataError(f"is a {type(photograph).__name__} and no path, image of Pillow or array")
