"""Files of tables and of parts: what is written is read again, and what is not as it was written is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.arrays import ArrayFile, Ragged, array_writer, write_arrays
from itrpipe.storage.disk import AGAIN, check_stamp
from itrpipe.storage.tables import TableFile, read_arrow, read_table, table_writer, write_arrow, write_table
from tests.engine.toy import Toy

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int32())])
TABLE = pa.table({"name": ["a", "b", "c"], "count": [1, 2, 3]}, schema=SCHEMA)
REMEDY = "run `itrpipe make` again"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table of two row groups with metadata; files of parts take its place."""
    with table_writer(tmp_path / "t.parquet", SCHEMA) as writer:
        writer.write_table(TABLE, row_group_size=2)
        writer.add_key_value_metadata({"drawn": "5"})
    return tmp_path / "t.parquet"


def test_a_table_is_read_whole_and_by_row_groups(path: Path) -> None:
    file = TableFile(path, SCHEMA, REMEDY)
    assert len(file) == 3
    assert [each["name"].to_pylist() for each in file.row_groups(["name"])] == [["a", "b"], ["c"]]
    assert file.read(["count"], 1).to_pydict() == {"count": [3]}
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


# Parts

ARRAYS = {
    "flags": np.array([True, False, True]),
    "halves": np.linspace(0, 1, 24, dtype=np.float16).reshape(3, 4, 2),
    "none": np.zeros((0, 7), dtype=np.float32),
    "big": np.arange(3, dtype=">i4"),
}


def equal(found: np.ndarray, wanted: np.ndarray) -> bool:
    return (found.dtype, found.shape) == (wanted.dtype, wanted.shape) and found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("facts", [None, {"failed": {"3": "é [broken]"}, "much": "x" * 5_000}])
@pytest.mark.parametrize("arrays", [ARRAYS, {}])
def test_arrays_are_read_as_they_were_written(path: Path, arrays: dict[str, np.ndarray], facts: Any) -> None:
    write_arrays(path, arrays, facts)
    check_stamp(path, AGAIN)
    file = ArrayFile(path)
    assert (file.facts, list(file)) == (facts, list(arrays))
    for name, rows in file.items():
        assert equal(rows.read(), arrays[name].astype(arrays[name].dtype.newbyteorder("<")))


@given(st.permutations(range(4)), st.booleans(), st.integers(0, 12), st.integers(0, 12))
def test_rows_are_written_in_any_order_and_read_from_anywhere(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], again: bool, start: int, stop: int
) -> None:
    """Also one block a second time, and rows of another type."""
    path = tmp_path_factory.mktemp("rows") / "000000.arrays"
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    grown = np.arange(1200, dtype=np.int16).reshape(400, 3)
    with array_writer(path, {"rows": (np.float32, rows.shape), "last": (np.int16, (0, 3))}) as writer:
        for block in order + order[:again]:
            writer.write("rows", 3 * block, (rows if again else rows.astype(">i8"))[3 * block : 3 * block + 3])
        for place in range(0, 400, 100):
            writer.append("last", grown[place : place + 100])
    check_stamp(path, AGAIN)
    file = ArrayFile(path)
    assert equal(file["rows"].read(start, stop), rows[start : max(start, stop)])
    assert equal(file["last"].read(), grown)


HEADERS = (b"[]", b"7", b"{}", b'{"__metadata__": {"facts": "1"}, "a": []}', b"\xff")


@pytest.mark.parametrize(
    "content", [b"", b"12345", (2**63).to_bytes(8, "little") + b"{}", *(b"\x29" + bytes(7) + each for each in HEADERS)]
)
def test_other_files_are_no_files_of_arrays(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path} cannot be read as a file of arrays"):
        ArrayFile(path)


def test_tables_are_read_as_they_were_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "suffix", ".arrow")
    large = bytes(5 << 20)
    table = pa.table({"file": ["a", "é", None], "jpeg": pa.array([large, b"", None], pa.binary()), "n": [1, 2, 3]})
    for rows in (3, 0):
        write_arrow(path, table.slice(0, rows))
        assert Toy(0).keeps(path)
        assert read_arrow(path).replace_schema_metadata(None) == table.slice(0, rows)


LISTS = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6)


@given(LISTS, st.data())
def test_equals_a_loop_over_lists(lists: list[list[int]], data: st.DataObject) -> None:
    found = Ragged.of_lists(lists)
    assert found.counts.tolist() == [len(each) for each in lists]
    assert [list(each) for each in found] == lists
    assert found.owners().tolist() == [row for row, each in enumerate(lists) for _ in each]
    assert found.places().tolist() == [place for each in lists for place in range(len(each))]
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8)) if lists else []
    taken = found.take(np.array(rows, dtype=np.int64))
    assert [each.tolist() for each in taken] == [lists[row] for row in rows]
    min_width = data.draw(st.integers(0, 6))
    width = max(min_width, *map(len, lists), 0)
    padded = [each + [-1] * (width - len(each)) for each in lists]
    assert found.padded(-1, min_width).tolist() == padded


@given(st.lists(st.integers(0, 4), max_size=20))
def test_values_of_owners_are_sorted_into_their_lists(owners: list[int]) -> None:
    values = np.arange(len(owners)) * 10
    found = Ragged.of_owners(np.array(owners, dtype=np.int64), 5, values)
    assert [each.tolist() for each in found] == [
        [value for value, each in zip(values.tolist(), owners, strict=True) if each == owner] for owner in range(5)
    ]
    own = Ragged.of_owners(np.array(owners, dtype=np.int64), 5)
    assert (own.values * 10 == found.values).all()


def test_types_and_further_dimensions_are_kept() -> None:
    table = Ragged.of_counts(np.array([1, 0, 2], dtype=np.int8), np.arange(6, dtype=np.float32).reshape(3, 2))
    assert table.padded().tolist() == [[[0, 1], [0, 0]], [[0, 0], [0, 0]], [[2, 3], [4, 5]]]
    assert table.padded().dtype == np.float32
    assert table.offsets.dtype == np.int64
    assert Ragged.of_counts(np.array([2, 1])).values.tolist() == [0, 1, 2]
    words = Ragged.of_lists([["ab"], [], ["c", "def"]], dtype="<U3")
    assert words.values.dtype == "<U3"
    assert words[-1].tolist() == ["c", "def"]
    assert Ragged.of_lists([]).values.dtype == np.int64
