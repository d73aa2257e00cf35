"""Rows where they lie, lists and their file, against arrays; further candidates in every form of file."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.engine.work import Part
from itrpipe.errors import DataError
from itrpipe.features.given import open_further
from itrpipe.mining import lists as module
from itrpipe.mining.lists import (
    DIRECTIONS,
    NO_ROW,
    CandidateLists,
    HeldRows,
    JoinedRows,
    ListFiles,
    ListWork,
    by_score,
    row_type,
    rows_at_once,
    slices,
    write_lists,
)
from itrpipe.storage.arrays import Rows, take
from itrpipe.storage.parts import ArrayFile, write_arrays

VECTORS = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
IDS = [f"id {row}" for row in range(7)]
MINED = (VECTORS.shape[1], (np.array(["a", "b"]), np.array(["a", "b"])))
"""Width and ids of the training split."""


def test_any_rows_of_joined_ones_are_those_of_the_array(tmp_path: Path) -> None:
    write_arrays(tmp_path / "first.arrays", {"first": VECTORS[:3]})
    first = ArrayFile(tmp_path / "first.arrays")["first"]
    parts: list[Rows] = [first, HeldRows(VECTORS[3:3]), HeldRows(VECTORS[3:4]), HeldRows(VECTORS[4:])]
    rows = pickle.loads(pickle.dumps(JoinedRows(parts)))
    assert (rows.shape, rows.dtype) == (VECTORS.shape, VECTORS.dtype)
    for start in range(8):
        for stop in range(start, 10):
            np.testing.assert_array_equal(rows.read(start, stop), VECTORS[start:stop])
    np.testing.assert_array_equal(take(rows, np.array([6, 2, 3, 2])), VECTORS[[6, 2, 3, 2]])
    owners = JoinedRows([HeldRows(np.array([2, 0])), HeldRows(np.array([-1]))])
    assert owners.read(1, 9).tolist() == [0, -1]


def test_slices_cover_all_rows_and_hold_about_so_many_bytes() -> None:
    assert slices(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert slices(0, 3) == []
    for dim, at_once in ((4_096, 1_024), (1 << 23, 1)):
        assert rows_at_once(HeldRows(np.empty((0, dim), np.float32))) == at_once


def test_rows_in_memory_are_read_from_their_file_by_another_process(tmp_path: Path) -> None:
    write_arrays(tmp_path / "first.arrays", {"first": VECTORS})
    stored = ArrayFile(tmp_path / "first.arrays")["first"]
    held = HeldRows(stored.read(), stored)
    assert pickle.loads(pickle.dumps(held)) == JoinedRows((stored,))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(HeldRows(VECTORS))).array, VECTORS)


# Lists


class Halves(ListWork):
    """Lists whose parts a test writes."""

    def open(self) -> None: ...

    def make(self, worker: None, part: Part, path: Path) -> None: ...


def test_ordering_by_score_puts_ties_by_row_and_padding_last():
    candidates = np.array([[3, NO_ROW, 1, 2], [NO_ROW, NO_ROW, 5, NO_ROW]])
    scores = np.array([[0.5, 9.0, 0.5, 0.7], [9.0, 9.0, -np.inf, 9.0]])
    ordered = by_score(candidates, scores)
    assert ordered.candidates.tolist() == [[2, 1, 3, NO_ROW], [5, NO_ROW, NO_ROW, NO_ROW]]
    assert ordered.scores[0].tolist() == [np.float32(0.7), 0.5, 0.5, -np.inf]


def test_rows_beyond_2_31_keep_their_numbers_in_files(tmp_path):
    rows = np.array([[5, 2**31 - 1, 2**31], [3_000_000_000, 0, 2**32 - 2]])
    lists = CandidateLists(rows, np.array([[0.9, 0.5, 0.5], [-0.1, -0.2, -0.2]], np.float32))
    shapes = {DIRECTIONS[0]: (4, 3, 2**32 - 1), DIRECTIONS[1]: (2, 1, 4)}
    others = CandidateLists(np.array([[3], [1]]), np.zeros((2, 1)))
    path = tmp_path / "mined.arrays"
    write_lists(path, shapes, [(DIRECTIONS[0], 0, lists), (DIRECTIONS[0], 2, lists), (DIRECTIONS[1], 0, others)])
    found = ListFiles([path])
    read = found.read(DIRECTIONS[0], 2, 4)
    np.testing.assert_array_equal(read.candidates, rows)
    np.testing.assert_array_equal(read.scores, lists.scores)
    assert [found.read(name).candidates.dtype for name in DIRECTIONS] == [np.int64, np.int32]
    assert (row_type(2**31 - 1), row_type(2**31)) == ("<i4", "<i8")


def test_lists_of_parts_are_read_as_those_of_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PLACES", 6)  # three anchors at a time
    rows = np.arange(14).reshape(7, 2).astype(np.int32)
    work = Halves({DIRECTIONS[0]: (7, 2, 20), DIRECTIONS[1]: (2, 1, 7)}, {DIRECTIONS[0]: 5, DIRECTIONS[1]: 5})
    paths = []
    for part in work.parts():
        direction, start, stop = part.content
        paths.append(tmp_path / part.name)
        own = rows[start:stop, : work.shapes[direction][1]]
        work.write(paths[-1], direction, CandidateLists(own, own.astype(np.float32)))
    found = list(work.lists(paths, DIRECTIONS[0]))
    assert [part for part, _ in found] == [slice(0, 3), slice(3, 6), slice(6, 7)]
    np.testing.assert_array_equal(np.concatenate([lists.candidates for _, lists in found]), rows)
    np.testing.assert_array_equal(ListFiles(paths).read(DIRECTIONS[0], 4, 6).scores, rows[4:6])


# Further candidates


def write_parquet(path: Path, column: str, rows: slice = slice(None)) -> Path:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS[rows].reshape(-1)), VECTORS.shape[1])
    pq.write_table(pa.table({column: IDS[rows], "embedding": vectors}), path)
    return path


def shards(folder: Path) -> Path:
    (folder / "shards").mkdir()
    write_parquet(folder / "shards" / "a.parquet", "caption_id", slice(0, 5))
    write_parquet(folder / "shards" / "b.parquet", "caption_id", slice(5, 7))
    return folder / "shards"


def plain(folder: Path, name: str = "captions", ids: int = 7) -> Path:
    np.save(folder / f"{name}.npy", VECTORS)
    (folder / f"{name}.ids.json").write_text(json.dumps(IDS[:ids]))
    return folder / f"{name}.npy"


def hdf5(folder: Path) -> Path:
    with h5py.File(folder / "any.h5", "w") as file:
        file["texts"], file["caption_id"] = VECTORS, IDS
    return folder / "any.h5"


FORMS: dict[str, Callable[[Path], Path]] = {
    "parquet": lambda folder: write_parquet(folder / "any.parquet", "caption_id"),
    "parquet of images": lambda folder: write_parquet(folder / "any.parquet", "image_id"),
    "shards": shards,
    "npy": plain,
    "hdf5": hdf5,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_further_candidates_is_read(tmp_path: Path, form: str) -> None:
    side, ids, rows = open_further(FORMS[form](tmp_path), tmp_path / "copy.arrays", *MINED)
    assert (side, ids) == ("image" if "images" in form else "caption", IDS)
    assert rows.shape == VECTORS.shape
    np.testing.assert_array_equal(rows.read(2, 6), VECTORS[2:6])


def a_pickle(folder: Path) -> Path:
    np.save(folder / "images.npy", np.array([{}], dtype=object), allow_pickle=True)
    return folder / "images.npy"


def of_two_lengths(folder: Path) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"image_id": ["c", "d"], "embedding": [[1.0, 2.0, 3.0, 4.0], [5.0]]}), path)
    return path


REFUSED: dict[str, Callable[[Path], Path]] = {
    "no column of ids": lambda folder: write_parquet(folder / "a.parquet", "name"),
    "an empty folder": lambda folder: folder,
    "too few ids": lambda folder: plain(folder, ids=6),
    "a name that says nothing": lambda folder: plain(folder, "vectors"),
    "a pickle": a_pickle,
    "vectors of two lengths": of_two_lengths,
}


@pytest.mark.parametrize("form", REFUSED)
def test_other_files_are_refused_in_one_line(tmp_path: Path, form: str) -> None:
    path = REFUSED[form](tmp_path)
    with pytest.raises(DataError, match="cannot be read") as caught:
        open_further(path, tmp_path / "copy.arrays", *MINED)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "copy.arrays").exists()
