"""Parquet files of artifacts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.tables import TableFile, read_table, table_writer, write_table

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int32())])
TABLE = pa.table({"name": ["a", "b", "c"], "count": [1, 2, 3]}, schema=SCHEMA)
REMEDY = "run `itrpipe make` again"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two row groups that keeps a fact."""
    with table_writer(tmp_path / "t.parquet", SCHEMA) as writer:
        writer.write_table(TABLE, row_group_size=2)
        writer.add_key_value_metadata({"drawn": "5"})
    return tmp_path / "t.parquet"


def test_a_table_is_read_whole_and_by_row_groups(path: Path) -> None:
    file = TableFile(path, SCHEMA, REMEDY)
    assert file.read().equals(TABLE)
    assert file.schema == SCHEMA
    assert file.facts == {"drawn": "5"}
    assert len(file) == 3
    assert file.sizes() == [2, 1]
    assert [each["name"].to_pylist() for each in file.row_groups(["name"])] == [["a", "b"], ["c"]]
    assert file.read(["count"], 1).to_pydict() == {"count": [3]}
    assert [each.to_pydict() for each in file.batches(2, ["count"])] == [{"count": [1, 2]}, {"count": [3]}]
    assert read_table(path, ("count",), REMEDY).equals(TABLE)
    assert read_table(path, SCHEMA, REMEDY, ["count"]).column_names == ["count"]


def test_bytes_are_those_of_one_call_to_the_library(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "theirs", compression="zstd", write_page_checksum=True)
    write_table(tmp_path / "ours", TABLE)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[pq.read_metadata(path).row_group(1).column(0).data_page_offset + 30] ^= 1
    path.write_bytes(content)


HAS = "name string, count int32"


@pytest.mark.parametrize(
    ("spoil", "expected", "error", "value"),
    [
        (Path.unlink, SCHEMA, MissingInputError, "t.parquet is not there"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), SCHEMA, DataError, "cannot be read as a table"),
        (_flip, SCHEMA, DataError, "cannot be read as a table"),
        *((Path, other, DataError, HAS) for other in (pa.schema([*SCHEMA][:1]), pa.schema([*SCHEMA][::-1]))),
        (Path, ("name", "length"), DataError, HAS),
    ],
)
def test_refusals(path: Path, spoil: Callable[[Path], object], expected: Any, error: type, value: str) -> None:
    spoil(path)
    with pytest.raises(error, match=f"^(?=.*{path}).*{value}.*; {REMEDY}$"):
        read_table(path, expected, REMEDY)
