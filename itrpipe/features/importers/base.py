"""What an importer is, what those have in common that read images one by one, and the checks of what they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from itrpipe.errors import DataError
from itrpipe.storage.disk import reading

if TYPE_CHECKING:
    from itrpipe.features.store import FeatureSpec

AGAIN = "extract or fetch it again"
# Boxes may leave the image by this fraction before they are refused: tools round, and some clip one pixel too late.
BOX_SLACK = 0.01
# Width / height of a picture may differ by this fraction between two copies of it, which are scaled to whole pixels.
ASPECT_SLACK = 0.02
# Type in the store -> type in which values are kept until they are checked; floats that do not fit become infinite.
_READ_AS = {"<f2": "<f2", "<f4": "<f8", "<i2": "<i8"}


class Layout(NamedTuple):
    """What of a format lies at a path.

    Attributes:
        files: every file that is read, for its digest; where nothing can be read, what looks like the format.
        lacks: what it would need to be read, for messages; empty where it is complete.
    """

    files: list[Path]
    lacks: str = ""

    def __str__(self) -> str:
        """The files and what they lack, for messages."""
        names = [file.name for file in self.files]
        found = ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1:,} more"
        return f"{found}, without {self.lacks}" if self.lacks else found


class Source(Protocol):
    """Published features, opened: E entries, one per image.

    The module `importer.py` of an importer imports nothing heavy at its top and has

        layout(path: Path) -> Layout | None         what of this format lies at the path
        open_source(path: Path, settings) -> Source

    Attributes:
        path: file or folder.
        spec: which datasets it fills; R is the largest number of regions of an entry.
        names: [E] image names, ids or file names.
        captions: for each entry the captions stored with it, or None where the format has none.
        summary: what was found, one line for the user.
    """

    path: Path
    spec: FeatureSpec
    names: Sequence[str]
    captions: Sequence[Sequence[str]] | None
    summary: str

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> Mapping[str, np.ndarray]:
        """Reads some entries in memory that does not grow with E; `checked` checks the values.

        Args:
            entries: [n] int64, rising. The next call's entries are larger as a rule, and smaller where a part is made
                again.
            sizes: [n, 2] int64 height and width of the images in pixels.

        Returns:
            Every dataset of `spec` as an array [n, ...] of any numeric type; rows beyond `count` are zero. Boxes are
            x0, y0, x1, y1 in fractions of the image, or in pixels if there is `size`, [n, 2]: height and width of the
            pictures that the features were made from.

        Raises:
            DataError: an entry is damaged; names the image.
        """
        ...


class Place(NamedTuple):
    """Where the features of an image lie: `length` bytes of a file from `start` on."""

    file: Path
    start: int
    length: int

    def content(self) -> bytes:
        """The bytes, fewer if the file ends before."""
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.length)


class Entries(ABC):
    """A `Source` whose images lie each at a place of its own: a subclass has `spec`, `summary` and `entry`.

    Attributes:
        path, spec, names, summary: see `Source`.
        repeated: how many images come twice, with the same content.
    """

    spec: FeatureSpec
    summary: str

    def __init__(self, path: Path) -> None:
        self.path, self.repeated = path, 0
        self.captions: Sequence[Sequence[str]] | None = None
        self._places: dict[str, Place] = {}

    def add(self, name: str, place: Place) -> None:
        """Notes where an image lies.

        Raises:
            DataError: it has other features somewhere else.
        """
        earlier = self._places.setdefault(name, place)
        if earlier is not place:
            if earlier.content() != place.content():
                raise DataError(f"{place.file} has other features of image '{name}' than {earlier.file}; remove one")
            self.repeated += 1

    @cached_property
    def names(self) -> list[str]:
        """The images, once all are added."""
        return list(self._places)

    def describe(self, format_: str, counts: Collection[int], width: int, datasets: Collection[str]) -> None:
        """Sets `spec` and `summary`, once all images are added.

        Args:
            format_: for the user.
            counts: numbers of regions that images have.
            width: D.
            datasets: which of `boxes`, `labels`, `scores` and `attributes` there are; other names do no harm.

        Raises:
            DataError: no image has regions.
        """
        from itrpipe.features.store import FeatureSpec

        if not width or not any(counts):
            raise DataError(f"{self.path} holds no regions; name files with features of images")
        boxes, labels, scores, attributes = (name in datasets for name in ("boxes", "labels", "scores", "attributes"))
        self.spec = FeatureSpec(max(counts), width, 0, boxes, labels, scores, attributes)
        twice = f"; {self.repeated:,} of them come twice with the same content" if self.repeated else ""
        regions = f"{min(counts)} to {max(counts)} regions of width {width}"
        self.summary = f"{format_}: {len(self.names):,} images{twice}; {regions}"

    @abstractmethod
    def entry(self, place: Place) -> Mapping[str, Any]:
        """Reads an image.

        Returns:
            Arrays [r, ...] for every dataset of `spec` but `count`, and perhaps `count`, how many of the r regions are
            taken, and `size`, see `Source.read`.

        Raises:
            Exception: the image cannot be read; the user is told which and why.
        """

    @contextmanager
    def reading(self, name: str) -> Iterator[Place]:
        """Gives the place of an image, and turns whatever is raised over it into one line."""
        place = self._places[name]
        with reading(f"{place.file}: image '{name}'", "features", AGAIN), np.errstate(over="ignore", invalid="ignore"):
            yield place

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        from itrpipe.features.store import TYPES

        n, shapes = len(entries), self.spec.shapes()
        rows = {name: np.zeros((n, *shape), _READ_AS[TYPES[name]]) for name, shape in shapes.items()}
        for position, entry in enumerate(entries.tolist()):
            with self.reading(self.names[entry]) as place:
                found = self.entry(place)
                regions = len(found["regions"])
                rows["count"][position] = count = found.get("count", regions)
                for name, (_, *shape) in ((name, shape) for name, shape in shapes.items() if shape):
                    if np.shape(found[name]) != (regions, *shape):
                        raise ValueError(f"{name} have shape {np.shape(found[name])} and not {(regions, *shape)}")
                    rows[name][position, :count] = found[name][:count]
                if "size" in found:
                    rows.setdefault("size", np.zeros((n, 2), np.int64))[position] = found["size"]
        return rows


def checked(source: Source, names: Sequence[str], entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Reads some entries as they are stored. All that importers read is checked here and in `stored_rows`.

    Args:
        source: published features.
        names: n images of the dataset, for messages.
        entries: [n] int64, see `Source.read`.
        sizes: [n, 2] int64 height and width of the images in pixels.

    Returns:
        Every dataset of the source's `spec`, [n, ...] in the type of the store.

    Raises:
        DataError: an entry is damaged, is of a picture of another shape, or cannot be stored; names the image.
    """
    from itrpipe.features.store import stored_rows

    refused: dict[int, str] = {}
    with np.errstate(all="ignore"):  # damaged numbers are refused below
        arrays = dict(source.read(entries, sizes))
        if "size" in arrays:
            there = arrays["size"]
            ratio = (there[:, 1] * sizes[:, 0]) / (there[:, 0] * sizes[:, 1])
            for position in np.flatnonzero(~(np.maximum(ratio, 1 / ratio) <= 1 + ASPECT_SLACK)).tolist():
                refused[position] = (
                    f"is another picture: {there[position]} pixels high and wide, here {sizes[position]}"
                )
            if "boxes" in arrays:
                arrays["boxes"] = arrays["boxes"] / there[:, None, [1, 0, 1, 0]]
        if "boxes" in arrays:
            boxes = arrays["boxes"]
            for position in np.flatnonzero((boxes[..., 2:] < boxes[..., :2] - BOX_SLACK).any(axis=(1, 2))).tolist():
                refused.setdefault(position, "has a box that ends before it starts")
            inside = (boxes >= -BOX_SLACK) & (boxes <= 1 + BOX_SLACK)
            arrays["boxes"] = np.where(inside, boxes.clip(0, 1), boxes)
        stored, unfit = stored_rows(source.spec, arrays)
    for position, reason in sorted((unfit | refused).items()):
        raise DataError(f"{source.path}: image '{names[position]}' {reason}; {AGAIN}")
    return stored
