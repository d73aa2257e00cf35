"""Importer of arrays that anyone has written: one .npy, .npz or HDF5 file.

* .npy: one array without a name, row by row as NumPy saves it; with two dimensions it is `global`, else `regions`.
* .npz (stored or compressed) and HDF5 (.h5, .hdf5; any layout): arrays by their names. Those named as the datasets of
  `features.h5` are taken, and `map` says what the others are called; an empty name leaves a dataset out.

Rows beyond `count` become zero; without `count`, all regions of every image are real. Image ids are an array
`image_id`, `ids` or `names`, or lines of a text file, whose path is relative to the folder of the arrays.
"""

from pathlib import Path

import numpy as np

from itrpipe.datasets.source_files import lines_of
from itrpipe.errors import DataError, UsageError
from itrpipe.features.importers.arrays.declaration import Arrays
from itrpipe.features.importers.base import Layout, Source
from itrpipe.features.store import TYPES, FeatureSpec
from itrpipe.printable import printable
from itrpipe.storage.array_formats import labels, open_arrays
from itrpipe.storage.arrays import take

_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")
_ID_NAMES = ("image_id", "ids", "names")


def layout(path: Path) -> Layout | None:
    """A file with a suffix of arrays; its arrays may be called anything."""
    return Layout([path]) if path.suffix.lower() in _SUFFIXES and path.is_file() else None


class ArraysSource(Source):
    """Arrays of one file."""

    def __init__(self, path: Path, settings: Arrays) -> None:
        """Opens the file and finds the datasets in it.

        Raises:
            UsageError: the settings name a dataset or array that does not exist, or ids twice.
            MissingInputError: the file with the ids is not there.
            DataError: the file is damaged, has no ids or no features, or shapes do not fit together.
        """
        self.path = path
        self._in_pixels = settings.boxes == "pixels"
        arrays = open_arrays(path)
        called = settings.map
        places = {name or ("global" if len(arrays[name].shape) == 2 else "regions"): name for name in arrays}
        listed = printable(", ".join(places))
        for dataset, name in called.items():
            if dataset not in (*TYPES, "image_id"):
                raise UsageError(f"map names '{dataset}'; datasets are {', '.join(TYPES)} and image_id.")
            if name and name not in places:
                raise UsageError(f"{path} has no array '{name}', which map names as {dataset}; it has {listed}.")
        if settings.ids and called.get("image_id"):
            raise UsageError(f"ids names {settings.ids} and map the array '{called['image_id']}'; give one of them.")
        wanted = {dataset: called.get(dataset, dataset) for dataset in TYPES}
        self._arrays = found = {dataset: arrays[places[name]] for dataset, name in wanted.items() if name in places}
        self.spec = FeatureSpec.of({name: array.shape[1:] for name, array in found.items()})
        odd = (self.spec.keys() ^ found.keys()) - {"count"}
        if odd or not found:
            alone = ", ".join(sorted(odd)) or "no regions or global"
            raise DataError(f"{path} holds {listed}, which are no whole features ({alone}); name the rest with map.")
        known = [name for name in (called.get("image_id"), *_ID_NAMES) if name in places]
        if settings.ids:
            names = lines_of(path.parent / settings.ids)
        elif known:
            names = labels(arrays[places[known[0]]])
        else:
            raise DataError(
                f"{path} has no image ids (none of {listed} is called {', '.join(_ID_NAMES)}); name a text file with "
                "ids, or an array with map.image_id."
            )
        self.names = [str(each).strip() for each in names]
        for name, array in found.items():
            needed = (len(names), *self.spec[name])
            if array.shape != needed:
                raise DataError(f"{path}: {name} have shape {array.shape} and not {needed}, as other arrays say.")
        shown = ", ".join(f"{name} {list(array.shape)}" for name, array in found.items())
        self.summary = f"arrays of {path.name}: {len(names):,} images; {shown}"

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        rows = {name: take(array, entries) for name, array in self._arrays.items()}
        if self.spec.regions:
            rows.setdefault("count", np.full(len(entries), self.spec.regions))
            beyond = np.arange(self.spec.regions) >= rows["count"][:, None]  # [n, R]
            for name in rows.keys() - {"count", "global"}:
                rows[name][beyond] = 0
        if self._in_pixels:
            rows["size"] = sizes
        return rows


open_source = ArraysSource
