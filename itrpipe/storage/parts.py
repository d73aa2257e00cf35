"""Files of parts: arrays or a table, with a checksum of all their bytes.

A file of arrays begins with its length and a JSON header, in the way of safetensors, so that arrays can be written and
read a few rows at a time without any of them in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.errors import DataError
from itrpipe.storage.arrays import StoredRows
from itrpipe.storage.disk import (
    AGAIN,
    CHECKSUM,
    STAMP_HERE,
    file_digest,
    full_disk_as_error,
    stamp,
    stamped,
    temporary_of,
    write_bytes,
)

_FACTS, _END = "__metadata__", "__end__"
_LENGTH = 8
_ROOM = 64
"""Bytes that a header has left for the numbers of an array that grows."""


class ArrayWriter:
    """Writes a file of arrays whose rows come in any order; the file takes its place at the end of `with`, whole.

    Args:
        path: the file.
        arrays: name -> type and shape.
        facts: more to keep, as JSON.

    Raises:
        DiskFullError: no space is left.
    """

    def __init__(self, path: Path, arrays: Mapping[str, tuple[Any, tuple[int, ...]]], facts: Any = None) -> None:
        self._path, self._facts = path, facts
        self._arrays = {
            name: (np.dtype(kind).newbyteorder("<"), tuple(shape)) for name, (kind, shape) in arrays.items()
        }
        self._room = len(_layout(self._arrays, facts)[0]) - _LENGTH + _ROOM
        self._begun, self._starts = _layout(self._arrays, facts, self._room)
        # What comes in the order of the file is hashed at once; otherwise the file is read again in the end.
        self._digest, self._hashed = hashlib.sha256(self._begun), len(self._begun)
        self._temporary = temporary_of(path)
        with full_disk_as_error(path):
            self._file = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def write(self, name: str, start: int, rows: np.ndarray) -> None:
        """Writes rows `start`, ... of an array."""
        dtype, shape = self._arrays[name]
        content = np.ascontiguousarray(rows, dtype=dtype).reshape(-1).view(np.uint8).data
        offset = self._starts[name] + start * dtype.itemsize * math.prod(shape[1:])
        with full_disk_as_error(self._path):
            written = 0
            while written < len(content):
                written += os.pwrite(self._file, content[written:], offset + written)
        if offset == self._hashed:  # now, while the disk is at work on it
            self._digest.update(content)
            self._hashed += len(content)
        elif offset < self._hashed:
            self._hashed = 0

    def append(self, name: str, rows: np.ndarray) -> None:
        """Writes rows behind those of the last array, which grows by them."""
        dtype, (count, *rest) = self._arrays[name]
        self.write(name, count, rows)
        self._arrays[name] = dtype, (count + len(rows), *rest)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._file)
            self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        """Stamps the file and puts it in its place."""
        header, starts = _layout(self._arrays, self._facts, self._room)
        with full_disk_as_error(self._path):
            os.ftruncate(self._file, starts[_END])
            if header == self._begun and self._hashed == starts[_END]:
                digest = self._digest.hexdigest()
            else:
                os.pwrite(self._file, header, 0)
                digest = file_digest(self._temporary)
            os.pwrite(self._file, header.replace(STAMP_HERE.encode(), stamp(digest)), 0)
            os.fsync(self._file)
            os.replace(self._temporary, self._path)


def _layout(
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]], facts: Any, room: int = 0
) -> tuple[bytes, dict[str, int]]:
    """The header, of so many bytes at least, with its length before it; first byte of every array, and of the end."""
    header: dict[str, Any] = {_FACTS: {CHECKSUM: STAMP_HERE, "facts": json.dumps(facts, sort_keys=True)}}
    ends = [0]
    for name, (dtype, shape) in arrays.items():
        ends.append(ends[-1] + dtype.itemsize * math.prod(shape))
        header[name] = {"dtype": dtype.str, "shape": shape, "data_offsets": ends[-2:]}
    text = json.dumps(header).encode().ljust(room)
    places = [_LENGTH + len(text) + end for end in ends]
    return len(text).to_bytes(_LENGTH, "little") + text, dict(zip((*arrays, _END), places, strict=True))


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
            self._rows: dict[str, StoredRows] = {}
            for name, each in header.items():
                dtype, shape, begin = np.dtype(each["dtype"]), tuple(each["shape"]), each["data_offsets"][0]
                self._rows[name] = StoredRows(path.absolute(), _LENGTH + length + begin, dtype, shape, name)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is no file of arrays ({error}); {AGAIN}") from None
        self.shapes = {name: each.shape for name, each in self._rows.items()}

    def stored(self, name: str) -> StoredRows:
        """Where an array lies; it can be pickled."""
        return self._rows[name]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start..stop of an array, by default all."""
        return self._rows[name].read(start, self.shapes[name][0] if stop is None else stop)

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


def write_arrow(path: Path, table: pa.Table, facts: Mapping[str, str] | None = None) -> None:
    """Writes a table as a file of Arrow.

    Raises:
        DiskFullError: no space is left.
    """
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({CHECKSUM: STAMP_HERE, **(facts or {})})
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    write_bytes(path, stamped(sink.getvalue().to_pybytes()))


def read_arrow(path: Path) -> pa.Table:
    """Reads a file of `write_arrow`, mapped: the pages of what is not looked at cost no memory."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
