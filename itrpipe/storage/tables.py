"""Tables in files: Parquet of artifacts, with one line where something is wrong with one, and Arrow of parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.disk import CHECKSUM, STAMP_HERE, on_disk, reading, stamped, write_bytes


class TableFile:
    """A Parquet file that is read a row group at a time.

    Args:
        path: the file.
        expected: its schema, or names of columns that it has at least.
        remedy: advice for the message, if the file is not there, damaged or of another version.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is damaged or has other columns.
        UnavailableError: it cannot be read now.
    """

    def __init__(self, path: Path, expected: pa.Schema | Sequence[str], remedy: str) -> None:
        if not path.is_file():
            raise MissingInputError(f"{path} is not there; {remedy}")
        self.path = path
        self._remedy = remedy
        with reading(self.path, "a table", self._remedy):
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            schema = self._file.schema_arrow.remove_metadata()
        if isinstance(expected, pa.Schema):
            is_expected = schema.equals(expected)
        else:
            is_expected = set(expected).issubset(schema.names)
        if not is_expected:
            columns = ", ".join(f"{field.name} {field.type}" for field in schema)
            raise DataError(f"{path} has other columns than this version writes ({columns}); {remedy}")

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    def read(self, columns: Sequence[str] | None = None, group: int | None = None) -> pa.Table:
        """Read all rows or those of one row group, of all columns unless some are named.

        Raises:
            DataError: a page is damaged.
        """
        with reading(self.path, "a table", self._remedy):
            if group is None:
                return self._file.read(columns)
            return self._file.read_row_group(group, columns)

    def row_groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the row groups in order; see `read`."""
        for number in range(self._file.num_row_groups):
            yield self.read(columns, number)


def read_table(
    path: Path, expected: pa.Schema | Sequence[str], remedy: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read a whole file, of all columns unless some are named; see `TableFile`."""
    return TableFile(path, expected, remedy).read(columns)


@contextlib.contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Yield a writer of one Parquet file, closed in the end.

    Page checksums let a reader find a flipped bit, which would read as another caption, also outside of an artifact.

    Raises:
        DiskFullError: no space is left.
    """
    with on_disk(path), pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        yield writer


def write_table(path: Path, table: pa.Table) -> None:
    """Write a whole table; see `table_writer`."""
    with table_writer(path, table.schema) as writer:
        writer.write_table(table)


def rows_of(values: pa.Array | pa.ChunkedArray, column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return the row of each value in a column, int64; -1 where it is not there."""
    rows = pc.call_function("index_in", [values], pc.SetLookupOptions(value_set=column))
    return np.asarray(rows.fill_null(-1), dtype=np.int64)


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write a table as a file of Arrow, with its metadata and a stamp.

    Raises:
        DiskFullError: no space is left.
    """
    metadata = dict(table.schema.metadata or {})
    metadata[CHECKSUM] = STAMP_HERE
    table = table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    write_bytes(path, stamped(sink.getvalue().to_pybytes()))


def read_arrow(path: Path) -> pa.Table:
    """Map a file of `write_arrow`: pages that nobody looks at cost no memory."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
