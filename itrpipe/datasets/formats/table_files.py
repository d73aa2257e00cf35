"""Files of tables, opened in one way: CSV and JSON lines, and Parquet and Arrow, whose photographs are not read."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.datasets.archives import ARROW, PARQUET
from itrpipe.datasets.source_files import OBJECT, rows
from itrpipe.errors import DataError
from itrpipe.storage.disk import reading

_ROWS = 4096
"""Rows that are read at once."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_FILE_MAGIC = b"ARROW1"
_AGAIN = "fetch or make it again"
_BYTES, _PATH = "bytes", "path"
"""Fields of a photograph, as the library `datasets` and the Hub write it."""


class TextTable:
    """A table of text; of JSON lines its columns are the keys of all objects.

    Attributes:
        names: of the columns; none where there is no row.
        pictures: columns that hold bytes; true where a path stands beside them.
        unit: what its rows are called.
    """

    unit = "line"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pictures: dict[str, bool] = {}
        names = {}
        for _, row in rows(path, OBJECT):
            names.update(dict.fromkeys(row))
            if path.suffix.lower() != ".jsonl":
                break
        self.names = [*names]

    def names_files(self, column: str) -> bool:
        """Return whether a column holds the paths of photographs, and not the photographs themselves."""
        return True

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the line of each row and its values; None for one that is not there.

        Raises:
            DataError: the file is malformed.
        """
        for line, row in rows(self.path, OBJECT):
            yield line, {name: row.get(name) for name in columns}


class ColumnTable:
    """One file of Parquet, or of Arrow, as `datasets` writes it; the attributes are those of `TextTable`.

    Raises:
        DataError: it is damaged or not whole.
        UnavailableError: it cannot be read now.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_parquet = path.suffix.lower() == PARQUET
        with reading(path, "a table", _AGAIN):
            schema = pq.read_schema(path) if self._is_parquet else _arrow_schema(path)
        self.names = schema.names
        self.pictures: dict[str, bool] = {}
        for field in schema:
            if pa.types.is_struct(field.type) and field.type.get_field_index(_BYTES) >= 0:
                self.pictures[field.name] = field.type.get_field_index(_PATH) >= 0
            elif pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
                self.pictures[field.name] = False

    def names_files(self, column: str) -> bool:
        """Return whether a column holds the paths of photographs, and not the photographs themselves."""
        if column not in self.pictures:
            return True
        if not self.pictures[column]:
            return False
        with reading(self.path, "a table", _AGAIN):
            if self._is_parquet:
                return _all_null(pq.read_metadata(self.path), f"{column}.{_BYTES}")
            sizes = []
            nulls = []
            for batch in _arrow_batches(self.path):
                sizes.append(len(batch))
                nulls.append(batch.column(column).field(_BYTES).null_count)
        return 0 < sum(sizes) == sum(nulls)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the number of each row, from 0, and its values; of a photograph the path, or "" where it has none.

        Raises:
            DataError: the file is damaged.
        """
        start = 0
        with reading(self.path, "a table", _AGAIN):
            for batch in self._batches(columns):
                values = [self._values(batch, name) for name in columns]
                for number, row in enumerate(zip(*values, strict=True), start=start):
                    yield str(number), dict(zip(columns, row, strict=True))
                start += len(batch)

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if not self._is_parquet:
            return _arrow_batches(self.path)
        leaves = []
        for name in columns:
            if name not in self.pictures:
                leaves.append(name)
            elif self.pictures[name]:
                leaves.append(f"{name}.{_PATH}")
        return pq.ParquetFile(self.path).iter_batches(_ROWS, columns=leaves)

    def _values(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        if name not in self.pictures:
            return batch.column(name).to_pylist()
        if not self.pictures[name]:
            return [""] * len(batch)
        column = batch.column(name)
        values = column.field(_PATH).fill_null("").to_pylist()
        if column.null_count:
            for row in column.is_null().to_numpy(zero_copy_only=False).nonzero()[0]:
                values[row] = None
        return values


def open_table(path: Path) -> TextTable | ColumnTable:
    """Open a table by the ending of its name."""
    if path.suffix.lower() in (PARQUET, ARROW):
        return ColumnTable(path)
    return TextTable(path)


def _arrow_schema(path: Path) -> pa.Schema:
    with path.open("rb") as stream:
        is_stream = stream.read(len(_FILE_MAGIC)) != _FILE_MAGIC
        stream.seek(max(0, path.stat().st_size - len(_END_OF_STREAM)))
        # Arrow itself takes what is cut off between two batches for a whole stream.
        if is_stream and stream.read() != _END_OF_STREAM:
            raise DataError(f"{path} ends before its table does; {_AGAIN}")
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).schema if is_stream else pa.ipc.open_file(source).schema


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file of Arrow, mapped: what is not looked at is not read."""
    with pa.memory_map(str(path)) as source:
        if source.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            source.seek(0)
            yield from pa.ipc.open_stream(source)


def _all_null(metadata: pq.FileMetaData, leaf: str) -> bool:
    """Return whether a column of a Parquet file has no value, as far as its statistics tell."""
    nulls = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            if chunk.path_in_schema == leaf and chunk.statistics and chunk.statistics.has_null_count:
                nulls += chunk.statistics.null_count
    return 0 < metadata.num_rows == nulls
