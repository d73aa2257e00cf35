"""`itrpipe.mine`: its example, and every error that it documents."""

from __future__ import annotations

import doctest
import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import itrpipe
from itrpipe.engine.work import Runner
from itrpipe.errors import DataError, DiskFullError, ItrpipeError, UsageError
from itrpipe.mining import mine as module
from itrpipe.mining import searcher as search
from itrpipe.mining.lists import DIRECTIONS
from itrpipe.mining.settings import MiningSettings
from itrpipe.storage.arrays import ArrayFile, StoredRows, write_arrays

COUNTS = {"images": 40, "texts": 200}
EYE, OWNERS = np.eye(3, dtype=np.float32), [0, 1, 2]
REFUSED: dict[str, tuple[list[int], dict[str, Any], type[ItrpipeError], str]] = {
    "no candidates": ([1, 1, 1], {}, UsageError, "0 and 2 are candidates of some"),
    "no list": (OWNERS, {"num_texts": 0}, UsageError, "0 captions per image"),
    "another precision": (OWNERS, {"precision": "fp16"}, UsageError, "precision 'fp16' is none of fp32, bf16"),
    "another device": (OWNERS, {"device": "tpu"}, UsageError, "device 'tpu' is none of auto, cpu and cuda"),
    "an owner too many": ([*OWNERS, 1], {}, DataError, "4 caption rows do not fit each other"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_documented_to_be_refused_is_refused(what: str) -> None:
    owners, options, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        itrpipe.mine(EYE, EYE, owners, **options)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA device is visible"):
        itrpipe.mine(EYE, EYE, OWNERS, device="cuda")


def test_products_that_are_less_exact_than_they_have_to_be_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_multiply", lambda texts, images: torch.full((len(texts), len(images)), -torch.inf))
    with pytest.raises(DataError, match="less exact on this machine"):
        itrpipe.mine(EYE, EYE, OWNERS)


def test_a_temporary_folder_without_space_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="no space left"):
        itrpipe.mine(EYE, EYE, OWNERS)


def test_progress_goes_to_standard_error_and_only_where_it_is_asked_for(capfd: Any) -> None:
    itrpipe.mine(EYE, EYE, OWNERS)
    assert capfd.readouterr() == ("", "")
    itrpipe.mine(EYE, EYE, OWNERS, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "mining: 3/3 images" in shown.err


def test_warnings_reach_the_line_that_called() -> None:
    with pytest.warns(UserWarning, match="lists hold 2 captions and 2 images") as caught:
        itrpipe.mine(EYE, EYE, OWNERS)
    assert caught[0].filename == __file__


def mined_from_a_file(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, int], list[str]]:
    """Lists of vectors in a file, how many rows of them were read, and the names of the files that were made."""
    generator = np.random.default_rng(0)
    vectors = {name: generator.standard_normal((count, 8)).astype(np.float32) for name, count in COUNTS.items()}
    write_arrays(folder / "vectors", vectors)
    stored = ArrayFile(folder / "vectors")
    rows_read, read = dict.fromkeys(COUNTS, 0), StoredRows.read

    def counting(rows: StoredRows, *bounds: int) -> np.ndarray:
        found = read(rows, *bounds)
        if rows.name in rows_read:
            rows_read[rows.name] += len(found)
        return found

    lists: dict[str, list[np.ndarray]] = {name: [] for name in DIRECTIONS}
    (folder / "work").mkdir()
    settings = MiningSettings(num_texts=9, num_images=5, library="torch", precision="bf16+fp32", drop_duplicates=False)
    with mock.patch.object(StoredRows, "read", counting):
        module.mine_split(
            stored["images"],
            stored["texts"],
            np.arange(200) // 5,
            settings,
            Runner(folder / "work", None, print),
            lambda direction, part, found: lists[direction].append(found.candidates),
            device="cpu",
            block=16,
        )
    arrays = {name: np.concatenate(found) for name, found in lists.items()}
    return arrays, rows_read, sorted(path.name for path in (folder / "work").iterdir())


def test_vectors_are_read_once_where_they_fit_and_lists_go_from_parts_to_their_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held").mkdir()
    held, rows_read, files = mined_from_a_file(tmp_path / "held")
    assert rows_read == COUNTS
    assert files == ["mined-000000", "mined-000001", "mined-000002"]
    monkeypatch.setattr(module, "HELD_BYTES", 0)
    (tmp_path / "stored").mkdir()
    stored, rows_read, _ = mined_from_a_file(tmp_path / "stored")
    assert rows_read["texts"] > 3 * COUNTS["texts"]
    for name in DIRECTIONS:
        np.testing.assert_array_equal(held[name], stored[name])


def test_the_example_runs() -> None:
    outcome = doctest.testmod(module)
    assert (outcome.failed, outcome.attempted) == (0, 2)
