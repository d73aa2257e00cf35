"""The journal of rows: what it says is on the disk, and a damaged one is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.features.journal import RowJournal
from itrpipe.storage.disk import read_stamped_json, write_stamped_json


class Flushed:
    """Stands for a writer; knows whether the journal waited for it."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.flushes = journal, 0

    def flush(self) -> None:
        self.flushes += 1
        self.seen = self.journal.read_text() if self.journal.exists() else None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 70))
def test_what_is_saved_is_read(tmp_path: Path, data: st.DataObject, rows: int) -> None:
    path = tmp_path / "rows.json"
    path.unlink(missing_ok=True)
    done = data.draw(st.sets(st.integers(0, rows - 1)))
    journal, writer = RowJournal(path, rows), Flushed(path)
    journal.record(np.array(sorted(done), dtype=np.int64), np.arange(len(done), dtype=np.uint32), writer)
    journal.structure = data.draw(st.text(max_size=5))
    journal.save(writer)
    again = RowJournal(path, rows)
    assert set(np.flatnonzero(again.done).tolist()) == done
    assert again.structure == journal.structure
    assert again.sums[sorted(done)].tolist() == list(range(len(done)))


def test_rows_are_flushed_before_the_journal_says_so(tmp_path: Path) -> None:
    journal, writer = RowJournal(tmp_path / "rows.json", 3), Flushed(tmp_path / "rows.json")
    journal.record(np.array([1]), np.array([7], dtype=np.uint32), writer)
    assert writer.flushes == 0
    journal.save(writer)
    assert (writer.flushes, writer.seen) == (1, None)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 4},
        {"sums": "AAAA"},
        {"done": "!"},
        {"done": ""},
    ],
)
def test_a_journal_that_is_not_of_these_rows_is_refused(tmp_path: Path, change: dict) -> None:
    path = tmp_path / "rows.json"
    RowJournal(path, 3).save(Flushed(path))
    write_stamped_json(path, {**read_stamped_json(path, ""), **change})
    with pytest.raises(DataError, match=r"rows\.json is not a journal of 3 rows; remove"):
        RowJournal(path, 3)
