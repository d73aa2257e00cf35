"""Importer of arrays that anyone has written: one .npy, .npz or HDF5 file.

* .npy: one array without a name; with two dimensions it is `global`, else `regions`.
* .npz (stored or compressed) and HDF5 (.h5, .hdf5; any layout): arrays by their names. Those named as the datasets of
  `features.h5` are taken, and `map` says what the others are called; an empty name leaves a dataset out.

Rows beyond `count` become zero; without `count`, all regions of every image are real. Image ids are an array
`image_id`, `ids` or `names`, or lines of a text file, whose path is relative to the folder of the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from itrpipe.datasets.source_files import lines_of
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.importers.arrays.declaration import Arrays
from itrpipe.features.importers.base import Layout
from itrpipe.features.store import FeatureSpec
from itrpipe.storage.arrays import FileRows, labels, open_arrays, take

_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")
_OF_REGIONS = ("regions", "count", "boxes", "labels", "scores", "attributes", "attribute_scores")
_DATASETS = (*_OF_REGIONS, "global", "pixels")
_IMAGE_ID = "image_id"
_ID_NAMES = (_IMAGE_ID, "ids", "names")


class ArraysSource:
    """Arrays of one file as a `Source`.

    Args:
        path: the file.
        arrays: dataset of `features.h5` -> its rows [E, ...].
        names: [E] ids of the images.
        settings: say what boxes are measured in.

    Raises:
        DataError: shapes do not fit together.
    """

    def __init__(self, path: Path, arrays: Mapping[str, FileRows], names: Sequence[str], settings: Arrays) -> None:
        self.spec = FeatureSpec.of({name: array.shape[1:] for name, array in arrays.items()})
        shapes = self.spec.shapes()
        if odd := [name for name in arrays if name not in shapes]:
            raise DataError(f"{path}: {odd[0]} {list(arrays[odd[0]].shape)} belong to no regions; map regions, too.")
        for name, shape in shapes.items():
            found, needed = arrays[name].shape if name in arrays else None, (len(names), *shape)
            if (found != needed or 0 in needed) and (found, name) != (None, "count"):
                raise DataError(
                    f"{path}: {name} have shape {found} and {needed} is needed, for as many ids and regions."
                )
        self.path, self.names = path, names
        self.captions: Sequence[Sequence[str]] | None = None
        self._arrays, self._in_pixels = arrays, settings.boxes == "pixels"
        listed = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        self.summary = f"arrays of {path.name}: {len(names):,} images; {listed}"

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        rows = {name: take(array, entries) for name, array in self._arrays.items()}
        if self.spec.regions:
            rows.setdefault("count", np.full(len(entries), self.spec.regions))
            beyond = np.arange(self.spec.regions) >= rows["count"][:, None]  # [n, R]
            for name in {*rows} & {*_OF_REGIONS} - {"count"}:
                rows[name][beyond] = 0
        return rows | ({"size": sizes} if self._in_pixels else {})


def layout(path: Path) -> Layout | None:
    """A file with a suffix of arrays; its arrays may be called anything."""
    return Layout([path]) if path.suffix.lower() in _SUFFIXES and path.is_file() else None


def open_source(path: Path, settings: Arrays) -> ArraysSource:
    """Opens the file and finds the datasets in it.

    Raises:
        UsageError: the settings name a dataset or array that does not exist, or ids twice.
        MissingInputError: the file, or that with the ids, is not there.
        DataError: the file is damaged, has no ids or no features, or shapes do not fit together.
    """
    if layout(path) is None:
        raise MissingInputError(f"{path} is not a file with one of the suffixes {', '.join(_SUFFIXES)}; name one.")
    arrays = open_arrays(path)
    places = {name: name for name in arrays if name}
    if "" in arrays:
        places["global" if len(arrays[""].shape) == 2 else "regions"] = ""
    listed = ", ".join(places) or "none"
    for dataset, name in settings.map.items():
        if dataset not in (*_DATASETS, _IMAGE_ID):
            raise UsageError(f"map names '{dataset}'; datasets are {', '.join([*_DATASETS, _IMAGE_ID])}.")
        if name and name not in places:
            raise UsageError(f"{path} has no array '{name}', which map names as {dataset}; its arrays are {listed}.")
    wanted = {dataset: settings.map.get(dataset, dataset) for dataset in _DATASETS}
    found = {dataset: arrays[places[name]] for dataset, name in wanted.items() if name in places}
    if not found:
        raise DataError(f"{path} has no regions, global or pixels; its arrays are {listed}: name them with map.")
    mapped = settings.map.get(_IMAGE_ID)
    if settings.ids and mapped:
        raise UsageError(f"ids names {settings.ids} and map the array '{mapped}' as image_id; give one of them.")
    if settings.ids:
        return ArraysSource(path, found, [line.strip() for line in lines_of(path.parent / settings.ids)], settings)
    named = mapped or next((name for name in _ID_NAMES if name in places), "")
    if not named:
        raise DataError(
            f"{path} has no image ids (none of its arrays {listed} is called {', '.join(_ID_NAMES)}); name a text file "
            "with ids, or an array with map.image_id."
        )
    return ArraysSource(path, found, [str(each).strip() for each in labels(arrays[places[named]])], settings)
