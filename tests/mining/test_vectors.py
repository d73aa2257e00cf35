"""Rows where they lie, against numpy; stripes that hold every row once."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.mining.vectors import HeldRows, JoinedRows, Rows, Stripes, rows_at_once, slices, stored, take
from itrpipe.storage.arrays import StoredRows
from itrpipe.storage.parts import ArrayFile, write_arrays

VALUES = np.random.default_rng(0).standard_normal((23, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module", params=["held", "npy", "arrays", "joined", "joined of one"])
def rows(request: pytest.FixtureRequest, folder: Path) -> Rows:
    """The values, kept in every way."""
    np.save(folder / "values.npy", VALUES)
    write_arrays(folder / "values.arrays", {"before": np.arange(5), "values": VALUES})
    npy = stored(np.load(folder / "values.npy", mmap_mode="r"))
    assert isinstance(npy, StoredRows)
    np.save(folder / "first.npy", VALUES[:9])
    parts: list[Rows] = [stored(np.load(folder / "first.npy", mmap_mode="r")), HeldRows(VALUES[9:9])]
    ways: dict[str, Rows] = {
        "held": HeldRows(VALUES),
        "npy": npy,
        "arrays": ArrayFile(folder / "values.arrays")["values"],
        "joined": JoinedRows([*parts, HeldRows(VALUES[9:10]), HeldRows(VALUES[10:])]),
        "joined of one": JoinedRows([npy]),
    }
    return ways[request.param]


def test_any_slice_is_that_of_the_array(rows: Rows) -> None:
    assert rows.shape == VALUES.shape
    for start in range(24):
        for stop in range(start, 26):
            found = rows.read(start, stop)
            np.testing.assert_array_equal(found, VALUES[start:stop])
            assert (found.dtype, found.shape[1:]) == (np.float32, (3,))


def test_rows_are_the_same_in_another_process(rows: Rows) -> None:
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rows)).read(3, 17), VALUES[3:17])


@pytest.mark.parametrize(
    "wanted",
    [[], [0], [22], [0, 1, 2], [3, 5, 6, 7, 21, 22], [9, 8, 7], [4, 4, 4], [22, 0, 8, 9, 0, 10, 8], [*range(23)]],
    ids=str,
)
def test_some_rows_come_in_the_order_asked_for(rows: Rows, wanted: list[int]) -> None:
    found = take(rows, np.array(wanted, dtype=np.int64))
    np.testing.assert_array_equal(found, VALUES[wanted].reshape(-1, 3))
    assert found.dtype == np.float32


def test_a_row_may_be_a_number(tmp_path: Path) -> None:
    np.save(tmp_path / "owners.npy", np.arange(7)[::-1])
    owners = stored(np.load(tmp_path / "owners.npy", mmap_mode="r"))
    assert owners.shape == (7,)
    assert owners.read(2, 5).tolist() == [4, 3, 2]
    assert take(owners, np.array([6, 0, 1])).tolist() == [0, 6, 5]
    assert JoinedRows([owners, HeldRows(np.array([-1, -1]))]).read(5, 9).tolist() == [1, 0, -1, -1]


def test_what_is_in_memory_stays_as_it_is() -> None:
    assert stored(VALUES) == HeldRows(VALUES)


def test_a_file_that_ends_before_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "values.npy"
    np.save(path, VALUES)
    found = stored(np.load(path, mmap_mode="r"))
    path.write_bytes(path.read_bytes()[:-4])
    np.testing.assert_array_equal(found.read(0, 22), VALUES[:22])
    with pytest.raises(DataError, match="ends before row 23"):
        found.read(20, 23)


def test_nothing_of_a_file_stays_open_or_mapped(tmp_path: Path) -> None:
    path = tmp_path / "values.npy"
    np.save(path, VALUES)
    found = stored(np.load(path, mmap_mode="r")).read(0, 23)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert found.flags.owndata or found.base is not None
    found[0] = 7  # a copy
    np.testing.assert_array_equal(np.load(path), VALUES)


@given(rows=st.integers(1, 200), count=st.integers(1, 30), run=st.integers(1, 20))
def test_stripes_hold_every_row_once_and_know_its_place(rows: int, count: int, run: int) -> None:
    stripes = Stripes(rows, count, run)
    values = np.random.default_rng(rows).standard_normal((rows, 2))
    found = [stripes.of(stripe) for stripe in range(count)]
    assert sorted(np.concatenate(found).tolist()) == list(range(rows))
    for number, own in enumerate(found):
        assert own.dtype == np.int64
        assert (np.diff(own) > 0).all()
        if len(own):
            np.testing.assert_array_equal(stripes.read(HeldRows(values), number), values[own])
        stripe, place = stripes.place(own)
        assert (stripe == number).all()
        np.testing.assert_array_equal(place, np.arange(len(own)))
    stripe, place = stripes.place(np.arange(rows))
    assert [int(found[s][p]) for s, p in zip(stripe, place, strict=True)] == list(range(rows))


@given(count=st.integers(0, 50), at_once=st.integers(1, 60))
def test_slices_cover_all_rows_in_order(count: int, at_once: int) -> None:
    found = slices(count, at_once)
    assert [row for part in found for row in range(count)[part]] == list(range(count))
    assert all(0 < part.stop - part.start <= at_once for part in found)


def test_a_slice_holds_about_so_many_bytes() -> None:
    assert rows_at_once(HeldRows(np.zeros((3, 1_000), np.float32)), 40_000) == 10
    assert rows_at_once(HeldRows(np.zeros(3, np.int32)), 40) == 10
    assert rows_at_once(HeldRows(np.zeros((3, 1_000), np.float32)), 40) == 1
