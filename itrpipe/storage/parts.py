"""Files of parts: arrays or a table, with a checksum of all their bytes.

A file of arrays begins with its length and a JSON header, in the way of safetensors, so that arrays can be written and
read a few rows at a time without any of them in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from itrpipe.storage.arrays import StoredRows
from itrpipe.storage.disk import (
    AGAIN,
    CHECKSUM,
    STAMP_HERE,
    file_digest,
    reading,
    stamp,
    stamped,
    whole_file,
    write_bytes,
)

_FACTS = "__metadata__"
_LENGTH = 8
_ROOM = 64
"""Bytes that a header has left for the numbers of an array that grows."""


class ArrayWriter:
    """Writes the arrays of a file, whose rows come in any order; `array_writer` opens and ends it."""

    def __init__(self, file: IO[bytes], arrays: Mapping[str, tuple[Any, tuple[int, ...]]], facts: Any) -> None:
        self._file = file
        self._facts = facts
        end = 0
        self._arrays: dict[str, tuple[int, np.dtype, tuple[int, ...]]] = {}
        for name, (kind, shape) in arrays.items():
            self._arrays[name] = end, (dtype := np.dtype(kind).newbyteorder("<")), tuple(shape)
            end += dtype.itemsize * math.prod(shape)
        self._room = len(self._header()) + _ROOM

    def write(self, name: str, start: int, rows: np.ndarray) -> None:
        """Writes rows `start`, ... of an array."""
        begin, dtype, shape = self._arrays[name]
        self._file.seek(_LENGTH + self._room + begin + start * dtype.itemsize * math.prod(shape[1:]))
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
        header: dict[str, Any] = {_FACTS: {CHECKSUM: STAMP_HERE, "facts": json.dumps(self._facts, sort_keys=True)}}
        for name, (begin, dtype, shape) in self._arrays.items():
            header[name] = {"dtype": dtype.str, "shape": shape, "data_offsets": [begin]}
        return json.dumps(header).encode()


@contextmanager
def array_writer(
    path: Path, arrays: Mapping[str, tuple[Any, tuple[int, ...]]], facts: Any = None
) -> Iterator[ArrayWriter]:
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
    with array_writer(path, {name: (each.dtype, each.shape) for name, each in arrays.items()}, facts) as writer:
        for name, each in arrays.items():
            writer.write(name, 0, each)


def write_arrow(path: Path, table: pa.Table) -> None:
    """Writes a table as a file of Arrow, with its metadata.

    Raises:
        DiskFullError: no space is left.
    """
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), CHECKSUM: STAMP_HERE})
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    write_bytes(path, stamped(sink.getvalue().to_pybytes()))


def read_arrow(path: Path) -> pa.Table:
    """Reads a file of `write_arrow`, mapped: the pages of what is not looked at cost no memory."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
