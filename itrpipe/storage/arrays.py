"""Arrays: in files that users bring (`.npy`, `.npz`, HDF5, Parquet), in files of parts, and lists of many lengths.

Opening a file reads no array: type and shape come from headers. Rows are copied into memory by plain reading: an array
of 30 GB takes no more memory than the rows that are held, and an error of the disk is an exception and does not end the
process. Files are mapped where `StoredRows.mapped` is asked for, and where a `.npy` file lies column by column; such an
array of a `.npz` file is held whole. Nothing is ever unpickled, and no file that another one names is read.

A file of parts has a checksum of all its bytes. It begins with its length and a JSON header, in the way of safetensors,
so that arrays can be written and read a few rows at a time without any of them in memory.

The checks of vectors that are given as arrays serve mining and evaluation.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import warnings
import zipfile
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from itrpipe.errors import DataError
from itrpipe.storage.disk import AGAIN, CHECKSUM, STAMP_HERE, file_digest, reading, stamp, whole_file

if TYPE_CHECKING:
    import h5py
    import pyarrow as pa

FETCH_AGAIN = "make or fetch it again"
FORMS = "give a whole .npy, .npz, HDF5 or Parquet file, or a folder of Parquet files"
_TYPES = "biufSU"
# NumPy reads headers of up to 10,000 characters.
_HEADER_ROOM = 16_384
# HDF5 keeps unpacked chunks of this many bytes; a smaller cache unpacks a chunk again for every row.
_CHUNK_CACHE = 64 << 20
_BYTES_AT_ONCE = 1 << 24
# Of bfloat16 and float32.
_LARGEST_SCORE = 3.38e38
# In files of parts: the key beside those of arrays, bytes of the length, and what a header has left for the numbers of
# an array that grows.
_FACTS = "__metadata__"
_LENGTH = 8
_ROOM = 64


Shape = tuple[int, ...]
ArraySpecs = Mapping[str, tuple[Any, Shape]]
"""Name of an array -> type and shape."""


class Rows(Protocol):
    """Rows of numbers that are read some at a time, such as one vector per image."""

    @property
    def dtype(self) -> np.dtype:
        """Type of a number."""
        ...

    @property
    def shape(self) -> Shape:
        """Rows first."""
        ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop, in memory."""
        ...


@dataclass(frozen=True)
class StoredRows:
    """Rows that lie one behind the other in a file. They can be pickled, and are read in any order.

    Attributes:
        path: the file.
        offset: of the first row, bytes.
        dtype: type of a number.
        shape: rows first.
        name: of the array in the file, empty where it is alone.
    """

    path: Path
    offset: int
    dtype: np.dtype
    shape: Shape
    name: str = ""

    @property
    def where(self) -> str:
        """The file, and the array's name in it, for messages."""
        return _where(self.path, self.name)

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start..stop, as many of them as there are, by default all.

        Raises:
            DataError: the file ends before.
        """
        rows = range(self.shape[0])[start:stop]
        with reading(self.where, "an array", FETCH_AGAIN), self.path.open("rb") as file:
            return _filled(file, self.offset, start, self.dtype, (len(rows), *self.shape[1:]))

    def mapped(self, mode: Literal["c", "r"] = "c") -> np.memmap:
        """All rows where they lie; of mode "c" they can be written to, in memory alone, since torch wants them so."""
        with reading(self.where, "an array", FETCH_AGAIN):
            return np.memmap(self.path, self.dtype, mode, self.offset, self.shape)


@dataclass(frozen=True)
class FetchedRows:
    """Rows that a library has to unpack.

    Attributes:
        where: the file, and the array's name in it, for messages.
        dtype: type of a number as it is stored, perhaps big-endian; of texts `object` (strings), `S` or `U`.
        shape: rows first.
        fetch: gives the rows start..stop, which all are there.
    """

    where: str
    dtype: np.dtype
    shape: Shape
    fetch: Callable[[int, int], np.ndarray]

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start..stop, as many of them as there are, by default all; rising calls are the fastest.

        Raises:
            DataError: the file is damaged.
        """
        rows = range(self.shape[0])[start:stop]
        with reading(self.where, "an array", FETCH_AGAIN):
            if not rows:
                return np.empty((0, *self.shape[1:]), self.dtype)
            return self.fetch(rows.start, rows.stop)


@dataclass
class HeldRows:
    """Rows that are in memory.

    Attributes:
        array: all of them.
        source: which another process reads in their place; None sends it the array.
    """

    array: np.ndarray
    source: Rows | None = None

    def __post_init__(self) -> None:
        self.dtype, self.shape = self.array.dtype, self.array.shape

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        return self.array[start:stop]

    def __reduce__(self) -> Any:
        if self.source is None:
            return HeldRows, (self.array,)
        return JoinedRows, ((self.source,),)


@dataclass
class JoinedRows:
    """The rows of several, one behind the other."""

    parts: Sequence[Rows]

    def __post_init__(self) -> None:
        first, *_ = self.parts
        self.dtype = first.dtype
        self.shape = (sum(part.shape[0] for part in self.parts), *first.shape[1:])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        found = [np.empty((0, *self.shape[1:]), self.dtype)]
        for part in self.parts:
            if start < part.shape[0] and stop > 0:
                found.append(part.read(max(0, start), stop))
            start, stop = start - part.shape[0], stop - part.shape[0]
        return np.concatenate(found)


FileRows = StoredRows | FetchedRows
"""Rows of an array in a file: `where`, `dtype`, `shape` and `read`."""
Attributes = Callable[[str], Mapping[str, Any]]
Openers = Mapping[str, Callable[[], FileRows]]


class Arrays(UserDict[str, Any]):
    """The arrays of a file by their names; a header is read when its array is asked for.

    Args:
        path: the file.
        remedy: against damage, for messages.
        openers: name -> what opens the array. The array of a `.npy` file is called "".
        attributes: of a group of HDF5, which "" stands for the file itself; nothing in other formats.
    """

    def __init__(self, path: Path, remedy: str, openers: Openers, attributes: Attributes = lambda group: {}) -> None:
        super().__init__(openers)
        self.path = path
        self.attributes = attributes
        self._remedy = remedy

    def __getitem__(self, name: str) -> FileRows:
        """Opens one array.

        Raises:
            KeyError: there is none of this name.
            DataError: it is damaged, or holds something else than numbers or texts.
        """
        opener = self.data[name]
        with reading(_where(self.path, name), "an array of numbers or texts", self._remedy):
            return opener()

    def stored(self, name: str) -> StoredRows:
        """Opens an array of a file that itrpipe has written.

        Raises:
            DataError: there is none of this name, or it does not lie in the file as it is.
        """
        found = self.get(name)
        if not isinstance(found, StoredRows):
            raise DataError(f"{self.path}: '{name}' is missing or not contiguous; {self._remedy}")
        return found


def open_arrays(path: Path, what: str = "arrays", remedy: str = FORMS) -> Arrays:
    """Opens a file of arrays, whose format its first bytes tell, or a folder of Parquet files with the same columns.

    Args:
        path: the file or folder.
        what, remedy: for messages, as of `reading`.

    Raises:
        DataError: it is of no known format, cut off or damaged, or would have another file read in its place.
        UnavailableError: it cannot be read now.
    """
    with reading(path, what, remedy):
        first = b""
        if path.is_file():
            with path.open("rb") as file:
                first = file.read(4)
        if first == b"\x93NUM":
            return Arrays(path, remedy, {"": partial(_npy, path)})
        if first.startswith(b"PK"):
            openers = {}
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    name = member.removesuffix(".npy")
                    if name != member:
                        openers[name] = partial(_npz_member, path, name)
            return Arrays(path, remedy, openers)
        if first == b"PAR1" or path.is_dir():
            return Arrays(path, remedy, _parquet(path))
        return Arrays(path, remedy, *_hdf5(path))


def runs(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields the first position and the one behind the last of every run of consecutive rows [n] int64."""
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1).tolist()
    yield from zip(starts, [*starts[1:], len(rows)], strict=False)


def take(values: Rows, rows: np.ndarray) -> np.ndarray:
    """Some rows, in the order asked for.

    Args:
        values: n rows.
        rows: [m] int64, best rising and close together.
    """
    wanted, back = np.unique(rows, return_inverse=True)
    pieces = list(runs(wanted))
    if len(pieces) == 1:
        found = values.read(int(wanted[0]), int(wanted[-1]) + 1)
    else:  # copied as they come, since joining them in the end takes three times as long
        found = np.empty((len(wanted), *values.shape[1:]), values.dtype)
        for first, stop in pieces:
            begin = int(wanted[first])
            found[first:stop] = values.read(begin, begin + stop - first)
    return found if np.array_equal(rows, wanted) else found[back]  # rising rows are not copied once more


def labels(values: FileRows) -> list[str] | list[int]:
    """All ids of an array.

    Args:
        values: [n] texts or whole numbers.

    Raises:
        DataError: it holds something else, or texts that are not UTF-8.
    """
    with reading(values.where, "ids", "give texts or whole numbers"):
        if len(values.shape) != 1 or values.dtype.kind not in "SUOiu":
            raise ValueError(f"it holds {values.dtype} {list(values.shape)}")
        return [each.decode() if isinstance(each, bytes) else each for each in values.read().tolist()]


def _where(path: Path, name: str) -> str:
    return f"{path}: '{name}'" if name else str(path)


def _filled(file: IO[bytes], offset: int, start: int, dtype: np.dtype, shape: Shape) -> np.ndarray:
    """Reads rows `start`, ... of an array that begins at `offset`."""
    values = np.empty(shape, dtype)
    if values.nbytes:
        file.seek(offset + start * (values.nbytes // shape[0]))
        if file.readinto(values.reshape(-1).view(np.uint8).data) != values.nbytes:  # pyright: ignore[reportAttributeAccessIssue]
            raise EOFError(f"it ends before row {start + shape[0]:,}")
    return values


# NumPy


def _npy(path: Path) -> FileRows:
    with path.open("rb") as file:
        dtype, shape, offset, fortran = _header(file, file.seek(0, io.SEEK_END))
    if fortran:
        return _by_columns(str(path), dtype, shape, lambda: np.load(path, mmap_mode="r", allow_pickle=False))
    return StoredRows(path, offset, dtype, shape)


def _npz_member(path: Path, name: str) -> FileRows:
    where = _where(path, name)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{name}.npy")
        stream = archive.open(info)  # stays open without the archive; going back in it unpacks from the front again
        dtype, shape, offset, fortran = _header(stream, info.file_size)
    if fortran:
        return _by_columns(where, dtype, shape, lambda: np.load(path, allow_pickle=False)[name])
    if info.compress_type != zipfile.ZIP_STORED:
        return FetchedRows(
            where,
            dtype,
            shape,
            lambda start, stop: _filled(stream, offset, start, dtype, (stop - start, *shape[1:])),
        )
    with path.open("rb") as file:  # the local header may be longer than the directory says
        file.seek(info.header_offset + 26)
        offset += info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
    return StoredRows(path, offset, dtype, shape, name)


def _by_columns(where: str, dtype: np.dtype, shape: Shape, load: Callable[[], np.ndarray]) -> FileRows:
    """Rows of an array that lies column by column: each is gathered from all over it."""
    columns = cache(load)
    return FetchedRows(where, dtype, shape, lambda start, stop: columns()[start:stop].copy(order="C"))


def _header(stream: IO[bytes], size: int) -> tuple[np.dtype, Shape, int, bool]:
    """Type, shape, first byte of the data and whether it lies column by column, of a .npy file of `size` bytes."""
    stream.seek(0)
    head = io.BytesIO(stream.read(_HEADER_ROOM))
    # Python 2 wrote shapes such as (29000L, 36, 2048); NumPy reads them with a warning that helps nobody.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        major, minor = np.lib.format.read_magic(head)
        shape, fortran, dtype = getattr(np.lib.format, f"read_array_header_{major}_{minor}")(head)
    if dtype.kind not in _TYPES:
        raise ValueError("it holds Python objects" if dtype.hasobject else f"it holds {dtype}")
    expected = head.tell() + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != expected:
        raise ValueError(f"it has {size:,} bytes, and by its header {expected:,}")
    return dtype, shape, head.tell(), fortran and len(shape) > 1


# HDF5


def _hdf5(path: Path) -> tuple[Openers, Attributes]:
    """Opens a file after a look at everything in it that could lead to other files.

    HDF5 follows external storage, virtual datasets and external links without a word, so that a file from elsewhere
    could make any file of this machine part of the features.
    """
    import h5py

    file = h5py.File(path, "r", locking="best-effort", rdcc_nbytes=_CHUNK_CACHE)
    links: dict[str, Any] = {}
    file.visititems_links(lambda name, link: links.update({name: link}))  # follows no link to another file
    outside = {name: link.filename for name, link in links.items() if isinstance(link, h5py.ExternalLink)}
    names = []
    for name in () if outside else links:
        found = file.get(name)  # soft links may lead nowhere
        if isinstance(found, h5py.Dataset):
            plan = found.id.get_create_plist()
            if plan.get_layout() == h5py.h5d.VIRTUAL:
                outside[name] = found.virtual_sources()[0].file_name
            elif plan.get_external_count():
                outside[name] = os.fsdecode(plan.get_external(0)[0])
            names.append(name)
    for name, other in outside.items():
        raise DataError(f"{path}: '{name}' lies in the file {other!r}, which is never read; copy the values over")
    openers = {name: partial(_dataset, path, file, name) for name in names}
    return openers, lambda group: file[f"/{group}"].attrs


def _dataset(path: Path, file: h5py.File, name: str) -> FileRows:
    import h5py

    dataset: Any = file[name]
    where = _where(path, name)
    dtype = np.dtype(dataset.dtype.str)
    shape = dataset.shape or ()
    chunks = [-(-extent // size) for extent, size in zip(shape, dataset.chunks or (), strict=False)]
    if chunks and dataset.id.get_num_chunks() < math.prod(chunks):  # HDF5 would read zeros in their place
        raise ValueError("chunks of it are missing; it is damaged, or was not written to its end")
    if dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype):
        texts = dataset.asstr("utf-8")
        return FetchedRows(where, np.dtype(object), shape, lambda start, stop: texts[start:stop])
    if dtype.kind not in _TYPES:
        raise ValueError(f"it holds {dataset.dtype}")
    # Types without a counterpart in NumPy are converted by HDF5, and so are never read as they lie.
    plain = dataset.id.get_type() == h5py.h5t.py_create(dataset.dtype, logical=True)
    if plain and dataset.id.get_offset() is not None:
        return StoredRows(path, dataset.id.get_offset(), dtype, shape, name)
    return FetchedRows(where, dtype, shape, lambda start, stop: dataset[start:stop])


# Parquet


def _parquet(path: Path) -> Openers:
    import pyarrow.parquet as pq

    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise ValueError("the folder holds no Parquet file")
    about = [pq.read_metadata(each) for each in paths]
    schemas = [each.schema.to_arrow_schema() for each in about]
    names = [name for name in schemas[0].names if all(name in each.names for each in schemas)]
    count = sum(each.num_rows for each in about)
    return {name: partial(_column, path, paths, count, schemas[0].field(name)) for name in names}


def _column(path: Path, paths: list[Path], count: int, field: pa.Field) -> FileRows:
    """A column of lists of one length is a matrix."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    listed = pa.types.is_nested(field.type)  # of those, structures have no type of values
    kind: Any = field.type.value_type if listed or pa.types.is_dictionary(field.type) else field.type
    dtype = np.dtype(kind.to_pandas_dtype())
    if dtype.kind not in _TYPES and (listed or not (pa.types.is_string(kind) or pa.types.is_large_string(kind))):
        raise ValueError(f"it holds {field.type}")

    def columns(at_once: int) -> Iterator[Any]:
        for each in paths:
            with pq.ParquetFile(each) as file:
                yield from (batch.column(0) for batch in file.iter_batches(at_once, columns=[field.name]))

    widths = [next((len(column[0]) for column in columns(1)), 0)] if listed else []
    at_once = max(1, _BYTES_AT_ONCE // (8 * max([1, *widths])))

    def blocks() -> Iterator[np.ndarray]:
        for column in columns(at_once):
            column = column.cast(pa.list_(kind, *widths) if listed else kind)  # refuses lists of another length
            values = column.flatten() if listed else column
            if column.null_count or values.null_count:
                raise ValueError(f"it has {column.null_count or values.null_count:,} empty values")
            yield values.to_numpy(zero_copy_only=False).reshape(len(column), *widths)

    return FetchedRows(_where(path, field.name), dtype, (count, *widths), _Stream(blocks).fetch)


@dataclass
class _Stream:
    """Blocks of rows that come from front to back; going back begins again.

    Args:
        begin: gives all blocks, [n, ...] each.
    """

    begin: Callable[[], Iterator[np.ndarray]]
    _first: float = math.inf

    def fetch(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        if start < self._first:
            self._blocks = self.begin()
            self._first = 0
            self._held = next(self._blocks)
        found = [self._held[start - self._first : stop - self._first]]
        while stop > self._first + len(self._held):
            self._first += len(self._held)
            self._held = next(self._blocks)
            found.append(self._held[max(0, start - self._first) : stop - self._first])
        return np.concatenate(found)


# Files of parts


class ArrayWriter:
    """Writes the arrays of a file, whose rows come in any order; `array_writer` opens and ends it."""

    def __init__(self, file: IO[bytes], arrays: ArraySpecs, facts: Any) -> None:
        self._file = file
        self._facts = facts
        end = 0
        self._arrays: dict[str, tuple[int, np.dtype, Shape]] = {}
        for name, (kind, shape) in arrays.items():
            dtype = np.dtype(kind).newbyteorder("<")
            self._arrays[name] = end, dtype, shape
            end += dtype.itemsize * math.prod(shape)
        self._room = len(self._header()) + _ROOM

    def write(self, name: str, start: int, rows: np.ndarray) -> None:
        """Writes rows `start`, ... of an array."""
        begin, dtype, shape = self._arrays[name]
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        self._file.seek(_LENGTH + self._room + begin + start * row_bytes)
        self._file.write(np.ascontiguousarray(rows, dtype).reshape(-1).view(np.uint8).data)

    def append(self, name: str, rows: np.ndarray) -> None:
        """Writes rows behind those of the last array, which grows by them."""
        begin, dtype, (count, *rest) = self._arrays[name]
        self.write(name, count, rows)
        self._arrays[name] = begin, dtype, (count + len(rows), *rest)

    def finish(self, path: Path) -> None:
        """Writes the header, with a checksum of the whole file, which lies at `path`."""
        header = self._room.to_bytes(_LENGTH, "little") + self._header().ljust(self._room)
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        self._file.seek(header.index(STAMP_HERE.encode()))
        self._file.write(stamp(file_digest(path)))

    def _header(self) -> bytes:
        facts = json.dumps(self._facts, sort_keys=True)
        header: dict[str, Any] = {_FACTS: {CHECKSUM: STAMP_HERE, "facts": facts}}
        for name, (begin, dtype, shape) in self._arrays.items():
            header[name] = {"dtype": dtype.str, "shape": shape, "data_offsets": [begin]}
        return json.dumps(header).encode()


@contextmanager
def array_writer(path: Path, arrays: ArraySpecs, facts: Any = None) -> Iterator[ArrayWriter]:
    """A writer of a file of arrays, which takes its place in the end, whole.

    Args:
        path: the file.
        arrays: name -> type and shape.
        facts: more to keep, as JSON.

    Raises:
        DiskFullError: no space is left.
    """
    with whole_file(path) as file:
        writer = ArrayWriter(file, arrays, facts)
        yield writer
        writer.finish(Path(file.name))


class ArrayFile(dict[str, StoredRows]):
    """The arrays of a file by their names, none of which is read yet.

    Args:
        path: the file, which an engine has checked.

    Raises:
        DataError: it is no file of arrays.
        UnavailableError: it cannot be read now.

    Attributes:
        facts: what was kept beside the arrays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, "a file of arrays", AGAIN), path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH), "little")
            header = json.loads(stream.read(length))
            self.facts: Any = json.loads(header.pop(_FACTS)["facts"])
            for name, each in header.items():
                offset = _LENGTH + length + each["data_offsets"][0]
                shape = tuple(each["shape"])
                self[name] = StoredRows(path.absolute(), offset, np.dtype(each["dtype"]), shape, name)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], facts: Any = None) -> None:
    """Writes a file of arrays that are in memory.

    Raises:
        DiskFullError: no space is left.
    """
    layout = {name: (each.dtype, each.shape) for name, each in arrays.items()}
    with array_writer(path, layout, facts) as writer:
        for name, each in arrays.items():
            writer.write(name, 0, each)


# Lists of different lengths, one behind the other in one array


def run_indices(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Indices of several runs, one run behind the other.

    Args:
        starts: int [n], first index of each run.
        counts: int64 [n], its length, which may be zero.

    Returns:
        int64 [sum of counts].
    """
    before = counts.cumsum() - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)


@dataclass(frozen=True)
class Ragged:
    """n lists of different lengths.

    Attributes:
        offsets: int64 [n + 1], where each list begins; the last one is where the last list ends.
        values: [offsets[-1], ...], the values of all lists in their order.
    """

    offsets: np.ndarray
    values: np.ndarray

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[Any] | np.ndarray], dtype: Any = np.int64) -> Ragged:
        """Lists as Python or numpy has them."""
        values = np.concatenate([np.zeros(0, dtype), *lists]).astype(dtype, copy=False)
        return cls.of_counts(np.array([len(each) for each in lists], dtype=np.int64), values)

    @classmethod
    def of_counts(cls, counts: np.ndarray, values: np.ndarray | None = None) -> Ragged:
        """Values that are cut into lists of these lengths, int [n]; without values each gets its own index."""
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return cls(offsets, np.arange(offsets[-1]) if values is None else values)

    @classmethod
    def of_owners(cls, owners: np.ndarray, count: int, values: np.ndarray | None = None) -> Ragged:
        """Values given with the number of their list, int [v] in 0..count - 1, in any order.

        A list keeps the order in which its values come; without values each gets its own index, as in "the captions of
        every image".
        """
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=count)
        return cls.of_counts(counts, order if values is None else values[order])

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The lists of all parts, at least one, in their order."""
        counts = np.concatenate([part.counts for part in parts])
        return cls.of_counts(counts, np.concatenate([part.values for part in parts]))

    @property
    def counts(self) -> np.ndarray:
        """Length of each list, int64 [n]."""
        return np.diff(self.offsets)

    def owners(self) -> np.ndarray:
        """Number of the list of each value, int64 [v]."""
        return np.repeat(np.arange(len(self)), self.counts)

    def places(self) -> np.ndarray:
        """Place of each value in its list, int64 [v]."""
        return run_indices(np.zeros(len(self), np.int64), self.counts)

    def take(self, rows: np.ndarray) -> Ragged:
        """The lists of some rows, int [m], in this order, also several times."""
        starts = self.offsets[:-1][rows]
        counts = self.offsets[1:][rows] - starts
        return Ragged.of_counts(counts, self.values[run_indices(starts, counts)])

    def padded(self, width: int | None = None, fill: Any = 0) -> np.ndarray:
        """The lists as rows [n, width, ...], cut at the width, with `fill` behind the last value of each.

        By default the width is that of the longest list, and 0 where there is no list.
        """
        counts = self.counts
        if width is None:
            width = int(counts.max(initial=0))
        table = np.full((len(self), width, *self.values.shape[1:]), fill, dtype=self.values.dtype)
        kept = np.minimum(counts, width)
        is_kept = np.arange(width) < kept[:, None]
        table[is_kept] = self.values[run_indices(self.offsets[:-1], kept)]
        return table

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Values of one list; row may count from the end."""
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]


# Vectors of images and texts


def given_vectors(images: ArrayLike, texts: ArrayLike, owners: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of any floating-point type as float32, [N, D] and [T, D], and owners [T] as int64.

    Raises:
        DataError: an array has another number of axes, another kind of number, or nothing in it.
    """
    what = "vectors [rows, D] of real numbers"
    return (
        given_array("images", images, 2, "f", what, np.float32),
        given_array("texts", texts, 2, "f", what, np.float32),
        given_array("owners", owners, 1, "iu", "one row of an image for each text", np.int64),
    )


def given_array(name: str, given: Any, axes: int, kinds: str, what: str, dtype: DTypeLike) -> np.ndarray:
    """Return a list, array or tensor as an array.

    Args:
        name: for messages.
        given: its values.
        axes: that it has to have.
        kinds: that its numbers may be of, by NumPy's letters.
        what: it has to hold, for messages.
        dtype: of the array.

    Raises:
        DataError: it has another number of axes, another kind of number, or nothing in it.
    """
    if hasattr(given, "detach"):  # a tensor; nothing here imports torch
        kept = given.detach().cpu()
        given = (kept.float() if kept.is_floating_point() else kept).numpy()
    array = np.asarray(given)
    if array.ndim != axes or array.dtype.kind not in kinds or not array.size:
        raise DataError(f"{name} are {array.dtype} {list(array.shape)} and not {what}")
    return array.astype(dtype, copy=False)


def check_captions(captions: Sequence[str], owners: np.ndarray) -> None:
    """Refuse captions that are no texts, or not as many as owners [T].

    Raises:
        DataError: they are not.
    """
    if len(captions) != len(owners):
        raise DataError(f"there are {len(captions):,} captions and {len(owners):,} owners; give one for each text")
    for row, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise DataError(f"caption {row} is {caption!r}; give a text for each, an empty one where there is none")


def check_fit(images: Shape, texts: Shape, owners: np.ndarray) -> None:
    """Refuse vectors of two widths, and owners [T] that are not as many as texts, or are no rows of images.

    Args:
        images, texts: shapes of both sides, [N, D] and [T, D].
        owners: row of the image of each text, -1 for none.

    Raises:
        DataError: they do not fit each other.
    """
    if images[1] != texts[1] or len(owners) != texts[0]:
        raise DataError(
            f"embeddings of images {images}, of captions {texts} and {len(owners)} caption rows do not "
            "fit each other: embed both sides with one model, each caption with its row"
        )
    if owners.min() < -1 or owners.max() >= images[0]:
        raise DataError(
            f"captions name image rows {owners.min()}..{owners.max()}, but {images[0]} images are embedded: "
            "encode the whole split"
        )


def check_numbers(images: Iterable[np.ndarray], texts: Iterable[np.ndarray]) -> None:
    """Refuse vectors, read in blocks [b, D], whose inner products are not all finite.

    Raises:
        DataError: a vector holds NaN or infinity, or vectors are so long that a score can leave the range of float32.
    """
    lengths = []
    for name, blocks in (("image", images), ("caption", texts)):
        rows = 0
        bad = 0
        longest = 0.0
        for vectors in blocks:
            # In double precision no finite number overflows.
            norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
            rows += len(norms)
            bad += np.count_nonzero(~np.isfinite(norms))
            longest = max(longest, float(norms.max()))
        if bad:
            raise DataError(f"{bad} of {rows} {name} embeddings hold NaN or infinity: embed or train again")
        lengths.append(longest)
    if not lengths[0] * lengths[1] < _LARGEST_SCORE:
        raise DataError(
            f"scores are NaN or infinite: the longest vectors have norms {lengths[0]:g} and {lengths[1]:g}; "
            "normalise the embeddings"
        )
