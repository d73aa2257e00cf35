"""Where the datasets of `features.h5` lie in the file: the only code that speaks HDF5.

`itrpipe.features.store` documents the schema. HDF5 is used to create the structure and to learn the byte offset of
every dataset; rows are then written and read by plain file access, so that no crash can leave HDF5's own structures
half written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.hdf5 import open_hdf5
from itrpipe.storage.disk import reading_error
from itrpipe.storage.integrity import checked

SCHEMA_VERSION = 1

# The datasets and their types; `image_id` comes on top, with a length of its own.
TYPES = {
    "regions": "<f2",
    "count": "<i2",
    "boxes": "<f4",
    "labels": "<i2",
    "scores": "<f4",
    "attributes": "<i2",
    "attribute_scores": "<f4",
    "global": "<f2",
    "pixels": "|u1",
}

DAMAGE_REMEDY = "remove its folder and run `itrpipe extract` again"
# Every dataset starts on a cache line, so that maps of float32 are aligned.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Extent:
    """Where one dataset lies.

    Attributes:
        offset: first byte in the file.
        shape: shape of the dataset, N first.
        dtype: type of its elements.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one image's row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """First byte after the dataset."""
        return self.offset + self.shape[0] * self.row_bytes


def write_layout(path: Path, ids: np.ndarray, shapes: Mapping[str, tuple[int, ...]], extractor: str) -> None:
    """Creates a file with its structure, identifiers and attributes; the datasets get their place but no content.

    Args:
        path: the file, overwritten if it is there.
        ids: [N] identifiers as UTF-8 bytes of one fixed length.
        shapes: for each dataset the shape of one row.
        extractor: kept as an attribute.
    """
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    with h5py.File(path, "w", alignment_threshold=1, alignment_interval=_ALIGNMENT) as file:
        file.attrs["extractor"] = np.bytes_(extractor.encode("utf-8"))
        file.attrs["schema_version"] = np.int32(SCHEMA_VERSION)
        for name, shape in shapes.items():
            space = h5py.h5s.create_simple((len(ids), *shape))
            kind = h5py.h5t.py_create(np.dtype(TYPES[name]), logical=True)
            h5py.h5d.create(file.id, name.encode(), kind, space, creation)
        kind = h5py.h5t.py_create(h5py.string_dtype("utf-8", ids.dtype.itemsize), logical=True)
        dataset = h5py.h5d.create(file.id, b"image_id", kind, h5py.h5s.create_simple(ids.shape), creation)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, ids, mtype=kind)


def read_layout(path: Path) -> tuple[str, dict[str, Extent]]:
    """Returns the extractor's name and where each dataset lies; the file is closed again on return.

    Raises:
        MissingInputError: there is no such file.
        DataError: the file is not HDF5, is truncated, or is not of this schema and version.
    """
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist; run `itrpipe extract` to make it.")
    try:
        with open_hdf5(checked(path), locking="best-effort") as file:
            _check_version(path, file.attrs.get("schema_version"))
            extents = {str(name): _extent(path, file[str(name)]) for name in file}
            extractor = file.attrs.get("extractor")
    except (OSError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise reading_error(
            error, path, DataError(f"{path} is not a whole feature file ({reason}); {DAMAGE_REMEDY}.")
        ) from error
    if not isinstance(extractor, bytes):
        raise DataError(f"{path} does not name its extractor; {DAMAGE_REMEDY}.")
    _check_extents(path, extents)
    return extractor.decode("utf-8"), extents


def structure_digest(path: Path) -> str:
    """sha256 of everything in a feature file but the rows: HDF5's own structures and the identifiers.

    Raises:
        MissingInputError, DataError: see `read_layout`.
    """
    _, extents = read_layout(path)
    total = hashlib.sha256()
    rows = sorted((extent.offset, extent.end) for name, extent in extents.items() if name != "image_id")
    with path.open("rb") as stream:
        for offset, end in rows:
            total.update(stream.read(offset - stream.tell()))
            stream.seek(end)
        total.update(stream.read())
    return total.hexdigest()


def _check_version(path: Path, version: object) -> None:
    if not isinstance(version, np.integer) or version != SCHEMA_VERSION:
        found = "has no schema version" if version is None else f"has schema version {version}"
        raise DataError(f"{path} {found}, this itrpipe reads version {SCHEMA_VERSION}; {DAMAGE_REMEDY}.")


def _extent(path: Path, dataset: object) -> Extent:
    if not isinstance(dataset, h5py.Dataset) or dataset.chunks is not None or dataset.id.get_offset() is None:
        raise DataError(f"{path} holds something that is not a contiguous dataset; {DAMAGE_REMEDY}.")
    return Extent(int(dataset.id.get_offset()), dataset.shape, np.dtype(dataset.dtype.str))


def _check_extents(path: Path, extents: Mapping[str, Extent]) -> None:
    rows = {extent.shape[0] for extent in extents.values()}
    if "image_id" not in extents or len(rows) != 1 or len(extents) < 2:
        raise DataError(f"{path} lacks datasets, or they differ in length; {DAMAGE_REMEDY}.")
    for name, extent in extents.items():
        if name != "image_id" and extent.dtype != np.dtype(TYPES.get(name, "V1")):
            raise DataError(
                f"{path}: dataset '{name}' of type {extent.dtype} is not part of the schema; {DAMAGE_REMEDY}."
            )
    end, size = max(extent.end for extent in extents.values()), path.stat().st_size
    if end > size:
        raise DataError(f"{path} has {size:,} bytes and should have {end:,}: it is truncated; {DAMAGE_REMEDY}.")
