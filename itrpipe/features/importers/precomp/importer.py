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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.datasets.source_files import lines_of
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.importers.array_file import StoredRows, open_npy
from itrpipe.features.importers.base import Layout, require_floats
from itrpipe.features.importers.matching import caption_key, names_of
from itrpipe.features.importers.precomp.declaration import Precomp

SPLIT_FILES = ("train", "dev", "test", "testall")

# How many images of a repeated file are looked at to see that the repetitions are equal.
_REPEAT_SAMPLES = 8


@dataclass(frozen=True)
class PrecompSplit:
    """One split of a precomp folder.

    Attributes:
        name: the split's name in the files, one of `SPLIT_FILES`.
        images: n, the number of different images.
        repeats: how often the file repeats every image.
        ids: n names as given in `{name}_ids.txt`, or None where there is no such file.
        captions: for each image its k captions, or None where there is no `{name}_caps.txt`.
        regions: rows [n * repeats, R, D].
        global_: rows [n * repeats, G] or [n, G], or None.
    """

    name: str
    images: int
    repeats: int
    ids: list[str] | None
    captions: list[tuple[str, ...]] | None
    regions: StoredRows
    global_: StoredRows | None

    def label(self, row: int) -> str:
        """The name of an image; one that nothing else has where there are no ids."""
        return self.ids[row].strip() if self.ids else f"{self.name}_ims.npy, image {row}"


class PrecompSource:
    """A precomp folder as a `Source`; its entries are the splits' images, one after the other.

    Attributes:
        splits: the splits the folder has, in the order of `SPLIT_FILES`.
        places: [E, 2] int64 position in `splits`, and image of that split (not yet multiplied by its repeats).
    """

    def __init__(self, path: Path, splits: tuple[PrecompSplit, ...], boxes: np.ndarray | None = None) -> None:
        """Joins opened splits; images of a split that an earlier one has as well get no entry of their own.

        Args:
            path: the folder.
            splits: opened.
            boxes: [R, 4] of the regions of every image, as fractions of it; None where they are not known.
        """
        from itrpipe.features.store import FeatureSpec

        self.path = path
        self.splits = splits
        self.places = _distinct_images(splits)
        first = splits[0]
        _, regions, width = first.regions.shape
        global_dim = first.global_.shape[1] if first.global_ else 0
        self.spec: FeatureSpec = FeatureSpec(regions, width, global_dim, boxes=boxes is not None)
        self._boxes = boxes
        self.names: Sequence[str] = [splits[position].label(row) for position, row in self.places.tolist()]
        self.captions: Sequence[Sequence[str]] | None = None
        if any(split.captions for split in splits):
            captions = [split.captions or [()] * split.images for split in splits]
            self.captions = [captions[position][row] for position, row in self.places.tolist()]
        sizes = ", ".join(f"{split.name} {split.images:,}" for split in splits)
        self.summary = f"precomp folder: {sizes} images; {regions} regions of width {width}"

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        arrays = {
            "regions": self._read("regions", entries),
            "count": np.full(len(entries), self.spec.regions, dtype=np.int16),
        }
        if self._boxes is not None:
            arrays["boxes"] = np.broadcast_to(self._boxes, (len(entries), *self._boxes.shape))
        if self.spec.global_dim:
            arrays["global"] = self._read("global_", entries)
        return arrays

    def _read(self, attribute: str, entries: np.ndarray) -> np.ndarray:
        """Reads one array of a block as float16, split by split."""
        shape = getattr(self.splits[0], attribute).shape[1:]
        block = np.empty((len(entries), *shape), dtype=np.float16)
        places = self.places[entries]
        for position in np.unique(places[:, 0]):
            split = self.splits[position]
            array: StoredRows = getattr(split, attribute)
            positions = np.flatnonzero(places[:, 0] == position)
            values = array.read(places[positions, 1] * (array.shape[0] // split.images))
            require_floats(
                array.where, [self.names[int(entry)] for entry in entries[positions]], "features", values, "f2"
            )
            block[positions] = values
        return block


def layout(path: Path) -> Layout | None:
    """Arrays named as those of precomp folders; images without ids and captions cannot be told apart."""
    if not path.is_dir() or not (found := sorted(file.name for file in path.glob("*_ims.npy"))):
        return None
    ends = ("ids.txt", "caps.txt")
    unnamed = [name for name in _splits_in(path) if not any((path / f"{name}_{end}").is_file() for end in ends)]
    lacks = " or ".join(f"{name}_{end}" for name in unnamed[:1] for end in ends)
    return Layout(", ".join(found), lacks if _splits_in(path) else f"{SPLIT_FILES[0]}_ims.npy")


def files(path: Path) -> list[Path]:
    """The arrays, captions and ids of the splits there are."""
    kinds = ("ims.npy", "caps.txt", "ids.txt", "global.npy")
    candidates = [path / f"{name}_{kind}" for name in _splits_in(path) for kind in kinds]
    return [file for file in candidates if file.is_file()]


def open_source(path: Path, settings: Precomp) -> PrecompSource:
    """Opens a precomp folder; captions and ids are read, of features only the headers.

    Raises:
        UsageError: the settings name a grid with more or fewer cells than there are regions.
        MissingInputError: there is no such folder, or no `{split}_ims.npy` in it.
        DataError: a file has a wrong type or shape, the numbers of rows, ids and captions disagree, an id comes twice,
            or the splits differ in R, D or G.
    """
    if not path.is_dir():
        raise MissingInputError(f"{path} is not a folder; name the one that holds train_ims.npy.")
    splits = tuple(_open_split(path, name) for name in _splits_in(path))
    if not splits:
        others = ", ".join(sorted(file.name for file in path.glob("*_ims.npy"))[:3])
        found = f" but {others}; rename them" if others else ""
        raise MissingInputError(f"{path} holds none of {', '.join(f'{name}_ims.npy' for name in SPLIT_FILES)}{found}.")
    _require_equal_widths(path, splits)
    boxes = _cells(path, splits[0].regions.shape[1], *settings.grid) if settings.grid else None
    return PrecompSource(path, splits, boxes)


def _cells(path: Path, regions: int, rows: int, columns: int) -> np.ndarray:
    """Boxes [R, 4] float32 of the cells of a grid, row by row, as fractions of the image."""
    if rows * columns != regions:
        raise UsageError(
            f"grid = [{rows}, {columns}] has {rows * columns} cells and the images of {path} {regions} regions; "
            "correct --set grid=[ROWS,COLUMNS], or leave it out where the regions are no grid"
        )
    top, left = np.divmod(np.arange(regions), columns)
    corners = np.stack([left, top, left + 1, top + 1], axis=1)
    return (corners / np.array([columns, rows, columns, rows])).astype(np.float32)


def _splits_in(path: Path) -> list[str]:
    return [name for name in SPLIT_FILES if (path / f"{name}_ims.npy").is_file()]


def _open_split(path: Path, name: str) -> PrecompSplit:
    regions = _open_array(path / f"{name}_ims.npy", dims=3)
    texts = {kind: path / f"{name}_{kind}.txt" for kind in ("caps", "ids")}
    captions, ids = (lines_of(file) if file.is_file() else None for file in texts.values())
    if captions is None and ids is None:
        raise DataError(f"{path} has neither {name}_ids.txt nor {name}_caps.txt, so its images cannot be told apart.")
    images, repeats = _count_images(path, name, regions, captions, ids)
    if repeats > 1:
        _require_equal_repeats(regions, images, repeats)
    global_path = path / f"{name}_global.npy"
    global_ = _open_array(global_path, dims=2) if global_path.is_file() else None
    if global_ is not None and global_.shape[0] not in (images, images * repeats):
        rows = global_.shape[0]
        raise DataError(f"{global_path} has {rows} rows and {name}_ims.npy {images} images; they must agree.")
    groups = None if captions is None else _group(captions, images)
    return PrecompSplit(name, images, repeats, _thin_ids(path, name, ids, images), groups, regions, global_)


def _open_array(path: Path, dims: int) -> StoredRows:
    array = open_npy(path)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise DataError(f"{path} has type {array.dtype}; features must be float16, float32 or float64.")
    if len(array.shape) != dims or 0 in array.shape:
        expected = "[images, regions, width]" if dims == 3 else "[images, width]"
        raise DataError(f"{path} has shape {array.shape}; {expected} is needed, none of them 0.")
    return array


def _count_images(
    path: Path, name: str, regions: StoredRows, captions: list[str] | None, ids: list[str] | None
) -> tuple[int, int]:
    """Returns the number of different images and how often each is repeated in the feature file."""
    rows = regions.shape[0]
    if captions is None:
        return rows, 1
    repeats = 1
    if len(captions) == rows:
        told = ids if ids is not None and len(ids) == rows else None
        repeats = _equal_at_first(rows, lambda row: told[row] if told else regions.read(np.array([row])))
    if len(captions) % rows or rows % repeats:
        raise DataError(
            f"{path}: {name}_ims.npy has {rows} rows and {name}_caps.txt {len(captions)} captions, not as many for "
            f"each; name the images in {name}_ids.txt, one a line, and take {name}_caps.txt away."
        )
    return rows // repeats, repeats


def _equal_at_first(rows: int, read: Callable[[int], Any]) -> int:
    """How many rows in the beginning are the same."""
    first = read(0)
    return next((row for row in range(1, rows) if not np.array_equal(read(row), first)), rows)


def _thin_ids(path: Path, name: str, ids: list[str] | None, images: int) -> list[str] | None:
    """Returns one id per image, each another; some published files list every id once for each caption."""
    if ids is None:
        return None
    repeats = len(ids) // images
    if repeats > 1 and len(ids) == images * repeats:
        for line, image in enumerate(ids):
            if image != ids[line - line % repeats]:
                raise DataError(
                    f"{path}: {name}_ids.txt, line {line + 1}: '{image}' breaks the {repeats} repetitions of an id."
                )
        ids = ids[::repeats]
    if len(ids) != images:
        raise DataError(f"{path}: {name}_ids.txt has {len(ids)} lines and {name}_ims.npy {images} images.")
    seen: set[str] = set()
    for image in ids:
        if image.strip() in seen:
            raise DataError(f"{path}: {name}_ids.txt names '{image.strip()}' twice.")
        seen.add(image.strip())
    return ids


def _require_equal_repeats(regions: StoredRows, images: int, repeats: int) -> None:
    for image in np.unique(np.linspace(0, images - 1, _REPEAT_SAMPLES).astype(np.int64)).tolist():
        first = image * repeats
        group = regions.read(np.arange(first, first + repeats))
        if not np.array_equal(group, np.broadcast_to(group[:1], group.shape), equal_nan=True):
            raise DataError(
                f"{regions.where} has as many rows as captions, but rows {first} to {first + repeats - 1} are not "
                f"{repeats} times the same image; fetch it again."
            )


def _require_equal_widths(path: Path, splits: Sequence[PrecompSplit]) -> None:
    first = splits[0]
    for split in splits[1:]:
        if split.regions.shape[1:] != first.regions.shape[1:]:
            raise DataError(
                f"{path}: {first.name}_ims.npy has rows of {first.regions.shape[1:]} and {split.name}_ims.npy of "
                f"{split.regions.shape[1:]}; one folder must come from one extractor."
            )
        widths = [None if one.global_ is None else one.global_.shape[1] for one in (first, split)]
        if widths[0] != widths[1]:
            raise DataError(
                f"{path}: width of {first.name}_global.npy is {widths[0]} and of {split.name}_global.npy {widths[1]}; "
                "the file must be in all splits, equally wide, or in none."
            )


def _group(captions: Sequence[str], images: int) -> list[tuple[str, ...]]:
    each = len(captions) // images
    return [tuple(captions[i : i + each]) for i in range(0, len(captions), each)]


def _distinct_images(splits: Sequence[PrecompSplit]) -> np.ndarray:
    """Returns split and image [E, 2] of every entry.

    An image that an earlier split has as well is left out, since `test` is a part of `testall` in COCO. It is the same
    image if it has the same id, or in splits without ids the same captions, and if its captions do not contradict.
    """
    places, seen = [], {}
    for position, split in enumerate(splits):
        for row in range(split.images):
            key = caption_key(split.captions[row]) if split.captions else None
            identity = names_of(split.ids[row])[-1] if split.ids else key
            earlier, earlier_key = seen.setdefault(identity, (position, key))
            if earlier == position or (key and earlier_key and key != earlier_key):
                places.append((position, row))
    return np.array(places, dtype=np.int64).reshape(-1, 2)
