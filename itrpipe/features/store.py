"""The one file of visual features, `features.h5`: created once at full size, filled row by row, read as memory maps.

Schema (N images, R regions, D and G widths; every dataset contiguous, uncompressed, little-endian):

| dataset     | shape, type          | content                                                        |
|-------------|----------------------|----------------------------------------------------------------|
| `/regions`  | [N, R, D] float16    | one vector per region                                          |
| `/count`    | [N] int16            | how many of the R regions are real; the others are zero        |
| `/boxes`    | [N, R, 4] float32    | x0, y0, x1, y1 as fractions of the image's width and height    |
| `/labels`   | [N, R] int16         | class of the region in the extractor's own list                |
| `/scores`   | [N, R] float32       | the detector's confidence                                      |
| `/attributes`, `/attribute_scores` | [N, R] int16, float32 | attribute of the region, and its confidence |
| `/global`   | [N, G] float16       | one vector for the whole image                                 |
| `/image_id` | [N] UTF-8 bytes      | fixed length, padded with NUL                                  |

Attributes of the root: `extractor` (its name) and `schema_version`. An extractor that has no boxes, say, writes a file
without `/boxes`. The bytes of a file depend on its content alone: no timestamps, no padding left to chance. An image
without features has no row.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.array_formats import open_arrays
from itrpipe.storage.arrays import runs
from itrpipe.storage.disk import atomic_file, reading, remove_leftovers, require_space

if TYPE_CHECKING:
    import h5py

FEATURES = "features.h5"
SCHEMA_VERSION = 1
GROUPS = frozenset({"regions", "global"})
TYPES = {
    "regions": "<f2",
    "count": "<i2",
    "boxes": "<f4",
    "labels": "<i2",
    "scores": "<f4",
    "attributes": "<i2",
    "attribute_scores": "<f4",
    "global": "<f2",
}
"""The datasets and their types; `image_id` comes on top, with a length of its own."""

_REMEDY = "remove its folder and run `itrpipe extract` again"
ALIGNMENT = 64
"""Every dataset starts on a cache line, so that maps of float32 are aligned."""
# Room for identifiers and HDF5's own headers in the estimate of a file's size, in bytes.
_BYTES_PER_ID = 64
BYTES_OF_HEADERS = 16_384


class FeatureSpec(dict[str, tuple[int, ...]]):
    """Datasets of a feature file: their names, in the order of `TYPES`, and the shape of an image's row in each.

    Args:
        regions: R, regions per image; 0 if the extractor gives none.
        region_dim: D, width of a region's vector.
        global_dim: G, width of the image's vector; 0 if the extractor gives none.
        boxes, labels, scores: whether there is the dataset of this name.
        attributes: whether there are `/attributes` and `/attribute_scores`.
    """

    def __init__(
        self,
        regions: int = 0,
        region_dim: int = 0,
        global_dim: int = 0,
        boxes: bool = False,
        labels: bool = False,
        scores: bool = False,
        attributes: bool = False,
    ) -> None:
        super().__init__()
        if regions and region_dim:
            self["regions"] = (regions, region_dim)
            self["count"] = ()
            if boxes:
                self["boxes"] = (regions, 4)
            if labels:
                self["labels"] = (regions,)
            if scores:
                self["scores"] = (regions,)
            if attributes:
                self["attributes"] = (regions,)
                self["attribute_scores"] = (regions,)
        if global_dim:
            self["global"] = (global_dim,)

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> FeatureSpec:
        """Return the spec of datasets with rows of these shapes; rows that are too short for their dataset go."""
        regions, region_dim, *_ = *shapes.get("regions", ()), 0, 0
        global_dim, *_ = *shapes.get("global", ()), 0
        return cls(
            regions,
            region_dim,
            global_dim,
            boxes="boxes" in shapes,
            labels="labels" in shapes,
            scores="scores" in shapes,
            attributes="attributes" in shapes or "attribute_scores" in shapes,
        )

    @property
    def regions(self) -> int:
        """Return R, 0 where there are no regions."""
        return self.get("regions", (0,))[0]

    def only(self, groups: Collection[str]) -> FeatureSpec:
        """Return the part of some of the groups `regions` (with all that belongs to them) and `global`."""
        dropped = GROUPS.difference(groups)
        return self.of({name: shape for name, shape in self.items() if name not in dropped})

    def bytes_needed(self, n: int) -> int:
        """Return the size in bytes of a file of `n` images, with generous room for identifiers and headers."""
        row_bytes = _BYTES_PER_ID
        for name, shape in self.items():
            row_bytes += math.prod(shape) * np.dtype(TYPES[name]).itemsize
        return n * row_bytes + BYTES_OF_HEADERS


def stored_rows(
    spec: FeatureSpec, arrays: Mapping[str, np.ndarray], *, first_class: int = -1
) -> tuple[dict[str, np.ndarray], dict[int, str]]:
    """Convert features of n images to the types of the file. Everything that is stored is checked here, and only here.

    Args:
        spec: which datasets there are; other arrays are left out.
        arrays: for every dataset of `spec` an array [n, ...] of its row shape and of any numeric type.
        first_class: the smallest number of a class; an extractor writes -1 for a region of no class.

    Returns:
        The rows of every dataset; and position -> reason of each image whose rows are not to be stored: a value is not
        finite, does not fit the type, lies outside 0..1 (boxes) or is no class, or there is no region.

    Raises:
        DataError: a shape or a type does not fit.
    """
    n = len(next(iter(arrays.values())))
    stored: dict[str, np.ndarray] = {}
    refused: dict[int, str] = {}
    classes = (first_class, 32_767)
    limits = {"boxes": (0, 1), "count": (1, spec.regions), "labels": classes, "attributes": classes}
    for name, shape in spec.items():
        values = arrays[name]
        dtype = np.dtype(TYPES[name])
        kinds = "fiu" if dtype.kind == "f" else "iu"
        if values.shape != (n, *shape) or values.dtype.kind not in kinds:
            raise DataError(
                f"{name} of {n} images have type {values.dtype} and shape {list(values.shape)}; {dtype} "
                f"{[n, *shape]} are stored"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            stored[name] = np.ascontiguousarray(values, dtype=dtype)
        values = values.reshape(n, -1)
        rows = stored[name].reshape(n, -1)
        if dtype.kind == "f":
            extremes = np.finfo(dtype)
            fits = np.isfinite(rows).all(axis=1)
        else:
            extremes = np.iinfo(dtype)
            fits = (rows == values).all(axis=1)
        low, high = float(extremes.min), float(extremes.max)
        if name in limits:
            low, high = limits[name]
            fits &= (rows.min(axis=1) >= low) & (rows.max(axis=1) <= high)
        for position in np.flatnonzero(~fits).tolist():
            row = values[position]
            reason = "has no region"
            if name != "count" or row.any():
                wrong, *_ = row[~((row >= low) & (row <= high))]
                reason = f"has {name} with the value {wrong:g}; {dtype} from {low:g} to {high:g} are stored"
            refused.setdefault(position, reason)
    return stored, refused


def write_features(
    path: Path,
    image_ids: Sequence[str],
    spec: FeatureSpec,
    extractor: str,
    pieces: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]],
) -> None:
    """Write a feature file. It appears under its name only when it is whole, and replaces one that was there before.

    HDF5 makes the structure and says where every dataset lies; rows are then written by plain file access, which makes
    an error of a full disk and not a signal.

    Args:
        path: the file to create; its folder must exist.
        image_ids: N identifiers in the order of the rows, as `prepare` has checked them.
        spec: which datasets to create.
        extractor: name of the extractor, kept as an attribute.
        pieces: row numbers int64 [n], and for some datasets an array [n, ...] of their type, see `stored_rows`.
            Together the pieces have every row of every dataset.

    Raises:
        DiskFullError: the disk cannot hold the file.
    """
    import h5py

    remove_leftovers(path.parent)  # of a killed run, which would take the room
    require_space(path, spec.bytes_needed(len(image_ids)), path.name)
    row_types = {name: np.dtype((TYPES[name], shape)) for name, shape in spec.items()}
    offsets = {}
    with atomic_file(path) as stream:
        with h5py.File(stream.name, "w", alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
            file.attrs["extractor"] = np.bytes_(extractor.encode("utf-8"))
            file.attrs["schema_version"] = np.int32(SCHEMA_VERSION)
            for name, row_type in row_types.items():
                offsets[name] = reserve(file, name, len(image_ids), row_type)
            ids = np.array([image_id.encode("utf-8") for image_id in image_ids])
            ids = ids.astype(h5py.string_dtype("utf-8", ids.dtype.itemsize))
            file.create_dataset("image_id", data=ids, dcpl=_contiguous())
        for rows, arrays in pieces:
            for name, values in arrays.items():
                for first, stop in runs(rows):
                    offset = offsets[name] + int(rows[first]) * row_types[name].itemsize
                    write_at(stream.fileno(), offset, values[first:stop])


def reserve(group: h5py.Group, name: str, rows: int, kind: np.dtype) -> int:
    """Create a dataset that lies in its file in one piece, to be filled by `write_at`.

    Args:
        group: of a file whose datasets begin at multiples of `ALIGNMENT`.
        name: of the dataset.
        rows: how many there are.
        kind: type of a row.

    Returns:
        Where its first byte lies.
    """
    dataset = group.create_dataset(name, (rows, *kind.shape), kind.base, dcpl=_contiguous())
    return dataset.id.get_offset()


def _contiguous() -> h5py.h5p.PropDCID:
    import h5py

    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)  # the bytes of a file depend on its content alone
    return plan


def write_at(file: int, offset: int, values: np.ndarray) -> None:
    """Write values from a byte of an open file on, however much of them the system takes at a time."""
    view = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    while view:
        written = os.pwrite(file, view, offset)
        offset += written
        view = view[written:]


@dataclass(frozen=True)
class FeatureFile:
    """Rows of features; those of a file are memory maps, of which nothing is loaded before it is indexed.

    Attributes:
        path: the file.
        image_id: [N] identifiers as Python strings.
        arrays: dataset -> its rows [N, ...], as the table above says; those that the extractor has.
    """

    path: Path
    image_id: np.ndarray
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def open(cls, path: Path) -> FeatureFile:
        """Open `path` for reading.

        Raises:
            MissingInputError: there is no such file.
            DataError: the file is truncated, is not HDF5, or has another schema version.
        """
        if not path.is_file():
            raise MissingInputError(f"{path} does not exist; run `itrpipe extract` to make it.")
        with reading(path, "a whole feature file", _REMEDY):
            file = open_arrays(path, "a whole feature file", _REMEDY)
            version = file.attributes("")["schema_version"]
            if version != SCHEMA_VERSION:
                raise DataError(f"{path} has schema version {version}, this itrpipe reads {SCHEMA_VERSION}; {_REMEDY}")
            maps = {name: file.stored(name).mapped("r") for name in file}
            image_id = np.char.decode(maps.pop("image_id"), "utf-8")
            return cls(path, image_id, maps)

    def __len__(self) -> int:
        return len(self.image_id)

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.image_id.tolist())}

    def absent(self, image_ids: Sequence[str]) -> list[str]:
        """Return those of `image_ids` that have no row, in their order."""
        return [name for name in image_ids if name not in self._row_of]

    def rows(self, image_ids: Sequence[str]) -> np.ndarray:
        """Return the rows [n] int64 of `image_ids`, in their order.

        Raises:
            MissingInputError: some of the images are not in the file.
        """
        absent = self.absent(image_ids)
        if absent:
            raise MissingInputError(
                f"{self.path} has no features of image '{absent[0]}' ({len(absent)} of {len(image_ids)} images "
                f"missing): they could not be extracted, see its manifest.json; correct the files, remove "
                f"{self.path.parent} and run `itrpipe extract`, or take the images out of the dataset."
            )
        return np.array([self._row_of[name] for name in image_ids], dtype=np.int64)
