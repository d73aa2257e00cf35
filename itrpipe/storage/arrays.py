"""Arrays whose rows are read some at a time, the files of parts that hold them, and lists of many lengths.

Rows are copied into memory by plain reading: an array of 30 GB takes no more memory than the rows that are held, and an
error of the disk is an exception and does not end the process. Files are mapped where `StoredRows.mapped` is asked for.

A file of parts has a checksum of all its bytes. It begins with its length and a JSON header, in the way of safetensors,
so that arrays can be written and read a few rows at a time without any of them in memory. `array_writer` or
`write_arrays` writes one, `ArrayFile` reads it. Arrays in files of other programs are read by `array_formats.py`.

Functions that begin with `given_` or `check_` take vectors that a user passed, and return them as arrays or refuse them
with one line that says what is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from itrpipe.errors import DataError
from itrpipe.storage.disk import AGAIN, CHECKSUM, STAMP_HERE, atomic_file, file_digest, reading, stamp

FETCH_AGAIN = "make or fetch it again"
_FACTS = "__metadata__"
"""Key of a file of parts beside those of its arrays."""
_LENGTH = 8
"""Bytes of a file of parts that hold the length of its header."""
_ROOM = 64
"""Bytes that a header leaves for the numbers of an array that grows."""
_LARGEST_SCORE = 3.38e38
"""Largest number of bfloat16, and nearly of float32."""
Shape = tuple[int, ...]


class Rows(Protocol):
    """Rows of numbers that are read some at a time, such as one vector per image."""

    @property
    def dtype(self) -> np.dtype:
        """Type of a number."""
        ...

    @property
    def shape(self) -> Shape:
        """Shape of all rows; the first number counts them."""
        ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows start..stop into memory."""
        ...


def array_place(path: Path, name: str) -> str:
    """Return the file, and the array's name in it if it has one, for messages."""
    return f"{path}: '{name}'" if name else str(path)


def read_from_stream(stream: IO[bytes], offset: int, start: int, dtype: np.dtype, shape: Shape) -> np.ndarray:
    """Read some rows of an array.

    Args:
        stream: file of the array.
        offset: byte where the array begins.
        start: first row to read.
        dtype: type of a number.
        shape: shape of the rows to read.

    Raises:
        EOFError: the file ends before.
    """
    rows = np.empty(shape, dtype)
    if rows.nbytes:
        row_bytes = rows.nbytes // shape[0]
        stream.seek(offset + start * row_bytes)
        if stream.readinto(_bytes_of(rows)) != rows.nbytes:  # pyright: ignore[reportAttributeAccessIssue]
            raise EOFError(f"it ends before row {start + shape[0]:,}")
    return rows


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class StoredRows:
    """Rows that lie one behind the other in a file. They can be pickled, and are read in any order.

    Attributes:
        path: the file.
        offset: byte where the first row begins.
        dtype: type of a number.
        shape: shape of all rows; the first number counts them.
        name: name of the array in the file; empty where the file has one array alone.
    """

    path: Path
    offset: int
    dtype: np.dtype
    shape: Shape
    name: str = ""

    @property
    def where(self) -> str:
        """Return the file, and the array's name in it, for messages."""
        return array_place(self.path, self.name)

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Read rows start..stop, as many of them as there are, by default all.

        Raises:
            DataError: the file ends before.
        """
        rows = range(self.shape[0])[start:stop]
        shape = (len(rows), *self.shape[1:])
        with reading(self.where, "an array", FETCH_AGAIN), self.path.open("rb") as file:
            return read_from_stream(file, self.offset, start, self.dtype, shape)

    def mapped(self, mode: Literal["c", "r"] = "c") -> np.memmap:
        """Map all rows; those of mode "c" can be written to, in memory alone, since torch wants them so."""
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
        """Read rows start..stop, as many of them as there are, by default all; rising calls are the fastest.

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
        source: rows that another process reads instead; None sends it the array.
    """

    array: np.ndarray
    source: Rows | None = None

    def __post_init__(self) -> None:
        self.dtype = self.array.dtype
        self.shape = self.array.shape

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows start..stop."""
        return self.array[start:stop]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.source is None:
            return HeldRows, (self.array,)
        return JoinedRows, ((self.source,),)


@dataclass
class JoinedRows:
    """The rows of several, one behind the other."""

    parts: Sequence[Rows]

    def __post_init__(self) -> None:
        first = self.parts[0]
        rows = sum(part.shape[0] for part in self.parts)
        self.dtype = first.dtype
        self.shape = (rows, *first.shape[1:])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows start..stop."""
        pieces = [np.empty((0, *self.shape[1:]), self.dtype)]
        for part in self.parts:
            count = part.shape[0]
            if start < count and stop > 0:
                pieces.append(part.read(max(0, start), stop))
            start -= count
            stop -= count
        return np.concatenate(pieces)


def runs(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the first position and the one behind the last of every run of consecutive rows [n] int64."""
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1).tolist()
    yield from zip(starts, [*starts[1:], len(rows)], strict=False)


def take(values: Rows, rows: np.ndarray) -> np.ndarray:
    """Read some rows, in the order of `rows`.

    Args:
        values: n rows.
        rows: [m] int64, best rising and close together.
    """
    rising, inverse = np.unique(rows, return_inverse=True)
    pieces = list(runs(rising))
    if len(pieces) == 1:
        taken = values.read(int(rising[0]), int(rising[-1]) + 1)
    else:  # copied as they come, since joining them in the end takes three times as long
        taken = np.empty((len(rising), *values.shape[1:]), values.dtype)
        for first, stop in pieces:
            start = int(rising[first])
            taken[first:stop] = values.read(start, start + stop - first)
    if np.array_equal(rows, rising):
        return taken  # without another copy
    return taken[inverse]


# Files of parts


class ArrayWriter:
    """Writes the arrays of a file, whose rows may come in any order; `array_writer` makes it."""

    def __init__(self, file: IO[bytes], arrays: Mapping[str, tuple[DTypeLike, Shape]], facts: Any) -> None:
        self._file = file
        self._facts = facts
        self._arrays: dict[str, tuple[int, np.dtype, Shape]] = {}
        offset = 0
        for name, (kind, shape) in arrays.items():
            dtype = np.dtype(kind).newbyteorder("<")
            self._arrays[name] = offset, dtype, shape
            offset += dtype.itemsize * math.prod(shape)
        self._header_bytes = len(self._header()) + _ROOM

    def write(self, name: str, start: int, rows: np.ndarray) -> None:
        """Write rows of an array, from row `start` on."""
        offset, dtype, shape = self._arrays[name]
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        self._file.seek(_LENGTH + self._header_bytes + offset + start * row_bytes)
        self._file.write(_bytes_of(np.ascontiguousarray(rows, dtype)))

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to the array that lies last in the file."""
        offset, dtype, shape = self._arrays[name]
        count = shape[0]
        self.write(name, count, rows)
        self._arrays[name] = offset, dtype, (count + len(rows), *shape[1:])

    def finish(self, path: Path) -> None:
        """Write the header, with a checksum of the whole file, which lies at `path`."""
        header = self._header_bytes.to_bytes(_LENGTH, "little")
        header += self._header().ljust(self._header_bytes)
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        self._file.seek(header.index(STAMP_HERE.encode()))
        self._file.write(stamp(file_digest(path)))

    def _header(self) -> bytes:
        facts = json.dumps(self._facts, sort_keys=True)
        header: dict[str, Any] = {_FACTS: {CHECKSUM: STAMP_HERE, "facts": facts}}
        for name, (offset, dtype, shape) in self._arrays.items():
            header[name] = {"dtype": dtype.str, "shape": shape, "data_offsets": [offset]}
        return json.dumps(header).encode()


@contextmanager
def array_writer(path: Path, arrays: Mapping[str, tuple[DTypeLike, Shape]], facts: Any = None) -> Iterator[ArrayWriter]:
    """Yield a writer of a file of arrays, which takes its place in the end, whole.

    Args:
        path: the file.
        arrays: name -> type and shape.
        facts: any JSON to keep beside the arrays.

    Raises:
        DiskFullError: no space is left.
    """
    with atomic_file(path) as file:
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
        facts: JSON that was kept beside the arrays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path, "a file of arrays", AGAIN), path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH), "little")
            header = json.loads(stream.read(length))
            self.facts: Any = json.loads(header.pop(_FACTS)["facts"])
            for name, array in header.items():
                offset = _LENGTH + length + array["data_offsets"][0]
                shape = tuple(array["shape"])
                self[name] = StoredRows(path.absolute(), offset, np.dtype(array["dtype"]), shape, name)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], facts: Any = None) -> None:
    """Write a file of arrays that are in memory.

    Raises:
        DiskFullError: no space is left.
    """
    layout = {}
    for name, array in arrays.items():
        layout[name] = (array.dtype, array.shape)
    with array_writer(path, layout, facts) as writer:
        for name, array in arrays.items():
            writer.write(name, 0, array)


# Lists of different lengths, one behind the other in one array


def run_indices(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the indices of several runs, one run behind the other.

    Args:
        starts: int [n], first index of each run.
        counts: int64 [n], length of each run, which may be zero.

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
    def of_lists(cls, lists: Sequence[Sequence[Any] | np.ndarray], dtype: DTypeLike = np.int64) -> Ragged:
        """Join lists of Python, or arrays."""
        values = np.concatenate([np.zeros(0, dtype), *lists]).astype(dtype, copy=False)
        counts = np.array(list(map(len, lists)), dtype=np.int64)
        return cls.of_counts(counts, values)

    @classmethod
    def of_counts(cls, counts: np.ndarray, values: np.ndarray | None = None) -> Ragged:
        """Cut values into lists of these lengths, int [n]; without values each gets its own index."""
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        if values is None:
            return cls(offsets, np.arange(offsets[-1]))
        return cls(offsets, values)

    @classmethod
    def of_owners(cls, owners: np.ndarray, count: int, values: np.ndarray | None = None) -> Ragged:
        """Sort values into lists by the number of the list of each, int [v] in 0..count - 1, in any order.

        A list keeps the order in which its values come; without values each gets its own index, as in "the captions of
        every image".
        """
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=count)
        if values is None:
            return cls.of_counts(counts, order)
        return cls.of_counts(counts, values[order])

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Join the lists of all parts, at least one, in their order."""
        counts = np.concatenate([part.counts for part in parts])
        values = np.concatenate([part.values for part in parts])
        return cls.of_counts(counts, values)

    @property
    def counts(self) -> np.ndarray:
        """Return the length of each list, int64 [n]."""
        return np.diff(self.offsets)

    def owners(self) -> np.ndarray:
        """Return the number of the list of each value, int64 [v]."""
        return np.repeat(np.arange(len(self)), self.counts)

    def places(self) -> np.ndarray:
        """Return the place of each value in its list, int64 [v]."""
        return run_indices(np.zeros(len(self), np.int64), self.counts)

    def take(self, rows: np.ndarray) -> Ragged:
        """Return the lists of some rows, int [m], in this order; a row may come several times."""
        starts = self.offsets[:-1][rows]
        counts = self.offsets[1:][rows] - starts
        return Ragged.of_counts(counts, self.values[run_indices(starts, counts)])

    def padded(self, fill: Any = 0, min_width: int = 0) -> np.ndarray:
        """Return the lists as rows [n, width, ...] with `fill` behind the last value of each.

        The width is that of the longest list, and at least `min_width`.
        """
        counts = self.counts
        width = int(counts.max(initial=min_width))
        shape = (len(self), width, *self.values.shape[1:])
        table = np.full(shape, fill, dtype=self.values.dtype)
        is_filled = np.arange(width) < counts[:, None]
        table[is_filled] = self.values
        return table

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Return the values of one list; row may count from the end."""
        row = range(len(self))[row]
        return self.values[self.offsets[row] : self.offsets[row + 1]]


def given_vectors(images: ArrayLike, texts: ArrayLike, owners: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of images [N, D] and texts [T, D] as float32, and owners [T] as int64.

    They may be lists, arrays or tensors of any floating-point type.

    Raises:
        DataError: an array has another number of axes, another kind of number, or nothing in it.
    """
    what = "vectors [rows, D] of real numbers"
    image_vectors = given_array("images", images, 2, "f", what, np.float32)
    text_vectors = given_array("texts", texts, 2, "f", what, np.float32)
    owner_rows = given_array("owners", owners, 1, "iu", "one row of an image for each text", np.int64)
    return image_vectors, text_vectors, owner_rows


def given_array(
    name: str,
    values: Any,
    axes: int,
    kinds: str,
    what: str,
    dtype: DTypeLike,
) -> np.ndarray:
    """Return a list, array or tensor as an array.

    Args:
        name: for messages.
        values: list, array or tensor.
        axes: number of axes that it has to have.
        kinds: NumPy's letters of the types that are allowed.
        what: description of the array that is expected, for messages.
        dtype: of the array that is returned.

    Raises:
        DataError: it has another number of axes, another kind of number, or nothing in it.
    """
    if hasattr(values, "detach"):  # a tensor; nothing here imports torch
        tensor = values.detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.float()  # NumPy has no bfloat16
        values = tensor.numpy()
    array = np.asarray(values)
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
    longest_norms = []
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
        longest_norms.append(longest)
    image_norm, text_norm = longest_norms
    if not image_norm * text_norm < _LARGEST_SCORE:
        raise DataError(
            f"scores are NaN or infinite: the longest vectors have norms {image_norm:g} and {text_norm:g}; "
            "normalise the embeddings"
        )
