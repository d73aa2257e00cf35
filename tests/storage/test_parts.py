"""Files of parts: what is written is read again, and what is not as it was written is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.storage.disk import AGAIN, check_stamp
from itrpipe.storage.parts import ArrayFile, array_writer, read_arrow, write_arrays, write_arrow

ARRAYS = {
    "flags": np.array([True, False, True]),
    "halves": np.linspace(0, 1, 24, dtype=np.float16).reshape(3, 4, 2),
    "none": np.zeros((0, 7), dtype=np.float32),
    "big": np.arange(3, dtype=">i4"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "000001.arrays"


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
    with pytest.raises(DataError, match=r"000001\.arrays cannot be read as a file of arrays"):
        ArrayFile(path)


def test_tables_are_read_as_they_were_written(path: Path) -> None:
    table = pa.table({"file": ["a", "é", None], "jpeg": pa.array([b"\0", b"", None], pa.binary()), "n": [1, 2, 3]})
    for rows in (3, 0):
        write_arrow(path, table.slice(0, rows))
        check_stamp(path, AGAIN)
        assert read_arrow(path).replace_schema_metadata(None) == table.slice(0, rows)
