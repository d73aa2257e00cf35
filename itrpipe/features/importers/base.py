"""Importers: their interface, reading image by image, the checks of all values, and finding the images of a dataset.

Published features are used with more than one version of a dataset, so rows are never matched by position: an image is
found by a name, or else by its captions, of which published files have the first five.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from itrpipe.engine.work import Part, Work, cut
from itrpipe.errors import DataError
from itrpipe.features.declaration import IMPORTERS, FeatureSettings
from itrpipe.features.store import TYPES, FeatureSpec, stored_rows
from itrpipe.storage.disk import reading

Key = TypeVar("Key", str, tuple[str, ...])
AGAIN = "extract or fetch it again"
# Boxes may leave the image by this fraction before they are refused: tools round, and some clip one pixel too late.
BOX_SLACK = 0.01
# Width / height of a picture may differ by this fraction between two copies of it, which are scaled to whole pixels.
ASPECT_SLACK = 0.02
# Type in the store -> type in which values are kept until they are checked; floats that do not fit become infinite.
_READ_AS = {"<f2": "<f2", "<f4": "<f8", "<i2": "<i8"}


class Layout(NamedTuple):
    """Files of a format at a path.

    Attributes:
        files: every file that is read, for its digest; where nothing can be read, what looks like the format.
        lacks: what it would need to be read, for messages; empty where it is complete.
    """

    files: list[Path]
    lacks: str = ""

    def __str__(self) -> str:
        """Return the files and what they lack, for messages."""
        names = ", ".join(file.name for file in self.files)
        if len(self.files) > 3:
            names = f"{self.files[0].name} and {len(self.files) - 1:,} more"
        if self.lacks:
            return f"{names}, without {self.lacks}"
        return names


class FeatureSource(ABC):
    """Published features, opened: E entries, one per image.

    The module `importer.py` of an importer imports nothing heavy at its top and has

        layout(path: Path) -> Layout | None         what of this format lies at the path
        open_source(path: Path, settings) -> FeatureSource

    Attributes:
        path: file or folder.
        spec: which datasets it fills; R is the largest number of regions of an entry.
        names: [E] image names, ids or file names.
        captions: for each entry the captions stored with it; None where the format has none.
        summary: what was found, one line for the user.
    """

    path: Path
    spec: FeatureSpec
    names: list[str]
    captions: Sequence[Sequence[str]] | None = None
    summary: str

    @abstractmethod
    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Read some entries in memory that does not grow with E; `checked_rows` checks the values.

        Args:
            entries: [n] int64, rising. The next call's entries are larger as a rule, and smaller where a part is made
                again.
            sizes: [n, 2] int64 height and width of the images in pixels.

        Returns:
            Every dataset of `spec` as an array [n, ...] of any numeric type; rows beyond `count` are zero. Boxes are
            x0, y0, x1, y1 in fractions of the image, or in pixels if there is `size`, [n, 2]: height and width of the
            pictures that the features were made from.

        Raises:
            Exception: an entry is damaged; the user is told so.
        """


class Place(NamedTuple):
    """The place of an image's features: `length` bytes of a file from `start` on; `Place(file)` is all of it."""

    file: Path
    start: int = 0
    length: int | None = None

    def content(self) -> bytes:
        """Read the bytes, fewer if the file ends before."""
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.length)


class Entries(FeatureSource):
    """A `FeatureSource` whose images lie each at a place of its own.

    A subclass adds all images, calls `describe`, and reads one of them in `entry`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = []
        self._places: dict[str, Place] = {}

    def add(self, name: str, place: Place) -> None:
        """Note where an image lies.

        Raises:
            DataError: it has other features somewhere else.
        """
        earlier = self._places.setdefault(name, place)
        if earlier is place:
            self.names.append(name)
        elif earlier.content() != place.content():
            raise DataError(f"{place.file} has other features of image '{name}' than {earlier.file}; remove one")

    def describe(self, format_: str, counts: Collection[int], width: int, datasets: Collection[str]) -> None:
        """Set `spec` and `summary`, once all images are added.

        Args:
            format_: for the user.
            counts: numbers of regions that images have.
            width: D.
            datasets: which of `boxes`, `labels`, `scores` and `attributes` there are; other names do no harm.

        Raises:
            DataError: no image has regions.
        """
        if not width or not any(counts):
            raise DataError(f"{self.path} holds no regions; name files with features of images")
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(datasets, ())
        shapes["regions"] = max(counts), width
        self.spec = FeatureSpec.of(shapes)
        self.summary = f"{format_}: {len(self.names):,} images; {min(counts)} to {max(counts)} regions of width {width}"

    @abstractmethod
    def entry(self, place: Place) -> Mapping[str, Any]:
        """Read an image.

        Returns:
            Arrays [r, ...] for every dataset of `spec` but `count`, and perhaps `count`, how many of the r regions are
            taken, and `size`, see `FeatureSource.read`.

        Raises:
            Exception: the image cannot be read; the user is told which and why.
        """

    @contextmanager
    def reading(self, name: str) -> Iterator[Place]:
        """Give the place of an image, and turn whatever is raised over it into one line."""
        place = self._places[name]
        with reading(f"{place.file}: image '{name}'", "features", AGAIN):
            yield place

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `FeatureSource`."""
        n = len(entries)
        rows = {name: np.zeros((n, *shape), _READ_AS[TYPES[name]]) for name, shape in self.spec.items()}
        for position, entry in enumerate(entries.tolist()):
            with self.reading(self.names[entry]) as place:
                arrays = self.entry(place)
                regions = len(arrays["regions"])
                count = arrays.get("count", regions)
                rows["count"][position] = count
                for name in self.spec.keys() - {"count"}:
                    shape = (regions, *self.spec[name][1:])
                    if np.shape(arrays[name]) != shape:
                        raise ValueError(f"{name} have shape {np.shape(arrays[name])} and not {shape}")
                    rows[name][position, :count] = arrays[name][:count]
                if "size" in arrays:
                    rows.setdefault("size", np.zeros((n, 2), np.int64))[position] = arrays["size"]
        return rows


def checked_rows(
    source: FeatureSource, names: Sequence[str], entries: np.ndarray, sizes: np.ndarray
) -> dict[str, np.ndarray]:
    """Read some entries as they are stored. All that importers read is checked here and in `stored_rows`.

    Args:
        source: published features.
        names: n images of the dataset, for messages.
        entries: [n] int64, see `FeatureSource.read`.
        sizes: [n, 2] int64 height and width of the images in pixels.

    Returns:
        Every dataset of the source's `spec`, [n, ...] in the type of the store.

    Raises:
        DataError: an entry is damaged, is of a picture of another shape, or cannot be stored; names the image.
    """
    refused: dict[int, str] = {}
    with reading(source.path, "features", AGAIN), np.errstate(all="ignore"):  # damaged numbers are refused below
        arrays = source.read(entries, sizes)
        made_from = arrays.get("size")
        if made_from is not None:
            ratios = (made_from[:, 1] * sizes[:, 0]) / (made_from[:, 0] * sizes[:, 1])
            is_alike = np.maximum(ratios, 1 / ratios) <= 1 + ASPECT_SLACK
            for row in np.flatnonzero(~is_alike).tolist():
                refused[row] = f"is another picture: {made_from[row]} pixels high and wide, here {sizes[row]}"
        if "boxes" in arrays:
            boxes = arrays["boxes"]
            if made_from is not None:
                boxes = boxes / made_from[:, None, [1, 0, 1, 0]]
            is_reversed = (boxes[..., 2:] < boxes[..., :2] - BOX_SLACK).any(axis=(1, 2))
            for row in np.flatnonzero(is_reversed).tolist():
                refused[row] = "has a box that ends before it starts"
            is_inside = (boxes >= -BOX_SLACK) & (boxes <= 1 + BOX_SLACK)
            arrays["boxes"] = np.where(is_inside, boxes.clip(0, 1), boxes)
        stored, unfit = stored_rows(source.spec, arrays, first_class=0)
    for row, reason in sorted((unfit | refused).items()):
        raise DataError(f"{source.path}: image '{names[row]}' {reason}; {AGAIN}")
    return stored


# Finding the images of a dataset among published features.

_AMBIGUOUS = -1
_UNKNOWN = -2
_REASONS = {_AMBIGUOUS: "more than one entry", _UNKNOWN: "no entry"}
_SUFFIXES = re.compile(r"(?:\.(?:npz|npy|jpe?g|png|gif|bmp|webp|tiff?))+$", re.IGNORECASE)
# COCO and UNITER number files with twelve digits after a prefix; elsewhere "_5" may count anything.
_NUMBER = re.compile(r"(?:(?:coco|flickr30k)_(?:.*_)?|.*_(?=[0-9]{12}$))?([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class WantedImage:
    """An image of the dataset whose features are looked for.

    Attributes:
        image_id: identifier in the dataset.
        file: path or name of its file.
        captions: its captions in the dataset's order; as many are compared as the features have.
    """

    image_id: str
    file: str
    captions: Sequence[str]


def match(source: FeatureSource, images: Sequence[WantedImage]) -> tuple[np.ndarray, int]:
    """Find the entry of every image: by its identifier, file name, stem or number, else by its captions.

    Captions are compared by their letters and digits alone, because published copies of a dataset differ in case,
    white space and in how they cut off punctuation. An image found by a name whose captions contradict the entry's in
    most cases means that the names are another numbering, and is refused.

    Args:
        source: the features.
        images: n images.

    Returns:
        The entry of every image, [n] int64, each once; and how many were found by their captions and not by a name.

    Raises:
        DataError: images are not found, are ambiguous, or are found twice, or names and captions contradict each
            other.
    """
    names_of_entries = [names_of(name) for name in source.names]
    captions: list[tuple[str, ...]] = [()] * len(source.names)
    if source.captions:
        captions = [caption_key(stored) for stored in source.captions]
    # The text itself counts more than the names that it contains.
    by_name = _index([names[1:] for names in names_of_entries]) | _index([names[:1] for names in names_of_entries])
    by_captions = _index([[key] for key in captions])
    counts = {len(key) for key in by_captions}
    entries = []
    found_by_captions = 0
    compared = 0
    different = []
    for image in images:
        by_id = _first_known(names_of(image.image_id), by_name)
        by_file = _first_known(names_of(image.file), by_name)
        entry = max(by_id, by_file)
        if by_id != by_file and min(by_id, by_file) >= 0:
            entry = _AMBIGUOUS
        key = caption_key(image.captions) if source.captions else ()
        if entry < 0:
            found_by_captions += 1
            for count in counts:
                if key[:count] in by_captions:
                    entry = by_captions[key[:count]]
                    break
        elif captions[entry] and len(key) >= len(captions[entry]):
            compared += 1
            if key[: len(captions[entry])] != captions[entry]:
                different.append(image.image_id)
        entries.append(entry)
    if len(different) * 2 > compared:
        raise DataError(
            f"{source.path}: {len(different)} of {compared} images found by name have other captions than in the "
            f"dataset, first '{different[0]}': the ids number another dataset; remove *_ids.txt to match by captions."
        )
    times = Counter(entries)
    wrong = [row for row, entry in enumerate(entries) if entry < 0 or times[entry] > 1]
    if wrong:
        image = images[wrong[0]]
        reason = _REASONS.get(entries[wrong[0]], "an entry that is another image's as well")
        example = source.names[0] if source.names else ""
        raise DataError(
            f"{source.path} has {reason} for '{image.image_id}' ({image.file}), and {len(wrong)} of the {len(images)} "
            f"images of the dataset are not found; its {len(source.names)} names are like '{example}'; use the "
            "features of this dataset, one entry for each image."
        )
    return np.array(entries, dtype=np.int64), found_by_captions


def _first_known(names: Sequence[str], entries: Mapping[str, int]) -> int:
    """Return the entry of the most exact name that has one."""
    for name in names:
        if name in entries:
            return entries[name]
    return _UNKNOWN


def names_of(text: str) -> list[str]:
    """Return the names under which an id or file is known, the most exact first.

    They are the text itself, the file name in it, that without the suffixes of images and arrays, and its number: 9 in
    `COCO_train2014_000000000009.jpg`, `coco_train2014_000000000009.npz`, `000000000009` and `9`.
    """
    text = text.strip()
    name = text.replace("\\", "/").rsplit("/", 1)[-1]
    stem = _SUFFIXES.sub("", name)
    names = [text, name, stem]
    number = _NUMBER.fullmatch(stem)
    if number:
        names.append(number[1].lstrip("0") or "0")
    return names


def caption_key(captions: Sequence[str]) -> tuple[str, ...]:
    """Return captions by their letters and digits."""
    return tuple("".join(filter(str.isalnum, caption.casefold())) for caption in captions)


def _index(keys: Iterable[Iterable[Key]]) -> dict[Key, int]:
    """Return the entry of every key that is not empty, `_AMBIGUOUS` where several entries have it.

    Args:
        keys: of each entry.
    """
    entries: dict[Key, int] = {}
    for entry, keys_of_entry in enumerate(keys):
        for key in keys_of_entry:
            if key and entries.setdefault(key, entry) != entry:
                entries[key] = _AMBIGUOUS
    return entries


# The map over the images of a dataset.

IMAGES_PER_PART = 128
"""They are in memory together: 50 MB of 100 regions each."""


@dataclass(eq=False)
class Import(Work[FeatureSource]):
    """Features of images out of published files; a part has `rows` [n] int64 and a row of every dataset for each.

    Attributes:
        title: what is being done, for people.
        settings: of the importer.
        path: file or folder with the published features.
        images: N images of the dataset.
        sizes: [N, 2] int64, their height and width in pixels.
    """

    unit = "images"
    key = str(IMAGES_PER_PART)
    untold = ("source", "_match", "images", "sizes")

    title: str
    settings: FeatureSettings
    path: Path
    images: Sequence[WantedImage]
    sizes: np.ndarray

    @cached_property
    def source(self) -> FeatureSource:
        """Open the published features, once in every process."""
        with reading(self.path, "features", AGAIN):
            return IMPORTERS.module(self.settings.kind).open_source(self.path, self.settings)

    @cached_property
    def _match(self) -> tuple[np.ndarray, int]:
        return match(self.source, self.images)

    @property
    def spec(self) -> FeatureSpec:
        """Return the datasets that there are."""
        return self.source.spec

    @property
    def notes(self) -> list[str]:
        """Notes of the import for the user."""
        _, count = self._match
        if not count:
            return []
        return [f"{count:,} of {len(self.images):,} images were found by their captions, not by an id"]

    def parts(self) -> list[Part]:
        """Return the images in the order of the published file: disks are fast at reading it from beginning to end."""
        entries, _ = self._match
        order = np.argsort(entries, kind="stable")
        parts = []
        for part in cut(order, IMAGES_PER_PART):
            rows = part.content
            names = [self.images[row].image_id for row in rows]
            parts.append(replace(part, content=(rows, entries[rows], self.sizes[rows], names)))
        return parts

    def open(self) -> FeatureSource:
        """Return the published features."""
        return self.source

    def make(self, worker: FeatureSource, part: Part, path: Path) -> None:
        """Copy the features of a part's images.

        Raises:
            DataError: the features of an image cannot be stored.
        """
        from itrpipe.storage.arrays import write_arrays

        rows, entries, sizes, names = part.content
        arrays = checked_rows(worker, names, entries, sizes)
        write_arrays(path, {"rows": rows, **arrays}, {})
