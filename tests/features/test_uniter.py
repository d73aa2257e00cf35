"""UNITER's databases: which regions are taken, the reader of LMDB beside the library, and values that are refused."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import lmdb
import lz4.frame
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, ItrpipeError, MissingInputError
from itrpipe.features.importers.uniter.declaration import Uniter
from itrpipe.features.importers.uniter.importer import UniterSource, lmdb_values, open_source
from tests.features.layouts import Trap, archived, archives, database, framed, images, of_uniter, packed


def opened(path: Path, smallest: int = 1, largest: int = 100, score: float = 0.2) -> UniterSource:
    return open_source(path, Uniter(kind="uniter", min_regions=smallest, max_regions=largest, min_score=score))


def written(folder: Path, value: Any) -> Path:
    """A database of two images, the second of which has this value, or these arrays in place of its own."""
    one, other = (of_uniter(image) for image in images()[:2])
    with lmdb.open(str(folder)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"1", packed(one))
        transaction.put(b"2", packed({**other, **value}) if isinstance(value, dict) else value)
    return folder


def read(source: UniterSource, entries: list[int]) -> dict[str, np.ndarray]:
    return source.read(np.array(entries), np.repeat([[256, 512]], len(entries), axis=0))


@pytest.mark.parametrize(("smallest", "largest", "score"), [(1, 100, 0.2), (2, 3, 0.6), (1, 2, 0.99), (9, 9, 0.0)])
def test_the_settings_choose_the_regions(tmp_path: Path, smallest: int, largest: int, score: float) -> None:
    source = opened(database(tmp_path, images()), smallest, largest, score)
    stored = [len(image["regions"]) for image in images()]
    sure = [int((image["scores"] > score).sum()) for image in images()]
    taken = [min(max(smallest, n), largest, most) for n, most in zip(sure, stored, strict=True)]
    assert source.spec.regions == max(taken)
    chosen = f"{min(taken)} to {max(taken)} regions of width 7"
    assert source.summary == f"LMDB, regions surer than {score}: 6 images; {chosen}"
    rows = read(source, list(range(6)))
    assert rows["count"].tolist() == taken
    for row, image, count in zip(rows["regions"], images(), taken, strict=True):
        np.testing.assert_array_equal(row[:count], image["regions"][:count])


def test_without_confidences_all_regions_are_taken(tmp_path: Path) -> None:
    path = archives(tmp_path, images(), lambda image: {"features": image["regions"]})
    assert opened(path, largest=4).summary == ".npz, regions without confidences: 6 images; 1 to 4 regions of width 7"


@pytest.mark.parametrize("up", [0, 1])
def test_uniters_list_of_counts_saves_reading_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, up: int
) -> None:
    (tmp_path / "db").mkdir()
    path = database(tmp_path / "db", images())
    listed, names = [path, tmp_path][up] / "nbb_th0.2_max4_min1.json", opened(path).names
    listed.write_text(json.dumps(dict.fromkeys(names, 3)))
    with monkeypatch.context() as patch:
        patch.setattr(UniterSource, "_count", None)
        assert opened(path, largest=4).spec.regions == 3
    with pytest.raises(DataError, match=names[1]):
        read(opened(path, largest=4), [0, 1])  # which has four
    for text in ("[]", json.dumps({names[0]: 3}), json.dumps(dict.fromkeys(names, "many"))):
        listed.write_text(text)
        with pytest.raises(DataError, match=r"nbb_th.* cannot be read .* remove it"):
            opened(path, largest=4)
    assert opened(path).spec.regions == 5  # that list is not for these settings


NUMBERS = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": (2,), b"data": b"12345678"}
REFUSED = [
    {"features": NUMBERS | {b"kind": b"O", b"data": pickle.dumps(Trap())}},
    {"features": NUMBERS | {b"type": "|O"}},
    {"features": NUMBERS | {b"type": [["a", "<f4"]], b"kind": b"V"}},
    {"features": NUMBERS | {b"type": "f4,f4"}},
    {"features": NUMBERS | {b"shape": (3,)}},
    {"features": NUMBERS | {b"shape": ("2",)}},
    {"features": NUMBERS | {b"nd": False}},
    {"features": np.array([Trap()], dtype=object)},
    {"features": np.zeros((4, 7), "f2")},
    {"features": np.zeros((5, 8), "f2")},
    {"features": np.zeros(5, "f2")},
    {"conf": np.zeros((5, 1), "f2")},
    {"conf": np.zeros(4, "f2")},
    {"norm_bb": np.zeros((5, 4), "f2")},
    {"norm_bb": np.tile(np.array([0.1, 0.2, 0.3, 0.4, 0.4, 0.2], "f2"), (5, 1))},
    {"num_bbox": 4},
    archived({"features": np.array([Trap()], dtype=object)}),
    lz4.frame.compress(packed({"features": np.array([Trap()], dtype=object)})),
    packed({"conf": np.zeros(5, "f2")}),
    packed({}),
    packed([1]),
    *(b"", b"\xc1", b"\x81", b"PK\x03\x04", b"\x04\x22\x4d\x18"),
]


@pytest.mark.parametrize("value", REFUSED, ids=range(len(REFUSED)))
def test_values_of_another_kind_are_refused_and_nothing_is_unpickled(tmp_path: Path, value: Any) -> None:
    with pytest.raises(DataError, match="image '2'") as caught:
        read(opened(written(tmp_path, value), largest=3), [0, 1])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("package", "pack"), [("msgpack", packed), ("lz4.frame", framed)])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, pack: Any) -> None:
    path = database(tmp_path, images(), pack)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingInputError, match=rf"needs {package}: pip install 'itrpipe\[uniter\]'"):
        opened(path)


def assert_as_the_library(folder: Path) -> None:
    with lmdb.open(str(folder), readonly=True, lock=False) as environment, environment.begin() as transaction:
        expected = [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
    assert [(key, place.content()) for key, place in lmdb_values(folder / "data.mdb")] == expected


CHANGES = st.dictionaries(st.binary(min_size=1, max_size=40), st.none() | st.integers(0, 20_000), max_size=30)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHANGES, min_size=1, max_size=4), st.integers(0, 10**9))
def test_entries_are_those_of_the_library(tmp_path: Path, transactions: list[dict], folder: int) -> None:
    """Several transactions write, overwrite and delete, so that both meta pages and freed pages are there."""
    with lmdb.open(str(tmp_path / str(folder)), map_size=1 << 25, sync=False) as environment:
        for changes in transactions:
            with environment.begin(write=True) as transaction:
                for key, length in changes.items():
                    if length is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, bytes([length % 251]) * length)
    assert_as_the_library(tmp_path / str(folder))


@pytest.mark.parametrize("writemap", [False, True])
def test_trees_of_three_levels(tmp_path: Path, writemap: bool) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26, sync=False, writemap=writemap) as environment:
        with environment.begin(write=True) as transaction:
            for number in range(20_000):
                transaction.put(b"%0200d" % number, b"%d" % number)
        assert environment.stat()["depth"] >= 3
    assert_as_the_library(tmp_path)


def test_other_databases_are_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "inner"), max_dbs=2) as environment:
        named = environment.open_db(b"inner")
        with environment.begin(write=True) as transaction:
            transaction.put(b"a", b"b", db=named)
    with lmdb.open(str(tmp_path / "many"), max_dbs=2) as environment:
        environment.open_db(b"inner", dupsort=True)
    database(tmp_path, [])
    for path in (tmp_path / "inner", tmp_path / "many", tmp_path):
        with pytest.raises(DataError):
            opened(path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(page=st.integers(0, 8), position=st.integers(0, 63), flip=st.integers(1, 255))
def test_damaged_pages_end_no_process_and_keep_none_busy(tmp_path: Path, page: int, position: int, flip: int) -> None:
    many = [images()[1] | {"name": str(number)} for number in range(60)]
    database(tmp_path, many)
    content = bytearray((tmp_path / "data.mdb").read_bytes())
    content[page * 4096 + position] ^= flip
    (tmp_path / "data.mdb").write_bytes(content)
    with contextlib.suppress(ItrpipeError):
        source = opened(tmp_path)
        read(source, list(range(len(source.names))))
