"""Rows of .npy files and .npz members, in constant memory and without mapping them.

A memory map costs no memory of its own, but its pages count as the process's until the system takes them back, so that
importing a file of 30 GB looks like using 30 GB. Here rows are read by `os.preadv` into an array of just their size.
"""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from itrpipe.errors import DataError
from itrpipe.storage.disk import reading, reading_error

AGAIN = "fetch it again"
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# numpy reads headers of up to 10,000 characters.
_HEADER_ROOM = 16_384
_SKIP_BYTES = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")


class Rows(Protocol):
    """An array on disk, read row by row.

    Attributes:
        where: file, and the array's name in it, for messages.
        shape: of the whole array.
        dtype: as stored; floats may be big-endian.
    """

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Reads rows [n] int64, rising within and across calls, into an array [n, ...] of `dtype`.

        Raises:
            DataError: the file is damaged.
        """
        ...


@dataclass
class StoredRows:
    """Rows that lie in a file as they are, from byte `offset` on; other attributes as of `Rows`."""

    path: Path
    where: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    def read(self, rows: np.ndarray) -> np.ndarray:
        """See `Rows`; rows may also fall."""
        values = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        row_bytes = row_size(self)
        for start, stop in runs(rows):
            offset = self.offset + int(rows[start]) * row_bytes
            read_range(self.path, self.where, _bytes_of(values[start:stop]), offset)
        return values


@dataclass
class StreamedRows:
    """Rows of a compressed .npz member, unpacked from front to back; other attributes as of `Rows`.

    Attributes:
        member: file name in the archive.
        offset: first byte of the rows in the unpacked member.
    """

    path: Path
    where: str
    shape: tuple[int, ...]
    dtype: np.dtype
    member: str
    offset: int
    _stream: IO[bytes] | None = field(default=None, repr=False)
    _position: int = 0

    def read(self, rows: np.ndarray) -> np.ndarray:
        """See `Rows`; going back means unpacking from the front again."""
        values = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        row_bytes = row_size(self)
        with reading(self.where, ".npz", AGAIN):
            for start, stop in runs(rows):
                self._go_to(self.offset + int(rows[start]) * row_bytes)
                self._read_into(_bytes_of(values[start:stop]))
        return values

    def _go_to(self, offset: int) -> None:
        if self._stream is None or offset < self._position:
            archive = zipfile.ZipFile(self.path)  # closed by the stream when that goes
            self._stream, self._position = archive.open(self.member), 0
        while self._position < offset:
            skipped = len(self._stream.read(min(_SKIP_BYTES, offset - self._position)))
            if not skipped:
                raise EOFError("a member ends early")
            self._position += skipped

    def _read_into(self, view: memoryview) -> None:
        assert self._stream is not None
        while view:
            part = self._stream.read(min(_SKIP_BYTES, len(view)))
            if not part:
                raise EOFError("a member ends early")
            view[: len(part)] = part
            self._position, view = self._position + len(part), view[len(part) :]


def open_npy(path: Path) -> StoredRows:
    """Opens a .npy file.

    Raises:
        DataError: it is not one, is truncated or has bytes too many, or holds objects, structures or Fortran order.
    """
    with reading(path, ".npy", AGAIN), path.open("rb") as file:
        head, size = file.read(_HEADER_ROOM), os.fstat(file.fileno()).st_size
    if head.startswith(b"PK"):
        raise DataError(f"{path} is an .npz archive under the name of an .npy file; unpack it first.")
    shape, dtype, offset = _parse_header(str(path), head, size)
    return StoredRows(path, str(path), shape, dtype, offset)


def npz_names(path: Path) -> list[str]:
    """Returns the names of the arrays in an .npz file.

    Raises:
        DataError: it is not one, or is truncated.
    """
    with reading(path, ".npz", AGAIN), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def open_npz(path: Path, name: str) -> Rows:
    """Opens one array of an .npz file: stored ones by their place, compressed ones as a stream.

    Raises:
        DataError: as of `open_npy`.
    """
    where, member = f"{path}: '{name}'", f"{name}.npy"
    with reading(where, ".npz", AGAIN), zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
        with archive.open(info) as stream:
            head = stream.read(min(_HEADER_ROOM, info.file_size))
        stored = info.compress_type == zipfile.ZIP_STORED
        start = _start_of_member(path, info.header_offset) if stored else 0
    shape, dtype, offset = _parse_header(where, head, info.file_size)
    if not stored:
        return StreamedRows(path, where, shape, dtype, member, offset)
    if start + info.file_size > path.stat().st_size:
        raise DataError(f"{where} is not in a whole .npz archive (it ends beyond the file); fetch it again.")
    return StoredRows(path, where, shape, dtype, start + offset)


def parse_npy(where: str, content: bytes) -> np.ndarray:
    """Returns the array of a .npy file in memory.

    Raises:
        DataError: as of `open_npy`.
    """
    shape, dtype, offset = _parse_header(where, content, len(content))
    return np.frombuffer(content, dtype, math.prod(shape), offset).reshape(shape)


def runs(rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields first and last + 1 position of every run of consecutive rows."""
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    yield from zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=False)


def row_size(array: Rows) -> int:
    """Returns the bytes of one row."""
    return math.prod(array.shape[1:]) * array.dtype.itemsize


def read_range(path: Path, where: str, view: memoryview, offset: int) -> None:
    """Fills `view` with the bytes of a file from `offset` on; `where` names it in messages.

    Raises:
        DataError: the file is too short or cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            while view:
                done = os.preadv(file, [view], offset)
                if not done:
                    raise DataError(f"{where} ends at byte {offset:,}, it became shorter; fetch it again.")
                offset, view = offset + done, view[done:]
        finally:
            os.close(file)
    except OSError as error:
        damage = DataError(f"{where} cannot be read ({error.strerror}); check the file.")
        raise reading_error(error, Path(where), damage) from error


def _bytes_of(values: np.ndarray) -> memoryview:
    return values.reshape(-1).view(np.uint8).data if values.size else memoryview(b"")


def _start_of_member(path: Path, header: int) -> int:
    """Returns the first byte of a stored member; its local header may be longer than the directory says."""
    with path.open("rb") as file:
        file.seek(header)
        signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("a member is not where the directory says")
    return header + _LOCAL_HEADER.size + name + extra


def _parse_header(where: str, head: bytes, size: int) -> tuple[tuple[int, ...], np.dtype, int]:
    """Returns shape, type and first byte of the data of a .npy file of `size` bytes that starts with `head`."""
    stream = io.BytesIO(head)
    # Python 2 wrote shapes such as (29000L, 36, 2048); numpy reads them with a warning that helps nobody.
    with reading(where, ".npy", AGAIN), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = _HEADER_READERS[np.lib.format.read_magic(stream)]
        shape, fortran, dtype = read(stream)
    if dtype.kind not in "biufSU":
        raise DataError(f"{where} cannot be read as .npy of numbers (it has type {dtype}); save it as numbers.")
    if fortran and len(shape) > 1:
        raise DataError(f"{where} lies column by column (Fortran order); save it with np.ascontiguousarray.")
    expected = stream.tell() + math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != expected:
        raise DataError(
            f"{where} cannot be read as .npy (it has {size:,} bytes, and by its header {expected:,}); {AGAIN}"
        )
    return shape, dtype, stream.tell()
