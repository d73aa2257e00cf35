"""Importer of `*_precomp` folders, the layout in which SCAN and its successors publish region features.

A folder holds, for each of the splits `train`, `dev`, `test` and `testall` it has:

| file                 | content                                                                                      |
|----------------------|----------------------------------------------------------------------------------------------|
| `{split}_ims.npy`    | [n, R, D] floating point; old files repeat every image for each of its k captions: [kn, R, D] |
| `{split}_caps.txt`   | one caption a line, UTF-8; k lines describe an image, five in published files                |
| `{split}_ids.txt`    | one image name or number a line (optional; k times each where the images are)                |
| `{split}_global.npy` | [n, G] floating point (optional, in all splits or in none)                                   |
"""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from itrpipe.datasets.source_files import lines_of
from itrpipe.errors import DataError, UsageError
from itrpipe.features.importers.base import FeatureSource, Layout, caption_key, names_of
from itrpipe.features.importers.precomp.declaration import Precomp
from itrpipe.features.store import FeatureSpec
from itrpipe.storage.array_formats import FileRows, open_arrays
from itrpipe.storage.arrays import take
from itrpipe.storage.disk import reading

_SPLITS = ("train", "dev", "test", "testall")
_ARRAYS = (("regions", "ims", "[images, regions, width]"), ("global", "global", "[images, width]"))
"""Dataset of the store, part of the file's name, and shape."""
# So many images of a repeated file are looked at to see that the repetitions are equal.
_REPEAT_SAMPLES = 8


class PrecompSplit(NamedTuple):
    """One split of a precomp folder.

    Attributes:
        arrays: `regions` and perhaps `global`, of n rows, or kn that repeat every image k times.
        ids: [n] names, empty where the folder has none.
        captions: [n], none each where the folder has none.
    """

    arrays: dict[str, FileRows]
    ids: list[str]
    captions: list[list[str]]


class PrecompSource(FeatureSource):
    """A precomp folder; its entries are the splits' images, one after the other."""

    def __init__(self, path: Path, settings: Precomp) -> None:
        """Open a folder; captions and ids are read, of features only the headers.

        An image that an earlier split has as well is left out, since `test` is a part of `testall` in COCO. It is the
        same image if it has the same id, or in splits without ids the same captions, and if its captions do not
        contradict.

        Raises:
            UsageError: the settings name a grid with more or fewer cells than there are regions.
            DataError: a file has a wrong type or shape, the numbers of rows, ids and captions disagree, an id comes
                twice, or the splits differ in R, D or G.
        """
        self.path = path
        splits = {name: _open_split(path, name) for name in _splits_in(path)}
        self._splits = list(splits.values())
        shapes = []
        for split in self._splits:
            shapes.append({name: array.shape[1:] for name, array in split.arrays.items()})
        if shapes.count(shapes[0]) < len(shapes):
            raise DataError(f"{path}: the splits have rows of different shapes, {shapes}; use files of one extractor")
        regions, width = shapes[0]["regions"]
        self._of_every_image = {"count": np.array(regions)}
        if settings.grid:
            rows, columns = settings.grid
            if rows * columns != regions:
                raise UsageError(
                    f"grid = [{rows}, {columns}] has not as many cells as the images of {path} regions, {regions}; "
                    "correct --set grid=[ROWS,COLUMNS], or leave it out where the regions are no grid"
                )
            top, left = np.divmod(np.arange(regions), columns)
            corners = np.stack([left, top, left + 1, top + 1], axis=1)
            boxes = corners / np.array([columns, rows, columns, rows])
            self._of_every_image["boxes"] = boxes.astype(np.float32)
        self.spec = FeatureSpec.of({**dict.fromkeys(self._of_every_image, ()), **shapes[0]})

        self.names = []
        all_captions = []
        places = []
        firsts = {}
        for number, (name, split) in enumerate(splits.items()):
            for row, (image_id, captions) in enumerate(zip(split.ids, split.captions, strict=True)):
                key = caption_key(captions)
                earlier_split, earlier_key = firsts.setdefault(names_of(image_id)[-1] or key, (number, key))
                contradicts = key and earlier_key and key != earlier_key
                if earlier_split == number or contradicts:
                    places.append((number, row))
                    self.names.append(image_id or f"{name}_ims.npy, image {row}")
                    all_captions.append(captions)
        self._places = np.array(places)
        if any(all_captions):
            self.captions = all_captions
        sizes = ", ".join(f"{name} {len(split.ids):,}" for name, split in splits.items())
        self.summary = f"precomp folder: {sizes} images; {regions} regions of width {width}"

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `FeatureSource`."""
        numbers, rows = self._places[entries].T
        parts = defaultdict[str, list[np.ndarray]](list)
        for number in np.unique(numbers):
            split = self._splits[number]
            rows_of_split = rows[numbers == number]
            for name, array in split.arrays.items():
                repeats = array.shape[0] // len(split.ids)
                parts[name].append(take(array, rows_of_split * repeats))
        arrays = {name: np.concatenate(values) for name, values in parts.items()}
        for name, value in self._of_every_image.items():
            arrays[name] = np.broadcast_to(value, (len(entries), *value.shape))
        return arrays


open_source = PrecompSource


def layout(path: Path) -> Layout | None:
    """Return arrays named as those of precomp folders; images without ids and captions cannot be told apart."""
    files = []
    lacks = ""
    for name in _splits_in(path):
        has_text = False
        for part in ("ims.npy", "caps.txt", "ids.txt", "global.npy"):
            file = path / f"{name}_{part}"
            if file.is_file():
                files.append(file)
                has_text |= file.suffix == ".txt"
        if not has_text and not lacks:
            lacks = f"{name}_ids.txt or {name}_caps.txt"
    if files:
        return Layout(files, lacks)
    others = sorted(path.glob("*_ims.npy"))
    if not others:
        return None
    return Layout(others, f"{_SPLITS[0]}_ims.npy")


def _splits_in(path: Path) -> list[str]:
    return [name for name in _SPLITS if (path / f"{name}_ims.npy").is_file()]


def _open_split(path: Path, name: str) -> PrecompSplit:
    arrays: dict[str, FileRows] = {}
    lines: dict[str, np.ndarray] = {}
    for dataset, kind, shape in _ARRAYS:
        file = path / f"{name}_{kind}.npy"
        if file.is_file():
            array = open_arrays(file)[""]
            if array.dtype.kind != "f" or len(array.shape) != shape.count(",") + 1 or 0 in array.shape:
                raise DataError(f"{file} has type {array.dtype} and shape {array.shape}; floats {shape} are needed")
            arrays[dataset] = array
    for kind in ("caps", "ids"):
        file = path / f"{name}_{kind}.txt"
        if file.is_file():
            lines[kind] = np.array(lines_of(file), dtype=object)
    images = rows = arrays["regions"].shape[0]
    if len(lines.get("caps", ())) == rows:
        images = rows // _repeats(arrays["regions"])
    whole = arrays.get("global")
    if whole is not None and whole.shape[0] not in (images, rows):
        raise DataError(f"{whole.where} has {whole.shape[0]} rows for {images} images")
    remedy = f"name the images in {name}_ids.txt, one a line, and take {name}_caps.txt away if it does not fit"
    groups = {"caps": [[]] * images, "ids": [[""]] * images}
    for kind, texts in lines.items():
        with reading(path / f"{name}_{kind}.txt", f"as many lines for each of {images} images", remedy):
            groups[kind] = texts.reshape(images, -1).tolist()
            if kind == "ids":
                has_several_names = any(len(set(names)) > 1 for names in groups["ids"])
                if has_several_names or len(set(texts)) < images:
                    raise ValueError("an image has several names, or a name several images")
    ids = [names[0].strip() for names in groups["ids"]]
    return PrecompSplit(arrays, ids, groups["caps"])


def _repeats(regions: FileRows) -> int:
    """Count how often every image is there, in a file with as many rows as captions: once, or once for each caption.

    Raises:
        DataError: the first image comes several times in a row and others do not.
    """
    rows = regions.shape[0]
    first = regions.read(0, 1)
    repeats = 1
    while repeats < rows and np.array_equal(regions.read(repeats, repeats + 1), first, equal_nan=True):
        repeats += 1
    images = rows // repeats
    step = max(1, images // _REPEAT_SAMPLES) * repeats
    for start in range(0, rows, step):
        group = regions.read(start, start + repeats)
        if not np.array_equal(group, np.broadcast_to(group[0], group.shape), equal_nan=True):
            raise DataError(
                f"{regions.where}: not every image is there {repeats} times, as the first is; fetch it again"
            )
    return repeats
