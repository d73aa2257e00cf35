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
from itrpipe.features.importers.base import FeatureSource, Layout
from itrpipe.features.store import TYPES, FeatureSpec
from itrpipe.printable import printable
from itrpipe.storage.array_formats import labels, open_arrays
from itrpipe.storage.arrays import take

_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")
_ID_NAMES = ("image_id", "ids", "names")


def layout(path: Path) -> Layout | None:
    """Return a file with a suffix of arrays, which may be called anything."""
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        return None
    return Layout([path])


class ArraysSource(FeatureSource):
    """Arrays of one file."""

    def __init__(self, path: Path, settings: Arrays) -> None:
        """Open the file and find the datasets in it.

        Raises:
            UsageError: the settings name a dataset or array that does not exist, or ids twice.
            MissingInputError: the file with the ids is not there.
            DataError: the file is damaged, has no ids or no features, or shapes do not fit together.
        """
        self.path = path
        self._in_pixels = settings.boxes == "pixels"
        arrays = {}
        for name, array in open_arrays(path).items():
            if not name:  # of an .npy file
                name = "global" if len(array.shape) == 2 else "regions"
            arrays[name] = array
        array_names = printable(", ".join(arrays))
        for dataset, name in settings.map.items():
            if dataset not in (*TYPES, "image_id"):
                raise UsageError(f"map names '{dataset}'; datasets are {', '.join(TYPES)} and image_id.")
            if name and name not in arrays:
                raise UsageError(f"{path} has no array '{name}', which map names as {dataset}; it has {array_names}.")
        ids_array = settings.map.get("image_id")
        if settings.ids and ids_array:
            raise UsageError(f"ids names {settings.ids} and map the array '{ids_array}'; give one of them.")
        self._arrays = {}
        for dataset in TYPES:
            name = settings.map.get(dataset, dataset)
            if name in arrays:
                self._arrays[dataset] = arrays[name]
        self.spec = FeatureSpec.of({name: array.shape[1:] for name, array in self._arrays.items()})
        odd = (self.spec.keys() ^ self._arrays.keys()) - {"count"}
        if odd or not self._arrays:
            alone = ", ".join(sorted(odd)) or "no regions or global"
            raise DataError(
                f"{path} holds {array_names}, which are no whole features ({alone}); name the rest with map."
            )
        ids_arrays = [name for name in (ids_array, *_ID_NAMES) if name in arrays]
        if settings.ids:
            ids = lines_of(path.parent / settings.ids)
        elif ids_arrays:
            ids = labels(arrays[ids_arrays[0]])
        else:
            raise DataError(
                f"{path} has no image ids (none of {array_names} is called {', '.join(_ID_NAMES)}); name a text file "
                "with ids, or an array with map.image_id."
            )
        self.names = [str(image_id).strip() for image_id in ids]
        shapes = []
        for name, array in self._arrays.items():
            shape = (len(ids), *self.spec[name])
            if array.shape != shape:
                raise DataError(f"{path}: {name} have shape {array.shape} and not {shape}, as other arrays say.")
            shapes.append(f"{name} {list(shape)}")
        self.summary = f"arrays of {path.name}: {len(ids):,} images; {', '.join(shapes)}"

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `FeatureSource`."""
        rows = {name: take(array, entries) for name, array in self._arrays.items()}
        regions = self.spec.regions
        if regions:
            rows.setdefault("count", np.full(len(entries), regions))
            is_beyond = np.arange(regions) >= rows["count"][:, None]  # [n, R]
            for name in rows.keys() - {"count", "global"}:
                rows[name][is_beyond] = 0
        if self._in_pixels:
            rows["size"] = sizes
        return rows


open_source = ArraysSource
