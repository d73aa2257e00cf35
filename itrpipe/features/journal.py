"""Which rows of a feature file are written, kept beside it so that an interrupted import goes on where it stopped."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from itrpipe.errors import DataError
from itrpipe.features.store import FeatureWriter, row_sums
from itrpipe.storage.artifact import partial_of
from itrpipe.storage.disk import read_stamped_json, write_stamped_json

FLUSH_SECONDS = 5.0
_BLOCK = 256


class RowJournal:
    """Rows that are on the disk.

    Args:
        path: JSON file; read if it is there.
        rows: N, the number of rows.

    Raises:
        DataError: the file is damaged or not a journal of N rows.

    Attributes:
        structure: digest of the feature file without its rows; empty in a new journal.
        done: [N] bool, written.
        sums: [N] uint32, `row_sums` of these.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self.structure = ""
        self.done = np.zeros(rows, dtype=bool)
        self.sums = np.zeros(rows, dtype="<u4")
        self._saved = time.monotonic()
        if path.exists():
            self._read(rows)

    def record(self, rows: np.ndarray, sums: np.ndarray, writer: FeatureWriter) -> None:
        """Notes rows as written; now and then also on the disk, after what was written is there.

        Args:
            rows: [n] int64.
            sums: [n] uint32, what the writer said of them.
            writer: of the feature file.
        """
        self.done[rows] = True
        self.sums[rows] = sums
        if time.monotonic() - self._saved >= FLUSH_SECONDS:
            self.save(writer)

    def forget_damaged(
        self, arrays: Mapping[str, np.ndarray], on_checked: Callable[[int], None] = lambda count: None
    ) -> int:
        """Lets rows be computed again that are not on the disk as they were written.

        Args:
            arrays: name -> [N, ...], the datasets of the file that were written with this journal.
            on_checked: called with numbers of rows.

        Returns:
            How many there were.
        """
        written = np.flatnonzero(self.done)
        damaged = 0
        for start in range(0, len(written), _BLOCK):
            rows = written[start : start + _BLOCK]
            bad = rows[row_sums({name: values[rows] for name, values in arrays.items()}) != self.sums[rows]]
            self.done[bad] = False
            damaged += len(bad)
            on_checked(len(rows))
        return damaged

    def save(self, writer: FeatureWriter) -> None:
        """Writes the journal, after everything it says is on the disk."""
        writer.flush()
        done, sums = (base64.b64encode(each.tobytes()).decode("ascii") for each in (np.packbits(self.done), self.sums))
        known = {"rows": len(self.done), "done": done, "sums": sums, "structure": self.structure}
        write_stamped_json(self.path, known)
        self._saved = time.monotonic()

    def _read(self, rows: int) -> None:
        remedy = f"remove {partial_of(self.path)} and run the same command again"
        content = read_stamped_json(self.path, remedy)
        try:
            bits = np.frombuffer(base64.b64decode(content["done"], validate=True), dtype=np.uint8)
            self.done = np.unpackbits(bits, count=rows).astype(bool)
            self.sums = np.frombuffer(base64.b64decode(content["sums"], validate=True), dtype="<u4").copy()
            self.structure = str(content["structure"])
            whole = len(self.sums) == content["rows"] == rows and len(bits) == (rows + 7) // 8
        except (TypeError, KeyError, ValueError, IndexError, AttributeError, binascii.Error):
            whole = False
        if not whole:
            raise DataError(f"{self.path} is not a journal of {rows:,} rows; {remedy}")
