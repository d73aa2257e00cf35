"""Importer of arrays that anyone has written: one .npy, .npz or HDF5 file.

* .npy: one array without a name; with three dimensions it is `regions`, with two `global`.
* .npz (stored or compressed) and HDF5 (.h5, .hdf5; any layout): arrays by their names. Those named as the datasets of
  `features.h5` are taken, and `map` says what the others are called; an empty name leaves a dataset out.

Rows beyond `count` become zero; without `count`, all regions of every image are real. Image ids are an array
`image_id`, `ids` or `names`, or lines of a text file, whose path is relative to the folder of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from itrpipe.datasets.source_files import lines_of
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.importers.array_file import AGAIN, Rows, npz_names, open_npy, open_npz, runs
from itrpipe.features.importers.arrays.declaration import Arrays
from itrpipe.features.importers.base import Layout, fractions_of, require_floats, require_integers
from itrpipe.storage.disk import reading

if TYPE_CHECKING:
    import h5py

    from itrpipe.features.store import FeatureSpec


@dataclass(frozen=True)
class _Kind:
    """What a dataset must look like: `width` is that of the last dimension where it is fixed."""

    shape: str
    kinds: str
    width: int | None = None

    @property
    def dims(self) -> int:
        return self.shape.count(",") + 1


_DATASETS = {
    "regions": _Kind("images, regions, width", "f"),
    "count": _Kind("images", "iu"),
    "boxes": _Kind("images, regions, 4", "fiu", 4),
    "labels": _Kind("images, regions", "iu"),
    "scores": _Kind("images, regions", "f"),
    "attributes": _Kind("images, regions", "iu"),
    "attribute_scores": _Kind("images, regions", "f"),
    "global": _Kind("images, width", "f"),
    "pixels": _Kind("images, height, width, 3", "u", 3),
}
_OF_IMAGE = ("global", "pixels")
_IMAGE_ID = "image_id"
_ID_NAMES = (_IMAGE_ID, "ids", "names")

# HDF5 keeps unpacked chunks of this many bytes; a smaller cache unpacks a chunk again for every row.
_CHUNK_CACHE = 64 << 20


class _Container(Protocol):
    """A file with named arrays."""

    names: list[str]

    def open(self, name: str) -> Rows: ...


class ArraysSource:
    """Arrays of one file as a `Source`."""

    def __init__(self, path: Path, arrays: Mapping[str, Rows], names: Sequence[str], settings: Arrays) -> None:
        """Describes arrays [E, ...] that fit together."""
        self.path = path
        self.names = names
        self.captions: Sequence[Sequence[str]] | None = None
        self.spec = _spec(arrays)
        self._arrays = arrays
        self._settings = settings
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        self.summary = f"arrays of {path.name}: {len(names):,} images; {shapes}"

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        names = [self.names[int(entry)] for entry in entries]
        rows = {name: array.read(entries) for name, array in self._arrays.items()}
        if self.spec.regions:
            rows = {"count": np.full(len(entries), self.spec.regions), **rows}
            require_integers(self.path, names, "count", rows["count"], 0, self.spec.regions)
            beyond = np.arange(self.spec.regions) >= rows["count"].astype(np.int64)[:, None]  # [n, R]
            for name in rows.keys() - {"count", *_OF_IMAGE}:
                rows[name][beyond] = 0
        return {name: self._converted(name, values, names, sizes) for name, values in rows.items()}

    def _converted(self, name: str, values: np.ndarray, names: Sequence[str], sizes: np.ndarray) -> np.ndarray:
        """Returns the rows of one dataset in the type of the store, after a look at whether they fit it."""
        from itrpipe.features.store import TYPES

        if name == "boxes":
            if self._settings.boxes == "pixels":
                values = values / sizes[:, None, [1, 0, 1, 0]]
            return fractions_of(f"{self.path} with boxes={self._settings.boxes}", names, values)
        if _DATASETS[name].kinds == "f":
            require_floats(self.path, names, name, values, TYPES[name])
        elif name not in _OF_IMAGE:
            require_integers(self.path, names, name, values, 0, np.iinfo(np.int16).max)
        return values.astype(TYPES[name])


def layout(path: Path) -> Layout | None:
    """A file with a suffix of arrays; its arrays may be called anything."""
    return Layout([path]) if path.suffix.lower() in _CONTAINERS and path.is_file() else None


def files(path: Path) -> list[Path]:
    """The file itself; the text file of ids is named by the settings."""
    return [path]


def ids_file(path: Path, settings: Arrays) -> Path | None:
    """The text file that the settings name for the ids, or None."""
    return path.parent / settings.ids if settings.ids else None


def open_source(path: Path, settings: Arrays) -> ArraysSource:
    """Opens the file and finds the datasets in it.

    Raises:
        UsageError: the settings name a dataset or array that does not exist, or ids twice.
        MissingInputError: the file, or that with the ids, is not there.
        DataError: the file is damaged, has no ids or no features, or arrays differ in length or have a wrong shape or
            type.
    """
    if layout(path) is None:
        raise MissingInputError(f"{path} is not a file with one of the suffixes {', '.join(_CONTAINERS)}; name one.")
    container = _CONTAINERS[path.suffix.lower()](path)
    arrays = {name: container.open(stored) for name, stored in _choose(path, container, settings).items()}
    for name, array in arrays.items():
        _require_shape(name, array)
    _require_together(path, arrays)
    names = _read_ids(path, container, settings)
    for name, array in arrays.items():
        if array.shape[0] != len(names):
            raise DataError(
                f"{path}: '{name}' has {array.shape[0]} rows, but there are {len(names)} ids; they must agree."
            )
    return ArraysSource(path, arrays, names, settings)


class _Npy:
    """A .npy file; its array goes by the name of the dataset that it looks like."""

    def __init__(self, path: Path) -> None:
        self._array = open_npy(path)
        dims = len(self._array.shape)
        if dims not in (2, 3):
            raise DataError(
                f"{path} has shape {self._array.shape}; [images, regions, width] or [images, width] is needed."
            )
        self.names = ["global" if dims == 2 else "regions"]

    def open(self, name: str) -> Rows:
        return self._array


class _Npz:
    """An .npz file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names = npz_names(path)

    def open(self, name: str) -> Rows:
        return open_npz(self._path, name)


class _Hdf5:
    """An HDF5 file, open as long as it is used."""

    def __init__(self, path: Path) -> None:
        import h5py

        from itrpipe.features.hdf5 import open_hdf5

        self._path = path
        self.names: list[str] = []
        with reading(path, "HDF5", AGAIN):
            self._file = open_hdf5(path, locking="best-effort", rdcc_nbytes=_CHUNK_CACHE)
            self._file.visititems(
                lambda name, item: self.names.append(str(name)) if isinstance(item, h5py.Dataset) else None
            )

    def open(self, name: str) -> Rows:
        where = f"{self._path}: '{name}'"
        with reading(where, "an HDF5 dataset", AGAIN):
            return _Hdf5Rows(where, self._file[name])


class _Hdf5Rows:
    """Rows of an HDF5 dataset; texts come as bytes or str objects."""

    def __init__(self, where: str, dataset: Any) -> None:
        self.where = where
        self.shape: tuple[int, ...] = dataset.shape or ()
        self.dtype: np.dtype = dataset.dtype
        self._dataset: h5py.Dataset = dataset

    def read(self, rows: np.ndarray) -> np.ndarray:
        """See `Rows`."""
        with reading(self.where, "an HDF5 dataset", AGAIN):
            values = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
            for start, stop in runs(rows):
                first = int(rows[start])
                values[start:stop] = self._dataset[first : first + stop - start]
            return values


_CONTAINERS: dict[str, Callable[[Path], _Container]] = {".npy": _Npy, ".npz": _Npz, ".h5": _Hdf5, ".hdf5": _Hdf5}


def _choose(path: Path, container: _Container, settings: Arrays) -> dict[str, str]:
    """Returns for each dataset there is the name of its array in the file."""
    listed = ", ".join(container.names) or "none"
    unknown = sorted(settings.map.keys() - _DATASETS.keys() - {_IMAGE_ID})
    if unknown:
        raise UsageError(f"map names '{unknown[0]}'; datasets are {', '.join([*_DATASETS, _IMAGE_ID])}.")
    for dataset, name in settings.map.items():
        if name and name not in container.names:
            raise UsageError(f"{path} has no array '{name}', which map names as {dataset}; its arrays are {listed}.")
    names = {dataset: settings.map.get(dataset, dataset) for dataset in _DATASETS}
    chosen = {dataset: name for dataset, name in names.items() if name in container.names}
    if not {"regions", *_OF_IMAGE} & chosen.keys():
        raise DataError(
            f"{path} has no array named regions, global or pixels; its arrays are {listed}: name them with map."
        )
    return chosen


def _require_shape(name: str, array: Rows) -> None:
    kind = _DATASETS[name]
    if array.dtype.kind not in kind.kinds or array.dtype.itemsize > 8:
        types = "floating point" if kind.kinds == "f" else "numbers" if "f" in kind.kinds else "integers"
        raise DataError(f"{array.where} has type {array.dtype}; {name} are {types}.")
    if name == "pixels" and array.dtype.itemsize > 1:
        raise DataError(f"{array.where} has type {array.dtype}; pixels are uint8.")
    if len(array.shape) != kind.dims or 0 in array.shape or kind.width not in (None, array.shape[-1]):
        raise DataError(f"{array.where} has shape {array.shape}; {name} need [{kind.shape}], none of them 0.")


def _require_together(path: Path, arrays: Mapping[str, Rows]) -> None:
    """Refuses datasets that differ in their numbers of images or regions, or that lack one they belong to."""
    first, rows = next((name, array.shape[0]) for name, array in arrays.items())
    of_regions = [name for name in arrays if name not in _OF_IMAGE]
    if of_regions and "regions" not in arrays:
        raise DataError(f"{path} has {of_regions[0]} but no regions that they belong to; map regions, or leave it out.")
    if ("attributes" in arrays) != ("attribute_scores" in arrays):
        raise DataError(f"{path} has only one of attributes and attribute_scores; map both, or leave it out.")
    for name, array in arrays.items():
        if array.shape[0] != rows:
            raise DataError(f"{path}: '{name}' has {array.shape[0]} rows and '{first}' {rows}; they must agree.")
        if name in of_regions and name != "count" and array.shape[1] != arrays["regions"].shape[1]:
            regions = arrays["regions"].shape[1]
            raise DataError(f"{path}: '{name}' has {array.shape[1]} regions and 'regions' {regions}; they must agree.")


def _spec(arrays: Mapping[str, Rows]) -> FeatureSpec:
    from itrpipe.features.store import FeatureSpec

    regions = arrays["regions"].shape[1:] if "regions" in arrays else (0, 0)
    optional = {name: name in arrays for name in ("boxes", "labels", "scores", "attributes")}
    return FeatureSpec(
        regions[0],
        regions[1],
        global_dim=arrays["global"].shape[1] if "global" in arrays else 0,
        pixels=(arrays["pixels"].shape[1], arrays["pixels"].shape[2]) if "pixels" in arrays else (0, 0),
        **optional,
    )


def _read_ids(path: Path, container: _Container, settings: Arrays) -> list[str]:
    """Returns the ids from the text file that the settings name, else from the file itself."""
    text = ids_file(path, settings)
    mapped = settings.map.get(_IMAGE_ID)
    if text:
        if mapped:
            raise UsageError(f"ids names {settings.ids} and map the array '{mapped}' as image_id; give one of them.")
        return [line.strip() for line in lines_of(text)]
    candidates = [mapped] if mapped else [name for name in _ID_NAMES if name in container.names]
    if not candidates:
        raise DataError(
            f"{path} has no image ids (none of its arrays {', '.join(container.names)} is called "
            f"{', '.join(_ID_NAMES)}); name a text file with ids, or an array with map.image_id."
        )
    return _texts(container.open(candidates[0]))


def _texts(array: Rows) -> list[str]:
    if len(array.shape) != 1 or array.dtype.kind not in "SUOiu":
        raise DataError(f"{array.where} has type {array.dtype} and shape {array.shape}; ids are texts or numbers.")
    texts = array.read(np.arange(array.shape[0])).tolist()
    if odd := [text for text in texts if not isinstance(text, bytes | str | int)]:
        raise DataError(f"{array.where} holds a {type(odd[0]).__name__}; ids are texts or numbers.")
    try:
        return [(text.decode("utf-8") if isinstance(text, bytes) else str(text)).strip() for text in texts]
    except UnicodeDecodeError as error:
        raise DataError(f"{array.where} holds an id that is not UTF-8 ({error.reason}); convert it first.") from error
