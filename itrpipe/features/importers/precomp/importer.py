"""Importer of `*_precomp` folders, the layout in which SCAN and its successors publish region features.

A folder holds, for each of the splits `train`, `dev`, `test` and `testall` it has:

| file                 | content                                                                                      |
|----------------------|----------------------------------------------------------------------------------------------|
| `{split}_ims.npy`    | [n, R, D] floating point; old files repeat every image for each of its k captions: [kn, R, D] |
| `{split}_caps.txt`   | one caption a line, UTF-8; k lines describe an image, five in published files                |
| `{split}_ids.txt`    | one image name or number a line (optional; k times each where the images are)                |
| `{split}_global.npy` | [n, G] floating point (optional, in all splits or in none)                                   |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.source_files import lines_of
from itrpipe.errors import DataError, UsageError
from itrpipe.features.importers.base import Layout, caption_key, names_of
from itrpipe.features.importers.precomp.declaration import Precomp
from itrpipe.features.store import FeatureSpec
from itrpipe.storage.arrays import FileRows, open_arrays, take
from itrpipe.storage.disk import reading

_SPLITS = ("train", "dev", "test", "testall")
# So many images of a repeated file are looked at to see that the repetitions are equal.
_REPEAT_SAMPLES = 8


class Split(NamedTuple):
    """One split of a precomp folder.

    Attributes:
        name: one of `_SPLITS`.
        arrays: `regions` and perhaps `global`, of n rows, or kn that repeat every image k times.
        ids: [n] names, or None where the folder has none.
        captions: [n], none each where the folder has none.
    """

    name: str
    arrays: dict[str, FileRows]
    ids: list[str] | None
    captions: list[tuple[str, ...]]


class PrecompSource:
    """A precomp folder as a `Source`; its entries are the splits' images, one after the other."""

    def __init__(self, path: Path, settings: Precomp) -> None:
        """Opens a folder; captions and ids are read, of features only the headers.

        Raises:
            UsageError: the settings name a grid with more or fewer cells than there are regions.
            DataError: a file has a wrong type or shape, the numbers of rows, ids and captions disagree, an id comes
                twice, or the splits differ in R, D or G.
        """
        self.path = path
        self.splits = [_open_split(path, name) for name in _splits_in(path)]
        shapes = [{key: array.shape[1:] for key, array in split.arrays.items()} for split in self.splits]
        if any(shape != shapes[0] for shape in shapes):
            raise DataError(f"{path}: the splits have rows of different shapes, {shapes}; use files of one extractor")
        regions, width = shapes[0]["regions"]
        self._boxes = _cells(path, regions, *settings.grid) if settings.grid else None
        self.spec = FeatureSpec(regions, width, *shapes[0].get("global", ()), boxes=self._boxes is not None)
        self._places = self._distinct_images()
        places = [(self.splits[split], row) for split, row in self._places.tolist()]
        self.names: Sequence[str] = [
            split.ids[row] if split.ids else f"{split.name}_ims.npy, image {row}" for split, row in places
        ]
        captions = [split.captions[row] for split, row in places]
        self.captions: Sequence[Sequence[str]] | None = captions if any(captions) else None
        sizes = ", ".join(f"{split.name} {len(split.captions):,}" for split in self.splits)
        self.summary = f"precomp folder: {sizes} images; {regions} regions of width {width}"

    def _distinct_images(self) -> np.ndarray:
        """Number of the split and row of every entry, [E, 2].

        An image that an earlier split has as well is left out, since `test` is a part of `testall` in COCO. It is the
        same image if it has the same id, or in splits without ids the same captions, and if its captions do not
        contradict.
        """
        places, seen = [], {}
        for number, split in enumerate(self.splits):
            for row, captions in enumerate(split.captions):
                key = caption_key(captions)
                earlier, known = seen.setdefault(names_of(split.ids[row])[-1] if split.ids else key, (number, key))
                if earlier == number or (key and known and key != known):
                    places.append((number, row))
        return np.array(places)

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        shapes, places = self.spec.shapes(), self._places[entries]
        rows = {key: np.empty((len(entries), *shapes[key]), np.float16) for key in self.splits[0].arrays}
        for number in np.unique(places[:, 0]):
            split, here = self.splits[number], slice(*np.searchsorted(places[:, 0], [number, number + 1]))
            for key, array in split.arrays.items():
                rows[key][here] = take(array, places[here, 1] * (array.shape[0] // len(split.captions)))
        rows["count"] = np.full(len(entries), self.spec.regions)
        if self._boxes is not None:
            rows["boxes"] = np.broadcast_to(self._boxes, (len(entries), *self._boxes.shape))
        return rows


open_source = PrecompSource


def layout(path: Path) -> Layout | None:
    """Arrays named as those of precomp folders; images without ids and captions cannot be told apart."""
    splits = _splits_in(path)
    found = [path / f"{name}_{kind}" for name in splits for kind in ("ims.npy", "caps.txt", "ids.txt", "global.npy")]
    found = [file for file in found if file.is_file()] or sorted(path.glob("*_ims.npy"))
    named = {file.name.split("_")[0] for file in found if file.suffix == ".txt"}
    lacks = [f"{name}_ids.txt or {name}_caps.txt" for name in splits if name not in named]
    return Layout(found, next(iter(lacks), "") if splits else f"{_SPLITS[0]}_ims.npy") if found else None


def _splits_in(path: Path) -> list[str]:
    return [name for name in _SPLITS if (path / f"{name}_ims.npy").is_file()]


def _open_split(path: Path, name: str) -> Split:
    arrays: dict[str, FileRows] = {}
    for key, kind, shape in (("regions", "ims", "[images, regions, width]"), ("global", "global", "[images, width]")):
        file = path / f"{name}_{kind}.npy"
        if file.is_file():
            array = arrays[key] = open_arrays(file)[""]
            if array.dtype.kind != "f" or len(array.shape) != shape.count(",") + 1 or 0 in array.shape:
                raise DataError(f"{file} has type {array.dtype} and shape {array.shape}; floats {shape} are needed")
    texts = {kind: file for kind in ("caps", "ids") if (file := path / f"{name}_{kind}.txt").is_file()}
    lines = {kind: np.array(lines_of(file), dtype=object) for kind, file in texts.items()}
    regions, rows = arrays["regions"], arrays["regions"].shape[0]
    repeats = _repeats(regions, lines.get("ids")) if len(lines.get("caps", ())) == rows else 1
    images = rows // repeats
    if "global" in arrays and arrays["global"].shape[0] not in (images, rows):
        raise DataError(f"{arrays['global'].where} has {arrays['global'].shape[0]} rows for {images} images")
    ids, captions = None, [()] * images
    remedy = f"name the images in {name}_ids.txt, one a line, and take {name}_caps.txt away if it does not fit"
    for kind, file in texts.items():
        with reading(file, f"as many lines for each of {images} images", remedy):
            groups = [tuple(group) for group in lines[kind].reshape(images, -1).tolist()]
            if kind == "caps":
                captions = groups
            else:
                ids = [group[0].strip() for group in groups]
                if len(set(ids)) < images or any(len(set(group)) > 1 for group in groups):
                    raise ValueError("an image has several names, or a name several images")
    return Split(name, arrays, ids, captions)


def _repeats(regions: FileRows, ids: np.ndarray | None) -> int:
    """How often every image is there, in a file with as many rows as captions: once, or once for each of its captions.

    Raises:
        DataError: the first image comes several times in a row and others do not.
    """
    rows = regions.shape[0]
    keys: Iterator[Any] = (regions.read(row, row + 1).tobytes() for row in range(rows))
    if ids is not None and len(ids) == rows:
        keys = iter(ids)
    first = next(keys)
    repeats = next((row for row, key in enumerate(keys, 1) if key != first), rows)
    samples = range(0, rows, max(1, rows // repeats // _REPEAT_SAMPLES) * repeats)
    groups = (regions.read(start, start + repeats).tobytes() for start in samples)
    if any(group != group[: len(group) // repeats] * repeats for group in groups):
        raise DataError(f"{regions.where}: not every image is there {repeats} times, as the first is; fetch it again")
    return repeats


def _cells(path: Path, regions: int, rows: int, columns: int) -> np.ndarray:
    """Boxes [R, 4] float32 of the cells of a grid, row by row, as fractions of the image."""
    if rows * columns != regions:
        fact = f"grid = [{rows}, {columns}] has not as many cells as the images of {path} regions, {regions}"
        raise UsageError(f"{fact}; correct --set grid=[ROWS,COLUMNS], or leave it out where the regions are no grid")
    top, left = np.divmod(np.arange(regions), columns)
    corners = np.stack([left, top, left + 1, top + 1], axis=1)
    return (corners / np.array([columns, rows, columns, rows])).astype(np.float32)
