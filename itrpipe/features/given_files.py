"""Files of embeddings that other programs have written: `.npy`, Parquet and HDF5, read some rows at a time.

Shapes: N images, T captions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.datasets.captions import SPLITS
from itrpipe.datasets.source_files import LIST, lines_of, load_json
from itrpipe.errors import MissingInputError
from itrpipe.features.embeddings import INNER_PRODUCT
from itrpipe.features.given_source import ids_beside
from itrpipe.features.hdf5 import open_hdf5
from itrpipe.storage.arrays import StoredRows
from itrpipe.storage.disk import reading

Side = Literal["images", "captions"]
FORMS = (
    "give .npy [rows, D]; Parquet, or a folder of it, with the columns embedding, image_id and for captions "
    "caption_id; or HDF5 with images and texts"
)
_OWN_ID = {"images": "image_id", "captions": "caption_id"}
_MATRICES = {"images": ("images", "embedding", "embeddings"), "captions": ("texts", "captions", "embedding")}
_VECTOR, _TEXT, _OWNER_ROW = "embedding", "text", "caption_image"
_BYTES_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class GivenSide:
    """Embeddings of the images or of the captions of a split.

    Attributes:
        path: file or folder.
        side: of which they are.
        shape: rows and D.
        kind: type of the numbers, such as `float16`.
        ids: [rows] strings; None where the file has none.
        owners: of captions, int64 rows or ids [T] of their images; None where the file does not say.
        texts: of captions, [T] strings; None where the file has none.
        is_order: whether the file says that they are order embeddings.
        blocks: what `read` reads.
    """

    path: Path
    side: Side
    shape: tuple[int, int]
    kind: str
    ids: pa.Array | None
    owners: pa.Array | None
    texts: pa.Array | None
    is_order: bool
    blocks: Callable[[], Iterator[np.ndarray]]

    def read(self) -> Iterator[np.ndarray]:
        """All rows in order, some at a time: [n, D].

        Raises:
            DataError: some cannot be read.
        """
        with reading(self.path, f"embeddings of {self.side}", FORMS):
            yield from self.blocks()


def open_side(path: Path, side: Side, split: str) -> GivenSide:
    """Opens a file of embeddings; the embeddings themselves are not read yet.

    Args:
        path: what the user named.
        side: whose embeddings are wanted.
        split: whose, where a file has several.

    Raises:
        MissingInputError: it has no such split.
        DataError: it is of no known form, damaged, or holds something else than [rows, D] of float16, 32 or 64.
    """
    with reading(path, f"embeddings of {side}", FORMS):
        if path.is_dir() or path.suffix == ".parquet":
            found = _parquet(path, side)
        elif path.suffix == ".npy":
            found = _numpy(path, side)
        else:
            found = _hdf5(path, side, split)
        if found.ids is not None and len(found.ids) != found.shape[0]:
            raise ValueError(f"it has {found.shape[0]:,} vectors and {len(found.ids):,} ids")
        return found


def read_owners(path: Path) -> pa.Array:
    """Reads which image each caption describes: int64 rows or ids [T].

    Raises:
        DataError: it is no `.npy` of whole numbers or strings, no JSON list of these, and no text of one id a line.
    """
    forms = "give .npy with whole numbers or strings, .json with a list of them, or .txt with one image id a line"
    with reading(path, "owners", forms):
        if path.suffix == ".npy":
            return _names(pa.array(_native(np.array(_mapped(path, 1)))))
        if path.suffix == ".json":
            return _names(pa.array(load_json(path, LIST)))
        if path.suffix == ".txt":
            return pa.array(lines_of(path), pa.string())
        raise ValueError(f"its name ends in {path.suffix or 'nothing'}")


def as_ids(owners: pa.Array) -> pa.Array:
    """Rows or ids as strings."""
    return owners.cast(pa.string())


def _names(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Rows or ids: whole numbers or strings, which all are there."""
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"it holds {kind} and not whole numbers or strings")
    if values.null_count:
        raise ValueError(f"it has {values.null_count:,} empty values")
    found = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return found if pa.types.is_integer(kind) else found.cast(pa.string())


def _native(values: np.ndarray) -> np.ndarray:
    """Bytes as the text that they are, and all else in the byte order of this machine."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8")
    return values.astype(values.dtype.newbyteorder("="))


def _matrix(shape: tuple[int, ...], kind: Any) -> tuple[tuple[int, int], str]:
    """Shape and type of a matrix of embeddings."""
    dtype = np.dtype(kind)
    if len(shape) != 2 or dtype.kind != "f" or dtype.itemsize > 8:
        raise ValueError(f"it holds {dtype} {list(shape)} and not float16, float32 or float64 [rows, D]")
    if not all(shape):
        raise ValueError(f"it is empty: {list(shape)}")
    return (shape[0], shape[1]), dtype.name


def _rows_at_once(width: int, itemsize: int) -> int:
    return max(1, _BYTES_AT_ONCE // (width * itemsize))


# NumPy


def _mapped(path: Path, dimensions: int) -> np.memmap:
    """An array where it lies; never one of Python objects, which would be a pickle."""
    array = np.lib.format.open_memmap(path, mode="r")
    if array.ndim != dimensions:
        raise ValueError(f"it has the shape {list(array.shape)}")
    return array


def _numpy(path: Path, side: Side) -> GivenSide:
    array = _mapped(path, 2)
    shape, kind = _matrix(array.shape, array.dtype)
    beside = ids_beside(path)
    ids = None
    if beside.is_file():
        with reading(beside, f"ids of {side}", "give a list of whole numbers or strings"):
            ids = as_ids(_names(pa.array(load_json(beside, LIST))))

    stored = StoredRows(path.absolute(), array.offset, array.dtype, shape)  # what is read so is not mapped

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, shape[0], step := _rows_at_once(shape[1], array.dtype.itemsize)):
            yield (
                stored.read(start, start + step) if array.flags.c_contiguous else np.array(array[start : start + step])
            )

    return GivenSide(path, side, shape, kind, ids, None, None, False, blocks)


# Parquet


def _parquet(path: Path, side: Side) -> GivenSide:
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise ValueError("the folder holds no Parquet file")
    files = [pq.ParquetFile(each) for each in paths]
    names = set.intersection(*(set(each.schema_arrow.names) for each in files))
    if _VECTOR not in names:
        raise ValueError(f"it has the columns {', '.join(files[0].schema_arrow.names)} and no {_VECTOR}")
    listed = files[0].schema_arrow.field(_VECTOR).type
    if not (pa.types.is_fixed_size_list(listed) or pa.types.is_list(listed) or pa.types.is_large_list(listed)):
        raise ValueError(f"its {_VECTOR} is {listed} and not a list of numbers")
    width = len(next(files[0].iter_batches(1, columns=[_VECTOR])).column(0)[0])
    kept = pa.array([], listed.value_type).to_numpy(zero_copy_only=False).dtype
    shape, kind = _matrix((sum(each.metadata.num_rows for each in files), width), kept)

    def column(name: str) -> pa.Array | None:
        if name not in names:
            return None
        return _names(pa.chunked_array([chunk for each in files for chunk in each.read([name])[name].chunks]))

    def blocks() -> Iterator[np.ndarray]:
        for each in paths:
            with pq.ParquetFile(each) as file:
                for batch in file.iter_batches(_rows_at_once(width, 8), columns=[_VECTOR]):
                    yield _vectors(batch.column(0), width)

    ids, owners, texts = column(_OWN_ID[side]), None, None
    if side == "captions":
        owners, texts = column("image_id"), column(_TEXT)
    ids, owners, texts = (None if each is None else as_ids(each) for each in (ids, owners, texts))
    return GivenSide(path, side, shape, kind, ids, owners, texts, False, blocks)


def _vectors(column: Any, width: int) -> np.ndarray:
    """A column of lists as a matrix."""
    lengths = pc.call_function("list_value_length", [column])
    values = column.flatten()
    if column.null_count or values.null_count:
        raise ValueError("some of its vectors or numbers are empty")
    if len(column) and pc.call_function("min_max", [lengths]).as_py() != {"min": width, "max": width}:
        raise ValueError(f"its vectors are not all of one length, which is {width} of the first")
    return values.to_numpy(zero_copy_only=False).reshape(-1, width)


# HDF5


def _hdf5(path: Path, side: Side, split: str) -> GivenSide:
    with open_hdf5(path) as file:
        group = _group(path, file, split)
        where = _matrix_in(group, side)
        matrix = group[where]
        assert isinstance(matrix, h5py.Dataset)
        shape, kind = _matrix(matrix.shape, matrix.dtype)
        ids, owners, texts = _strings(group, _OWN_ID[side]), None, None
        if side == "captions":
            owners, texts = _strings(group, _OWNER_ROW), _strings(group, _TEXT)
            if owners is None and "images" not in group:
                owners = _strings(group, "image_id")
        measure = group.attrs.get("measure", INNER_PRODUCT)
        name = f"{group.name}/{where}"

    def blocks() -> Iterator[np.ndarray]:
        with open_hdf5(path) as again:
            rows: Any = again[name]
            for start in range(0, shape[0], step := _rows_at_once(shape[1], rows.dtype.itemsize)):
                yield rows[start : start + step]

    ids, texts = (None if each is None else as_ids(each) for each in (ids, texts))
    return GivenSide(path, side, shape, kind, ids, owners, texts, str(measure) != INNER_PRODUCT, blocks)


def _group(path: Path, file: h5py.File, split: str) -> h5py.Group:
    """The group of a split, or the file itself where it has no splits."""
    splits = [name for name in SPLITS if isinstance(file.get(name), h5py.Group)]
    if splits and split not in splits:
        raise MissingInputError(f"{path} has no split {split!r}; it has {', '.join(splits)}")
    found = file[split] if splits else file
    assert isinstance(found, h5py.Group)
    return found


def _matrix_in(group: h5py.Group, side: Side) -> str:
    """Name of the matrix of one side; of one that is alone, whatever its name."""
    (others,) = (names for other, names in _MATRICES.items() if other != side)
    matrices = [name for name, each in group.items() if isinstance(each, h5py.Dataset) and each.ndim == 2]
    matrices = [name for name in matrices if name in _MATRICES[side] or name not in others]
    known = [name for name in _MATRICES[side] if name in matrices] or (matrices if len(matrices) == 1 else [])
    if not known:
        raise ValueError(f"it has {', '.join(group) or 'nothing'} and no {_MATRICES[side][0]} [rows, D]")
    return known[0]


def _strings(group: h5py.Group, name: str) -> pa.Array | None:
    """A dataset of whole numbers or strings; None where there is none of this name."""
    dataset = group.get(name)
    if not isinstance(dataset, h5py.Dataset):
        return None
    if h5py.check_string_dtype(dataset.dtype):
        return pa.array(list(dataset.asstr()[:]), pa.string())
    return _names(pa.array(_native(dataset[:])))
