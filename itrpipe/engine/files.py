"""Files of parts: arrays or a table, with a checksum of all their bytes.

A file of arrays begins with its length and a JSON header, in the way of safetensors, so that arrays can be written and
read a few rows at a time without any of them in memory.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.engine.work import AGAIN
from itrpipe.errors import DataError
from itrpipe.storage.arrays import StoredRows
from itrpipe.storage.disk import (
    CHECKSUM,
    STAMP_HERE,
    TEMPORARY,
    file_digest,
    full_disk_as_error,
    stamp,
    stamped,
    write_bytes,
)

_FACTS = "__metadata__"
_LENGTH = 8
_ROOM = 1_024
"""Bytes that the header of a file with an array that grows has left for the numbers in it to grow."""


class ArrayWriter:
    """Writes a file of arrays whose rows come in any order; it takes its place when it is closed, whole.

    Args:
        path: the file.
        arrays: name -> type and shape.
        facts: more to keep, as JSON.
        growing: rows are appended to the last array, whose shape says 0 of them.

    Raises:
        DiskFullError: no space is left.
    """

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, tuple[Any, tuple[int, ...]]],
        facts: Any = None,
        *,
        growing: bool = False,
    ) -> None:
        self._path, self._arrays, self._facts = path, dict(arrays), facts
        self._grown = list(arrays)[-1] if growing else ""
        self._temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}{TEMPORARY}")
        header, self._places = _layout(arrays, facts)
        if growing:
            self._room = len(header) + _ROOM
            header, self._places = _layout(arrays, facts, self._room)
        with full_disk_as_error(path):
            self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                os.pwrite(self._file, header, 0)
                os.ftruncate(self._file, max((stop for *_, stop in self._places.values()), default=len(header)))
            except BaseException:
                self._discard()
                raise

    def write(self, name: str, start: int, rows: np.ndarray) -> None:
        """Writes rows `start`, ... of an array."""
        dtype, shape, offset, _ = self._places[name]
        content = np.ascontiguousarray(rows, dtype=dtype).reshape(-1).view(np.uint8).data
        offset += start * dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        with full_disk_as_error(self._path):
            while content:
                written = os.pwrite(self._file, content, offset)
                content, offset = content[written:], offset + written

    def append(self, name: str, rows: np.ndarray) -> None:
        """Writes rows behind those of the array that grows."""
        kind, shape = self._arrays[self._grown]
        assert name == self._grown
        self.write(name, shape[0], rows)
        self._arrays[name] = (kind, (shape[0] + len(rows), *shape[1:]))

    def close(self) -> None:
        """Stamps the file and puts it in its place."""
        if self._grown:
            with full_disk_as_error(self._path):
                os.pwrite(self._file, _layout(self._arrays, self._facts, self._room)[0], 0)
        digest = file_digest(self._temporary)
        placed = os.pread(self._file, _LENGTH, 0)
        header = os.pread(self._file, int.from_bytes(placed, "little"), _LENGTH)
        with full_disk_as_error(self._path):
            os.pwrite(self._file, header.replace(STAMP_HERE.encode(), stamp(digest)), _LENGTH)
            os.fsync(self._file)
            os.replace(self._temporary, self._path)
        os.close(self._file)

    def _discard(self) -> None:
        os.close(self._file)
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self.close()
        except BaseException:  # the disk may be full only now
            self._discard()
            raise


class ArrayFile:
    """Reads a file of arrays, a few rows at a time; what it gives is in memory and the file is not mapped.

    Args:
        path: the file, which an engine has checked.

    Raises:
        DataError: it is no file of arrays.
        OSError: it cannot be read.

    Attributes:
        facts: what was kept beside the arrays.
        shapes: name -> shape.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                length = int.from_bytes(stream.read(_LENGTH), "little")
                header = json.loads(stream.read(min(length, os.fstat(stream.fileno()).st_size)))
            known = header.pop(_FACTS)
            self.facts = json.loads(known["facts"])
            self._places = {
                name: (np.dtype(each["dtype"]), tuple(each["shape"]), _LENGTH + length + each["data_offsets"][0])
                for name, each in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is no file of arrays ({error}); {AGAIN}") from None
        self.shapes = {name: shape for name, (_, shape, _) in self._places.items()}

    def stored(self, name: str) -> StoredRows:
        """Where an array lies; it can be pickled."""
        dtype, shape, offset = self._places[name]
        return StoredRows(self.path.absolute(), offset, dtype, shape, name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start..stop of an array, by default all."""
        return self.stored(name).read(start, self.shapes[name][0] if stop is None else stop)

    def all(self) -> dict[str, np.ndarray]:
        """All arrays."""
        return {name: self.read(name) for name in self.shapes}


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], facts: Any = None) -> None:
    """Writes a file of arrays that are in memory.

    Raises:
        DiskFullError: no space is left.
    """
    with ArrayWriter(path, {name: (each.dtype, each.shape) for name, each in arrays.items()}, facts) as writer:
        for name, each in arrays.items():
            writer.write(name, 0, each)


def write_table(path: Path, table: pa.Table, facts: Mapping[str, str] | None = None) -> None:
    """Writes a table as a file of Arrow.

    Raises:
        DiskFullError: no space is left.
    """
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({CHECKSUM: STAMP_HERE, **(facts or {})})
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    write_bytes(path, stamped(sink.getvalue().to_pybytes()))


def read_table(path: Path) -> pa.Table:
    """Reads a file of `write_table`, mapped: the pages of what is not looked at cost no memory."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _layout(
    arrays: Mapping[str, tuple[Any, tuple[int, ...]]], facts: Any, room: int = 0
) -> tuple[bytes, dict[str, tuple[np.dtype, tuple[int, ...], int, int]]]:
    """The header, and of every array type, shape, first byte and end in the file."""
    header: dict[str, Any] = {_FACTS: {CHECKSUM: STAMP_HERE, "facts": json.dumps(facts, sort_keys=True)}}
    places, offset = {}, 0
    for name, (kind, shape) in arrays.items():
        dtype = np.dtype(kind).newbyteorder("<")
        stop = offset + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype.str, "shape": list(shape), "data_offsets": [offset, stop]}
        places[name] = (dtype, tuple(shape), offset, stop)
        offset = stop
    text = json.dumps(header).encode().ljust(room)
    start = _LENGTH + len(text)
    placed = {name: (dtype, shape, start + first, start + stop) for name, (dtype, shape, first, stop) in places.items()}
    return len(text).to_bytes(_LENGTH, "little") + text, placed
