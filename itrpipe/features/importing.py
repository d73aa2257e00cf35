"""Imports features that others have published: a map over images, whose parts are joined as those of an extraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.engine.work import Part, Work, cut
from itrpipe.features.declaration import FeatureSettings
from itrpipe.features.importers.base import Source, checked
from itrpipe.features.importers.matching import Match, WantedImage, match
from itrpipe.features.registry import importer_module
from itrpipe.features.store import TYPES
from itrpipe.storage.parts import ArrayWriter

if TYPE_CHECKING:
    from itrpipe.features.store import FeatureSpec

IMAGES_PER_PART = 256
_IMAGES_AT_ONCE = 64
"""So few are read at a time that memory does not depend on the size of parts."""


class Import(Work[Source]):
    """Features of images out of published files; a part has `rows` [n] int64 and a row of every dataset for each.

    Args:
        name: of the features, for people.
        settings: of the importer.
        path: file or folder with the published features.
        images: N images of the dataset.
        sizes: [N, 2] int64, their height and width in pixels.
    """

    unit = "images"

    def __init__(
        self, name: str, settings: FeatureSettings, path: Path, images: Sequence[WantedImage], sizes: np.ndarray
    ) -> None:
        self.title = f"importing {name}"
        self._settings, self._path, self._images, self._sizes = settings, path, images, sizes

    def __getstate__(self) -> dict[str, Any]:
        """Each worker opens the files itself, and is told of the images of each part alone."""
        opened = ("source", "_match", "_images", "_sizes")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    @cached_property
    def source(self) -> Source:
        """The published features, opened once in every process."""
        return importer_module(self._settings.kind).open_source(self._path, self._settings)

    @cached_property
    def _match(self) -> Match:
        return match(self.source, self._images)

    @property
    def spec(self) -> FeatureSpec:
        """Which datasets there are."""
        return self.source.spec

    @property
    def notes(self) -> list[str]:
        """What a user should know of the import."""
        found = self._match.by_captions
        return [f"{found:,} of {len(self._images):,} images were found by their captions, not by an id"] * bool(found)

    def parts(self) -> list[Part]:
        """Images in the order of the published file: disks are fast at reading it from beginning to end."""
        entries = self._match.entries
        order = np.argsort(entries, kind="stable")

        def content(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
            return rows, entries[rows], self._sizes[rows], [self._images[row].image_id for row in rows.tolist()]

        return [replace(part, content=content(part.content)) for part in cut(order, IMAGES_PER_PART)]

    def open(self) -> Source:
        """The published features."""
        return self.source

    def make(self, worker: Source, part: Part, path: Path) -> None:
        """Copies the features of a part's images.

        Raises:
            DataError: the features of an image cannot be stored.
        """
        rows, entries, sizes, names = part.content
        arrays = {name: (TYPES[name], (len(rows), *shape)) for name, shape in worker.spec.shapes().items()}
        with ArrayWriter(path, {"rows": (rows.dtype, rows.shape), **arrays}, {}) as writer:
            writer.write("rows", 0, rows)
            for start in range(0, len(rows), _IMAGES_AT_ONCE):
                block = slice(start, start + _IMAGES_AT_ONCE)
                for name, values in checked(worker, names[block], entries[block], sizes[block]).items():
                    writer.write(name, start, values)
