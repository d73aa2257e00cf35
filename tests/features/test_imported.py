"""The feature file that an import fills: rows that were damaged are copied again, other damage is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from itrpipe.errors import DataError
from itrpipe.features.imported import ImportedFile
from itrpipe.features.store import FeatureFile, FeatureSpec, FeatureWriter
from itrpipe.progress import Reporter

COUNT, SPEC = 23, FeatureSpec(regions=2, region_dim=3)
REGIONS = np.random.default_rng(0).normal(size=(COUNT, 2, 3)).astype(np.float16)


def fill(target: ImportedFile, rows: np.ndarray) -> None:
    """Copies some rows, as an import does."""
    journal = target.read_journal()
    with FeatureWriter(target.path) as writer:
        sums = writer.write(rows, {"regions": REGIONS[rows], "count": np.full(len(rows), 2, dtype=np.int16)})
        journal.record(rows, sums, writer)
        journal.save(writer)


@pytest.fixture
def target(tmp_path: Path) -> ImportedFile:
    """A whole file."""
    target = ImportedFile(tmp_path / "whole.h5", tmp_path / "whole.json", [f"i{row}" for row in range(COUNT)])
    target.create(SPEC, "test")
    fill(target, np.arange(COUNT))
    return target


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(bytes(content))


def test_rows_that_changed_on_the_disk_are_made_again(target: ImportedFile) -> None:
    expected, told = target.path.read_bytes(), []
    offset = expected.index(np.asarray(FeatureFile.open(target.path).regions[7]).tobytes())
    flip(target.path, offset + 1)
    journal = target.checked_journal(Reporter(Console(quiet=True)), told.append)
    assert told == [f"1 of 23 rows in {target.path} were damaged; they are made again"]
    assert np.flatnonzero(~journal.done).tolist() == [7]
    checked: list[int] = []
    assert target.read_journal().forget_damaged(FeatureFile.open(target.path).arrays(), checked.append) == 1
    assert sum(checked) == COUNT
    fill(target, np.array([7]))
    assert target.path.read_bytes() == expected
    assert target.checked_journal(Reporter(Console(quiet=True)), told.append).done.all()
    assert len(told) == 1


def test_the_structure_of_a_feature_file_cannot_change_unseen(target: ImportedFile) -> None:
    flip(target.path, target.path.read_bytes().index(b"i22"))
    with pytest.raises(DataError, match=r"whole\.h5 is damaged; remove"):
        target.read_journal()


def test_a_file_of_other_datasets_is_not_gone_on_with(target: ImportedFile) -> None:
    before = target.path.read_bytes()
    target.create(SPEC, "test")
    assert target.path.read_bytes() == before
    with pytest.raises(DataError, match=r"begun by another version of the importer; remove"):
        target.create(FeatureSpec(regions=2, region_dim=4), "test")
