"""Files of tables, opened in one way: CSV and JSON lines, and Parquet and Arrow, whose photographs are not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.datasets.archives import ARROW, PARQUET, naming, open_cells, picture_columns
from itrpipe.datasets.source_files import OBJECT, rows

if TYPE_CHECKING:
    import pyarrow as pa  # large, and plans list the files of tables

_BYTES_OF_NULL = 1024
"""More than a row without a value takes, with its share of the headers of pages."""
_BYTES, _PATH = "bytes", "path"
"""Fields of a photograph, as the library `datasets` and the Hub write it."""


class TextTable:
    """A table of text; of JSON lines its columns are the keys of all objects.

    Attributes:
        names: of the columns; none where there is no row.
        pictures: columns that hold bytes; true where a path stands beside them.
        unit: name of its rows in messages.
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
        self.names = list(names)

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
        with naming(path):
            self._table = open_cells(path)
        self.names = self._table.schema.names
        self.pictures = picture_columns(self._table.schema)

    def names_files(self, column: str) -> bool:
        """Return whether a column holds the paths of photographs, and not, as its first piece tells, their bytes."""
        if column not in self.pictures:
            return True
        if not self.pictures[column]:
            return False
        leaf = f"{column}.{_BYTES}"
        pieces = len(self._table.starts) - 1
        if pieces and self.path.suffix.lower() == PARQUET:
            import pyarrow.parquet as pq

            # The headers alone tell that bytes are there if they are many.
            group = pq.read_metadata(self.path).row_group(0)
            size = 0
            for place in range(group.num_columns):
                chunk = group.column(place)
                if chunk.path_in_schema == leaf:
                    size += chunk.total_uncompressed_size
            if size > _BYTES_OF_NULL * group.num_rows:
                return False
        for piece in range(pieces):
            with naming(self.path):
                cells = self._table.read(leaf, piece)
            if cells.null_count < len(cells):
                return _field(cells, _BYTES).null_count == len(cells)
        return False

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the number of each row, from 0, and its values; of a photograph the path, or "" where it has none.

        Raises:
            DataError: the file is damaged.
        """
        for piece, start in enumerate(self._table.starts[:-1]):
            with naming(self.path):
                values = [self._values(name, piece) for name in columns]
            for number, row in enumerate(zip(*values, strict=True), start=start):
                yield str(number), dict(zip(columns, row, strict=True))

    def _values(self, name: str, piece: int) -> list[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._table
        if name not in self.pictures:
            return table.read(name, piece).to_pylist()
        if not self.pictures[name]:
            return [""] * (table.starts[piece + 1] - table.starts[piece])
        cells = table.read(f"{name}.{_PATH}", piece)
        paths = _field(cells, _PATH)
        no_photograph = pa.scalar(None, paths.type)
        return pc.call_function("if_else", [cells.is_valid(), paths.fill_null(""), no_photograph]).to_pylist()


def open_table(path: Path) -> TextTable | ColumnTable:
    """Open a table by the ending of its name."""
    if path.suffix.lower() in (PARQUET, ARROW):
        return ColumnTable(path)
    return TextTable(path)


def _field(cells: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.call_function("struct_field", [cells], pc.StructFieldOptions([name]))
