"""Reads arrays from files that users bring: `.npy`, `.npz`, HDF5 and Parquet.

`open_arrays` recognises the format and returns a `NamedArrays`, which opens its arrays one by one. Opening a file reads
no array: type and shape come from headers. Files are mapped only where a `.npy` file lies column by column; such an
array of a `.npz` file is held whole. Nothing is ever unpickled, and no file that another one names is read.
"""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zipfile
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.storage.arrays import FetchedRows, Shape, StoredRows, array_place, read_from_stream
from itrpipe.storage.disk import reading

if TYPE_CHECKING:
    import h5py
    import pyarrow as pa

_FORMS = "give a whole .npy, .npz, HDF5 or Parquet file, or a folder of Parquet files"
_KINDS = "biufSU"
"""NumPy's letters of the types that are read: numbers and texts."""
_HEADER_BYTES = 16_384
"""NumPy reads headers of up to 10,000 characters."""
_BYTES_AT_ONCE = 1 << 24
FileRows = StoredRows | FetchedRows
"""Rows of an array in a file: `where`, `dtype`, `shape` and `read`."""


class NamedArrays(UserDict[str, Any]):
    """The arrays of a file by their names; a header is read when its array is asked for.

    Args:
        path: the file.
        remedy: against damage, for messages.
        openers: name of an array -> function that opens it. The array of a `.npy` file is called "".
        file: the opened file, if it is one of HDF5.
    """

    def __init__(
        self, path: Path, remedy: str, openers: Mapping[str, Callable[[], FileRows]], file: h5py.File | None = None
    ) -> None:
        super().__init__(openers)
        self.path = path
        self._remedy = remedy
        self._file = file

    def __getitem__(self, name: str) -> FileRows:
        """Open one array.

        Raises:
            KeyError: there is none of this name.
            DataError: it is damaged, or holds something else than numbers or texts.
        """
        opener = self.data[name]
        with reading(array_place(self.path, name), "an array of numbers or texts", self._remedy):
            return opener()

    def stored(self, name: str) -> StoredRows:
        """Open an array of a file that itrpipe has written.

        Raises:
            DataError: there is none of this name, or it does not lie in the file as it is.
        """
        rows = self.get(name)
        if not isinstance(rows, StoredRows):
            raise DataError(f"{self.path}: '{name}' is missing or not contiguous; {self._remedy}")
        return rows

    def attributes(self, group: str) -> Mapping[str, Any]:
        """Return the attributes of a group of HDF5, where "" stands for the file itself; none in other formats."""
        if self._file is None:
            return {}
        return self._file[f"/{group}"].attrs


def open_arrays(path: Path, what: str = "arrays", remedy: str = _FORMS) -> NamedArrays:
    """Open a file of arrays, whose format its first bytes tell, or a folder of Parquet files with the same columns.

    Args:
        path: the file or folder.
        what, remedy: for messages, see `reading`.

    Raises:
        DataError: it is of no known format, cut off or damaged, or would have another file read in its place.
        UnavailableError: it cannot be read now.
    """
    with reading(path, what, remedy):
        beginning = b""
        if path.is_file():
            with path.open("rb") as file:
                beginning = file.read(4)
        if beginning == b"\x93NUM":
            return NamedArrays(path, remedy, {"": partial(_open_npy, path)})
        if beginning.startswith(b"PK"):
            openers = {}
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    name = member.removesuffix(".npy")
                    if name != member:
                        openers[name] = partial(_open_npz_member, path, name)
            return NamedArrays(path, remedy, openers)
        if beginning == b"PAR1" or path.is_dir():
            return _open_parquet(path, remedy)
        return _open_hdf5(path, remedy)


def labels(values: FileRows) -> list[str] | list[int]:
    """Return all ids of an array.

    Args:
        values: [n] texts or whole numbers.

    Raises:
        DataError: it holds something else, or texts that are not UTF-8.
    """
    with reading(values.where, "ids", "give texts or whole numbers"):
        if len(values.shape) != 1 or values.dtype.kind not in "SUOiu":
            raise ValueError(f"it holds {values.dtype} {list(values.shape)}")
        ids = values.read()
        if values.dtype.kind == "S":
            ids = np.char.decode(ids)
        return ids.tolist()


# NumPy


def _open_npy(path: Path) -> FileRows:
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        dtype, shape, offset, by_columns = _read_header(file, size)
    if by_columns:
        return _column_major(str(path), dtype, shape, lambda: np.load(path, mmap_mode="r", allow_pickle=False))
    return StoredRows(path, offset, dtype, shape)


def _open_npz_member(path: Path, name: str) -> FileRows:
    where = array_place(path, name)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{name}.npy")
        stream = archive.open(info)  # stays open without the archive; going back in it unpacks from the front again
        dtype, shape, offset, by_columns = _read_header(stream, info.file_size)
    if by_columns:
        return _column_major(where, dtype, shape, lambda: np.load(path, allow_pickle=False)[name])
    if info.compress_type != zipfile.ZIP_STORED:

        def unpack(start: int, stop: int) -> np.ndarray:
            return read_from_stream(stream, offset, start, dtype, (stop - start, *shape[1:]))

        return FetchedRows(where, dtype, shape, unpack)
    with path.open("rb") as file:  # the local header may be longer than the directory says
        file.seek(info.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
    offset += info.header_offset + 30 + name_length + extra_length
    return StoredRows(path, offset, dtype, shape, name)


def _column_major(where: str, dtype: np.dtype, shape: Shape, load: Callable[[], np.ndarray]) -> FileRows:
    """Return the rows of an array that lies column by column: each is gathered from all over it."""
    whole = cache(load)
    return FetchedRows(where, dtype, shape, lambda start, stop: whole()[start:stop].copy(order="C"))


def _read_header(stream: IO[bytes], size: int) -> tuple[np.dtype, Shape, int, bool]:
    """Return type, shape, first byte of the data and whether it lies column by column, of a .npy file."""
    stream.seek(0)
    header = io.BytesIO(stream.read(_HEADER_BYTES))
    # Python 2 wrote shapes such as (29000L, 36, 2048); NumPy reads them with a warning that helps nobody.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        major, minor = np.lib.format.read_magic(header)
        read = getattr(np.lib.format, f"read_array_header_{major}_{minor}")
        shape, by_columns, dtype = read(header)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if dtype.kind not in _KINDS:
        raise ValueError(f"it holds {dtype}")
    offset = header.tell()
    expected = offset + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != expected:
        raise ValueError(f"it has {size:,} bytes, and by its header {expected:,}")
    return dtype, shape, offset, by_columns and len(shape) > 1


# HDF5


def _open_hdf5(path: Path, remedy: str) -> NamedArrays:
    """Open a file after a look at everything in it that could lead to other files.

    HDF5 follows external storage, virtual datasets and external links without a word, so that a file from elsewhere
    could make any file of this machine part of the features.
    """
    import h5py

    # Chunks stay unpacked in a cache; a smaller one would unpack a chunk again for every row.
    file = h5py.File(path, "r", locking="best-effort", rdcc_nbytes=64 << 20)
    links: dict[str, Any] = {}
    file.visititems_links(lambda name, link: links.update({name: link}))  # follows no link to another file
    for name, link in links.items():
        if isinstance(link, h5py.ExternalLink):
            raise DataError(
                f"{path}: '{name}' lies in the file {link.filename!r}, which is never read; copy the values over"
            )
    openers = {}
    for name in links:
        dataset = file.get(name)  # soft links may lead nowhere
        if not isinstance(dataset, h5py.Dataset):
            continue
        properties = dataset.id.get_create_plist()
        other = None
        if properties.get_layout() == h5py.h5d.VIRTUAL:
            other = dataset.virtual_sources()[0].file_name
        elif properties.get_external_count():
            other = os.fsdecode(properties.get_external(0)[0])
        if other is not None:
            raise DataError(f"{path}: '{name}' lies in the file {other!r}, which is never read; copy the values over")
        openers[name] = partial(_open_hdf5_dataset, path, file, name)
    return NamedArrays(path, remedy, openers, file)


def _open_hdf5_dataset(path: Path, file: h5py.File, name: str) -> FileRows:
    import h5py

    dataset: Any = file[name]
    where = array_place(path, name)
    dtype = np.dtype(dataset.dtype.str)
    shape = dataset.shape or ()
    if dataset.chunks:
        expected = 1
        for extent, size in zip(shape, dataset.chunks, strict=True):
            expected *= math.ceil(extent / size)
        if dataset.id.get_num_chunks() < expected:  # HDF5 would read zeros in their place
            raise ValueError("chunks of it are missing; it is damaged, or was not written to its end")
    if dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype):
        texts = dataset.asstr("utf-8")
        return FetchedRows(where, np.dtype(object), shape, lambda start, stop: texts[start:stop])
    if dtype.kind not in _KINDS:
        raise ValueError(f"it holds {dataset.dtype}")
    # Types without a counterpart in NumPy are converted by HDF5, and so are never read as they lie.
    is_plain = dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True)
    offset = dataset.id.get_offset()
    if is_plain and offset is not None:
        return StoredRows(path, offset, dtype, shape, name)
    return FetchedRows(where, dtype, shape, lambda start, stop: dataset[start:stop])


# Parquet


def _open_parquet(path: Path, remedy: str) -> NamedArrays:
    """Open the columns that all files have."""
    import pyarrow.parquet as pq

    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise ValueError("the folder holds no Parquet file")
    schemas = []
    rows = 0
    for file in paths:
        metadata = pq.read_metadata(file)
        schemas.append(metadata.schema.to_arrow_schema())
        rows += metadata.num_rows
    openers = {}
    for field in schemas[0]:
        if all(field.name in schema.names for schema in schemas):
            openers[field.name] = partial(_open_parquet_column, path, paths, rows, field)
    return NamedArrays(path, remedy, openers)


def _open_parquet_column(path: Path, paths: list[Path], rows: int, field: pa.Field) -> FileRows:
    column = _ParquetColumn(paths, field)
    return FetchedRows(array_place(path, field.name), column.dtype, (rows, *column.row_shape), column.fetch)


class _ParquetColumn:
    """A column of Parquet files, read from front to back; going back begins again.

    A column of lists of one length is a matrix.

    Attributes:
        dtype: type of a number or text.
        row_shape: the length of the lists; empty where the column holds no lists.
    """

    def __init__(self, paths: list[Path], field: pa.Field) -> None:
        import pyarrow as pa

        self._paths = paths
        self._name = field.name
        self._is_list = pa.types.is_nested(field.type)
        kind: Any = field.type
        if self._is_list or pa.types.is_dictionary(kind):
            kind = kind.value_type  # which structures do not have
        self.dtype = np.dtype(kind.to_pandas_dtype())
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if self.dtype.kind not in _KINDS and (self._is_list or not is_text):
            raise ValueError(f"it holds {field.type}")
        self._type = kind
        self.row_shape: Shape = ()
        if self._is_list:
            width = 0
            for first in self._batches(1):
                width = len(first[0])
                break
            self._type = pa.list_(kind, width)
            self.row_shape = (width,)
        self._first_row = math.inf

    def _batches(self, rows: int) -> Iterator[Any]:
        """Yield the column, up to `rows` rows at a time."""
        import pyarrow.parquet as pq

        for path in self._paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(rows, columns=[self._name]):
                    yield batch.column(0)

    def _blocks(self) -> Iterator[np.ndarray]:
        row_bytes = 8 * max(1, math.prod(self.row_shape))
        for column in self._batches(max(1, _BYTES_AT_ONCE // row_bytes)):
            column = column.cast(self._type)  # refuses lists of another length
            values = column.flatten() if self._is_list else column
            empty = column.null_count or values.null_count
            if empty:
                raise ValueError(f"it has {empty:,} empty values")
            yield values.to_numpy(zero_copy_only=False).reshape(len(column), *self.row_shape)

    def fetch(self, start: int, stop: int) -> np.ndarray:
        """Read rows start..stop."""
        if start < self._first_row:
            self._following = self._blocks()
            self._first_row = 0
            self._block = next(self._following)
        pieces = [self._block[start - self._first_row : stop - self._first_row]]
        while stop > self._first_row + len(self._block):
            self._first_row += len(self._block)
            self._block = next(self._following)
            pieces.append(self._block[max(0, start - self._first_row) : stop - self._first_row])
        return np.concatenate(pieces)
