"""Importer of UNITER's image databases, and of folders with one .npz file per image.

| source                                     | arrays of an image                                                      |
|--------------------------------------------|-------------------------------------------------------------------------|
| LMDB environment, or a folder of several   | features [r, D], norm_bb [r, 6], conf [r], soft_labels [r, classes]     |
| .npz files as UNITER makes databases from  | the same                                                                |
| .npz files of bottom-up-attention.pytorch  | x [r, D], bbox [r, 4] in pixels, num_bbox, image_h, image_w             |

Values of a database are what `packed_arrays` reads. The columns of norm_bb are x0, y0, x1, y1, width and height as
fractions. `labels` is the largest column of soft_labels as it is numbered there: the tool that made the published
features counts the background as column 0, other tools put it last.

Regions are stored by falling confidence. Of those surer than `min_score` at least `min_regions` and at most
`max_regions` are taken, from the first on; where there is no confidence, all up to `max_regions`.

Source: UNITER (Chen et al., 2020), image features of the published code.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.importers.array_file import npz_names, read_range
from itrpipe.features.importers.base import (
    BOX_SLACK,
    Layout,
    fractions_of,
    require_floats,
    require_integers,
    require_same_aspect,
    stack_padded,
)
from itrpipe.features.importers.uniter.declaration import Uniter
from itrpipe.features.importers.uniter.lmdb_file import Value, read_values
from itrpipe.features.importers.uniter.packed_arrays import Arrays, decode, from_npz
from itrpipe.storage.disk import read_json

DATABASE = "data.mdb"

_DATABASES = (DATABASE, f"*/{DATABASE}", f"*/*/{DATABASE}")
_ARCHIVES = ("*.npz", "*/*.npz")
_KEYS = ("features", "norm_bb", "conf", "soft_labels", "x", "bbox", "num_bbox", "image_h", "image_w")
_BLOCK = 256


class _Container(Protocol):
    """Where the arrays of E images are; `kind` is for the summary."""

    names: list[str]
    kind: str

    def read(self, entries: np.ndarray, keys: Sequence[str]) -> Iterator[Arrays]:
        """Yields those of the named arrays that an image has."""
        ...

    def counts(self, settings: Uniter) -> np.ndarray | None:
        """Returns the numbers of regions [E] where a file lists them for these settings."""
        ...


class UniterSource:
    """Databases or .npz files as a `Source`."""

    def __init__(self, path: Path, container: _Container, settings: Uniter) -> None:
        """Looks at the first image for what there is, and at all of them for R."""
        from itrpipe.features.store import FeatureSpec

        self.path = path
        self.names: Sequence[str] = container.names
        self.captions: Sequence[Sequence[str]] | None = None
        self._container = container
        self._settings = settings
        first = next(container.read(np.array([0]), _KEYS))
        stored = _stored_regions(path, self.names[0], first)
        counts = container.counts(settings)
        counts = self._count(first) if counts is None else counts
        self.spec: FeatureSpec = FeatureSpec(
            max(1, int(counts.max())),
            stored["regions"].shape[1],
            boxes="boxes" in stored,
            scores="scores" in stored,
            labels="labels" in stored,
        )
        chosen = f"surer than {settings.min_score}" if "scores" in stored else "without confidences"
        self.summary = (
            f"{container.kind}: {len(self.names):,} images; {counts.min()} to {counts.max()} regions {chosen}, "
            f"of width {self.spec.region_dim}"
        )

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        arrays = self._container.read(entries, _KEYS)
        rows = [
            self._entry(self.names[int(entry)], one, size)
            for entry, one, size in zip(entries, arrays, sizes, strict=True)
        ]
        return stack_padded(rows, self.spec)

    def _entry(self, name: str, arrays: Arrays, size: np.ndarray) -> dict[str, np.ndarray]:
        stored = _stored_regions(self.path, name, arrays)
        wanted = set(self.spec.shapes()) - {"count"}
        if set(stored) != wanted or stored["regions"].shape[1] != self.spec.region_dim:
            raise DataError(
                f"{self.path}: image '{name}' has {', '.join(stored)} of width {stored['regions'].shape[1]}, the first "
                f"one {', '.join(sorted(wanted))} of width {self.spec.region_dim}; use features of one tool."
            )
        regions = _kept(self.path, name, arrays, self._settings)
        if regions > self.spec.regions:
            raise DataError(
                f"{self.path}: image '{name}' has {regions} regions and at most {self.spec.regions} were counted; "
                "remove the nbb_*.json file beside the database."
            )
        kept = {key: values[:regions] for key, values in stored.items()}
        require_floats(self.path, [name], "features", kept["regions"][None], "f2")
        if "boxes" in kept:
            kept["boxes"] = fractions_of(self.path, [name], kept["boxes"][None])[0]
        if "image_h" in arrays:
            shape = [[_scalar(self.path, name, arrays, key) for key in ("image_h", "image_w")]]
            require_same_aspect(self.path, [name], np.array(shape), size[None])
        if "labels" in kept:
            require_integers(self.path, [name], "soft_labels", kept["labels"][None], 0, np.iinfo(np.int16).max)
        if "scores" in kept:
            require_floats(self.path, [name], "conf", kept["scores"][None], "f4")
        return kept

    def _count(self, first: Arrays) -> np.ndarray:
        """Returns the number of regions [E] that the settings take of each image."""
        keys = [next(key for key in ("conf", "num_bbox", "features", "x") if key in first)]
        counts = np.zeros(len(self.names), dtype=np.int64)
        for start in range(0, len(counts), _BLOCK):
            block = np.arange(start, min(start + _BLOCK, len(counts)))
            for entry, arrays in zip(block, self._container.read(block, keys), strict=True):
                counts[entry] = _kept(self.path, self.names[int(entry)], arrays, self._settings)
        return counts


class _Databases:
    """LMDB environments, one after the other."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.names: list[str] = []
        self._folders = folders
        self._database, self._offset, self._length = array("i"), array("q"), array("q")
        entry_of, repeated = {}, 0
        for number, folder in enumerate(folders):
            for value in read_values(folder / DATABASE):
                if value.key.startswith(b"__"):  # UNITER's own, such as the list of keys
                    continue
                name = _decoded(folder, value.key)
                earlier = entry_of.setdefault(name, len(self.names))
                if earlier == len(self.names):
                    self._add(name, number, value)
                elif self._content(earlier) == _bytes_at(folder, value.offset, value.length):
                    repeated += 1
                else:
                    other = folders[self._database[earlier]]
                    raise DataError(f"{folder} has other features of '{name}' than {other}; name one of these folders.")
        self.kind = f"{len(folders)} LMDB environment{'s' * (len(folders) > 1)}"
        if repeated:
            self.kind += f" ({repeated:,} images come twice with the same content)"

    def read(self, entries: np.ndarray, keys: Sequence[str]) -> Iterator[Arrays]:
        """See `_Container`."""
        for entry in map(int, entries):
            folder = self._folders[self._database[entry]]
            yield decode(f"{folder / DATABASE}: image '{self.names[entry]}'", self._content(entry), keys)

    def _add(self, name: str, number: int, value: Value) -> None:
        self.names.append(name)
        self._database.append(number)
        self._offset.append(value.offset)
        self._length.append(value.length)

    def _content(self, entry: int) -> bytes:
        return _bytes_at(self._folders[self._database[entry]], self._offset[entry], self._length[entry])

    def counts(self, settings: Uniter) -> np.ndarray | None:
        """See `_Container`; UNITER keeps such a file beside a database."""
        file = f"nbb_th{settings.min_score}_max{settings.max_regions}_min{settings.min_regions}.json"
        found = [
            next((path for path in (folder / file, folder.parent / file) if path.is_file()), None)
            for folder in self._folders
        ]
        listed = [read_json(path) for path in found if path]
        if len(listed) < len(found):
            return None
        counts = []
        for name, number in zip(self.names, self._database, strict=True):
            count = listed[number].get(name) if isinstance(listed[number], dict) else None
            if not isinstance(count, int) or not 0 <= count <= settings.max_regions:
                raise DataError(f"{found[number]} lists {count} regions of '{name}'; remove it to count them again.")
            counts.append(count)
        return np.array(counts)


class _NpzFiles:
    """.npz files, one per image."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.names = [file.relative_to(path).as_posix() for file in files]
        self.kind = f"{len(files):,} .npz files"
        self._files = files

    def read(self, entries: np.ndarray, keys: Sequence[str]) -> Iterator[Arrays]:
        """See `_Container`."""
        for entry in entries:
            yield from_npz(str(self._files[entry]), self._files[entry], keys)

    def counts(self, settings: Uniter) -> np.ndarray | None:
        """See `_Container`; there is no such file."""
        return None


def layout(path: Path) -> Layout | None:
    """LMDB environments, or .npz files, of which the first must hold the features of an image."""
    found = files(path) if path.is_dir() else []
    if not found or found[0].name == DATABASE:
        return Layout(f"{len(found)} {DATABASE}") if found else None
    try:
        named = {"features", "x"} & set(npz_names(found[0]))
        lacks = "" if named else f"features or x in {found[0].name}"
    except DataError:
        lacks = f"a whole {found[0].name}"
    return Layout(f"{len(found):,} .npz file{'s' * (len(found) > 1)}", lacks)


def files(path: Path) -> list[Path]:
    """The databases, or else the .npz files, sorted."""
    databases = sorted(file for pattern in _DATABASES for file in path.glob(pattern))
    return databases or sorted(file for pattern in _ARCHIVES for file in path.glob(pattern))


def open_source(path: Path, settings: Uniter) -> UniterSource:
    """Opens databases or .npz files and counts the regions, which reads all of them unless UNITER's count is there.

    Raises:
        MissingInputError: there is neither, or a package is not installed.
        DataError: a file is damaged, holds no features, or two databases differ in an image they share.
    """
    found = files(path) if path.is_dir() else []
    if not found:
        raise MissingInputError(f"{path} holds no {DATABASE} and no .npz files; name a folder that does.")
    databases = [file.parent for file in found if file.name == DATABASE]
    container: _Container = _Databases(databases) if databases else _NpzFiles(path, found)
    if not container.names:
        raise DataError(f"{path} holds no image; name another folder.")
    return UniterSource(path, container, settings)


def _stored_regions(path: Path, name: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns all regions of an image under the names of the store, r rows each; boxes as fractions."""
    if "features" in arrays:
        stored = {"regions": _checked(path, name, arrays, "features", "f", 2)}
        if "norm_bb" in arrays:
            stored["boxes"] = _norm_boxes(path, name, arrays)
    elif "x" in arrays:
        stored = {"regions": _checked(path, name, arrays, "x", "f", 2)}
        if "bbox" in arrays:
            height, width = (_scalar(path, name, arrays, key) for key in ("image_h", "image_w"))
            boxes = _checked(path, name, arrays, "bbox", "fiu", 2, width=4)
            stored["boxes"] = boxes.astype(np.float64) / [width, height, width, height]
    else:
        raise DataError(f"{path}: '{name}' holds neither 'features' nor 'x'; name a database of image features.")
    if "conf" in arrays:
        stored["scores"] = _checked(path, name, arrays, "conf", "f", 1)
    if "soft_labels" in arrays:
        stored["labels"] = _checked(path, name, arrays, "soft_labels", "f", 2).argmax(axis=1)
    lengths = {key: len(values) for key, values in stored.items()}
    if "num_bbox" in arrays:
        lengths["num_bbox"] = _scalar(path, name, arrays, "num_bbox")
    if len(set(lengths.values())) > 1 or not stored["regions"].size:
        raise DataError(f"{path}: image '{name}' has arrays that differ in length or are empty: {lengths}.")
    return stored


def _norm_boxes(path: Path, name: str, arrays: Arrays) -> np.ndarray:
    """Returns x0, y0, x1, y1 [r, 4]; width and height, which are stored as well, must agree with them."""
    boxes = _checked(path, name, arrays, "norm_bb", "f", 2, width=6).astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite values are refused with the boxes
        difference = np.abs(boxes[:, 2:4] - boxes[:, :2] - boxes[:, 4:])
    if (difference > BOX_SLACK).any():
        raise DataError(
            f"{path}: norm_bb of image '{name}' is not x0, y0, x1, y1, width, height; bring its columns in this order."
        )
    return boxes[:, :4]


def _kept(path: Path, name: str, arrays: Arrays, settings: Uniter) -> int:
    """Returns how many regions the settings take; at least one of conf, num_bbox and features must be there."""
    if "conf" in arrays:
        confidences = _checked(path, name, arrays, "conf", "f", 1)
        sure = int((confidences > settings.min_score).sum())
        return min(max(sure, settings.min_regions), settings.max_regions, len(confidences))
    if "num_bbox" in arrays:
        return min(_scalar(path, name, arrays, "num_bbox"), settings.max_regions)
    if "features" in arrays or "x" in arrays:
        return min(len(arrays["features" if "features" in arrays else "x"]), settings.max_regions)
    raise DataError(f"{path}: image '{name}' lacks arrays that the first one has; use features of one tool.")


def _checked(
    path: Path, name: str, arrays: Arrays, key: str, kinds: str, dims: int, width: int | None = None
) -> np.ndarray:
    values = arrays[key]
    widths = (values.shape[-1:], (width,)) if width else ()
    if values.dtype.kind not in kinds or values.ndim != dims or 0 in values.shape[1:] or len(set(widths)) > 1:
        columns = "" if dims == 1 else f", {width or 'width'}"
        raise DataError(
            f"{path}: {key} of image '{name}' has type {values.dtype} and shape {values.shape}; numbers [regions"
            f"{columns}] are needed."
        )
    return values


def _scalar(path: Path, name: str, arrays: Arrays, key: str) -> int:
    values = arrays.get(key)
    number = int(values.reshape(-1)[0]) if values is not None and values.size == 1 and values.dtype.kind in "iu" else 0
    if number < 1:
        raise DataError(f"{path}: image '{name}' has no {key} that is a number of at least 1; extract it again.")
    return number


def _decoded(folder: Path, key: bytes) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{folder / DATABASE} has a key that is not UTF-8 ({error.reason}); fetch it again.") from error


def _bytes_at(folder: Path, offset: int, length: int) -> bytes:
    content = bytearray(length)
    read_range(folder / DATABASE, str(folder / DATABASE), memoryview(content), offset)
    return bytes(content)
