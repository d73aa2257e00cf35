"""Files of parts: what is written is read again, and what is not as it was written is noticed."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError, DiskFullError
from itrpipe.storage.disk import check_stamp
from itrpipe.storage.parts import ArrayFile, ArrayWriter, read_arrow, write_arrays, write_arrow
from tests.engine.toy import Toy

TYPES = (np.bool_, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64)
ARRAYS = {
    "flags": np.array([True, False, True]),
    "numbers": np.arange(6, dtype=np.int64).reshape(3, 2) - 3,
    "halves": np.linspace(0, 1, 24, dtype=np.float16).reshape(3, 4, 2),
    "none": np.zeros((0, 7), dtype=np.float32),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "000001.arrays"


def check(path: Path) -> None:
    check_stamp(path, "make it again")


def equal(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


# Arrays


def test_arrays_are_read_as_they_were_written(path: Path) -> None:
    facts = {"failed": {"3": "é [broken]"}, "count": 2}
    write_arrays(path, ARRAYS, facts)
    check(path)
    file = ArrayFile(path)
    assert file.facts == facts
    assert file.shapes == {name: each.shape for name, each in ARRAYS.items()}
    found = file.all()
    assert all(equal(found[name], each) for name, each in ARRAYS.items())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0,), (5,), (3, 0), (0, 4), (2, 3, 4)])
def test_every_type_and_shape_is_kept(path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    array = (np.random.default_rng(0).random(shape) * 9).astype(dtype)
    write_arrays(path, {"before": np.ones(3, np.uint8), "array": array})
    check(path)
    assert equal(ArrayFile(path).read("array"), array)
    assert ArrayFile(path).facts is None


def test_a_file_without_arrays_has_facts_alone(path: Path) -> None:
    write_arrays(path, {}, {"7": "truncated"})
    check(path)
    assert (ArrayFile(path).all(), ArrayFile(path).facts) == ({}, {"7": "truncated"})


@given(st.permutations(range(4)), st.integers(0, 12), st.integers(0, 12))
def test_rows_are_written_in_any_order_and_read_from_anywhere(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], start: int, stop: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "000000.arrays"
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    with ArrayWriter(path, {"rows": (np.float32, rows.shape)}) as writer:
        for block in order:
            writer.write("rows", 3 * block, rows[3 * block : 3 * block + 3])
    check(path)
    assert equal(ArrayFile(path).read("rows", start, stop), rows[start : max(start, stop)])


def test_what_comes_in_another_type_or_order_of_bytes_is_turned_into_that_of_the_file(path: Path) -> None:
    with ArrayWriter(path, {"rows": (np.int64, (4,))}) as writer:
        writer.write("rows", 0, np.array([1, 2], dtype=">i4"))
        writer.write("rows", 2, np.array([[3, 0], [4, 0]], dtype=np.int16)[:, 0])
    assert equal(ArrayFile(path).read("rows"), np.array([1, 2, 3, 4]))


@pytest.mark.parametrize("facts", [None, {"much": "x" * 5_000}])
def test_an_array_grows_by_rows_behind_the_others(path: Path, facts: Any) -> None:
    shapes = {"first": (np.int32, (2,)), "last": (np.float16, (0, 3))}
    rows = np.arange(3_000, dtype=np.float16).reshape(1_000, 3)
    with ArrayWriter(path, shapes, facts) as writer:
        for start in range(0, 1_000, 300):
            writer.append("last", rows[start : start + 300])
        writer.write("first", 0, np.array([4, 5]))
    check(path)
    file = ArrayFile(path)
    assert equal(file.read("last"), rows)
    assert equal(file.read("first"), np.array([4, 5], dtype=np.int32))
    assert file.facts == facts


def test_equal_arrays_make_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_arrays(tmp_path / name, ARRAYS, {"b": 1, "a": 2})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# Writing that ends early


def test_an_interrupted_writer_leaves_nothing(path: Path) -> None:
    path.write_bytes(b"of an earlier run")
    with pytest.raises(ValueError, match="invalid literal"), ArrayWriter(path, {"rows": (np.int64, (4,))}) as writer:
        writer.write("rows", 0, np.array(["no number"]))
    assert path.read_bytes() == b"of an earlier run"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["pwrite", "ftruncate", "fsync", "replace"])
def test_a_full_disk_is_one_line_and_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def refuse(*arguments: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    opened = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(DiskFullError, match=r"no space left while writing .*000001\.arrays"):
        write_arrays(path, ARRAYS)
    monkeypatch.undo()
    assert not list(path.parent.iterdir())
    assert len(os.listdir("/proc/self/fd")) == opened


# Damage


class Tables(Toy):
    suffix = ".arrow"


@pytest.fixture(params=["arrays", "table"])
def stored(path: Path, request: pytest.FixtureRequest) -> tuple[bytes, Callable[[], Any]]:
    """The bytes of a small file and what checks it."""
    if request.param == "arrays":
        write_arrays(path, {"flags": ARRAYS["flags"], "numbers": ARRAYS["numbers"]}, {"a": "b"})
    else:
        write_arrow(path, pa.table({"file": ["a", "b"], "jpeg": pa.array([b"", b"xyz"], pa.binary())}), {"a": "b"})
    check_it = Toy(1).keeps if request.param == "arrays" else Tables(1).keeps
    check_it(path)
    return path.read_bytes(), lambda: check_it(path)


def test_a_flipped_bit_is_noticed_wherever_it_is(path: Path, stored: tuple[bytes, Callable[[], Any]]) -> None:
    content, check_it = stored
    draw = random.Random(0)
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(flipped))
        with pytest.raises(DataError, match=r"checksum.*remove it and run"):
            check_it()


@pytest.mark.parametrize("keep", [0, 5, 8, 40, 0.5, -1])
def test_a_truncated_file_is_noticed(path: Path, stored: tuple[bytes, Callable[[], Any]], keep: float) -> None:
    content, check_it = stored
    path.write_bytes(content[: int(keep * len(content)) if keep == 0.5 else int(keep)])
    with pytest.raises(DataError, match="checksum"):
        check_it()


@pytest.mark.parametrize("keep", [0, 5, 8, 40, -1])
def test_a_file_of_arrays_that_was_not_checked_is_refused_where_it_is_truncated(path: Path, keep: int) -> None:
    write_arrays(path, ARRAYS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"000001\.arrays.* (is no file of arrays|ends before)"):
        ArrayFile(path).all()


@pytest.mark.parametrize("header", [b"[]", b"7", b"null", b"{}", b'{"__metadata__": {"facts": "1"}, "a": []}', b"\xff"])
def test_other_files_are_no_files_of_arrays(path: Path, header: bytes) -> None:
    for length in (len(header), 2**63):
        path.write_bytes(length.to_bytes(8, "little") + header)
        with pytest.raises(DataError, match="is no file of arrays"):
            ArrayFile(path)


# Tables


def test_tables_are_read_as_they_were_written(path: Path) -> None:
    table = pa.table({"file": ["a", "é", None], "jpeg": pa.array([b"\0", b"", None], pa.binary()), "n": [1, 2, 3]})
    write_arrow(path, table, {"version": "rules/1"})
    assert Tables(1).keeps(path)
    found = read_arrow(path)
    assert found.replace_schema_metadata(None) == table
    assert found.schema.metadata[b"version"] == b"rules/1"
    write_arrow(path, table.slice(0, 0))
    assert (read_arrow(path).num_rows, read_arrow(path).schema.names) == (0, ["file", "jpeg", "n"])
    assert list(path.parent.iterdir()) == [path]
