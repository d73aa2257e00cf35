"""The reader of LMDB files finds what the library finds."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.features.importers.uniter.lmdb_file import read_values

KEYS = st.binary(min_size=1, max_size=40)
VALUES = st.one_of(st.binary(max_size=60), st.integers(0, 20_000).map(lambda length: bytes([length % 251]) * length))


def found_in(path: Path) -> dict[bytes, bytes]:
    content = path.read_bytes()
    return {value.key: content[value.offset : value.offset + value.length] for value in read_values(path)}


def assert_same(folder: Path) -> None:
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
        expected = [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
    assert list(found_in(folder / "data.mdb").items()) == expected


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(KEYS, st.none() | VALUES, max_size=30), min_size=1, max_size=4), st.integers(0, 10**9))
def test_entries_are_those_of_the_library(
    tmp_path: Path, transactions: list[dict[bytes, bytes | None]], folder: int
) -> None:
    """Several transactions write, overwrite and delete, so that both meta pages and freed pages are there."""
    path = tmp_path / str(folder)
    with lmdb.open(str(path), map_size=1 << 25, sync=False) as environment:
        for changes in transactions:
            with environment.begin(write=True) as transaction:
                for key, value in changes.items():
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
    assert_same(path)


@pytest.mark.parametrize("writemap", [False, True])
def test_trees_of_three_levels(tmp_path: Path, writemap: bool) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26, sync=False, writemap=writemap) as environment:
        with environment.begin(write=True) as transaction:
            for number in range(20_000):
                transaction.put(b"%0200d" % number, b"%d" % number)
        assert environment.stat()["depth"] >= 3
    assert_same(tmp_path)
    found = found_in(tmp_path / "data.mdb")
    assert len(found) == 20_000
    assert found[b"%0200d" % 777] == b"777"


def test_a_value_that_ends_beyond_the_file_is_an_error(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"long", bytes(range(256)) * 1000)
    assert found_in(tmp_path / "data.mdb") == {b"long": bytes(range(256)) * 1000}
    content = (tmp_path / "data.mdb").read_bytes()
    (tmp_path / "data.mdb").write_bytes(content[:-8192])
    with pytest.raises(DataError, match="the value of b'long' ends beyond its place"):
        list(read_values(tmp_path / "data.mdb"))


def test_other_databases_are_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=2) as environment:
        named = environment.open_db(b"inner")
        with environment.begin(write=True) as transaction:
            transaction.put(b"a", b"b", db=named)
    with pytest.raises(DataError, match=r"data\.mdb is not a whole LMDB database \(it has a database in the database"):
        list(read_values(tmp_path / "data.mdb"))
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(DataError, match="it does not start with a page of one"):
        list(read_values(tmp_path / "other"))
