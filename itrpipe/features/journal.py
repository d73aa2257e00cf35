"""Which rows of a feature file are written, kept beside it so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import base64
import binascii
import time
from pathlib import Path

import numpy as np

from itrpipe.disk import read_json, write_json
from itrpipe.errors import DataError
from itrpipe.features.store import FeatureWriter

FLUSH_SECONDS = 5.0


class RowJournal:
    """Rows that are on the disk, and rows that never will be because their image cannot be used.

    Args:
        path: JSON file; read if it is there.
        rows: N, the number of rows.

    Raises:
        DataError: the file is not a journal of N rows.

    Attributes:
        done: [N] bool, written or failed.
        failed: row -> why its image has no features.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self.done = np.zeros(rows, dtype=bool)
        self.failed: dict[int, str] = {}
        self._saved = time.monotonic()
        if path.exists():
            self._read(rows)

    def record(self, rows: np.ndarray, writer: FeatureWriter) -> None:
        """Notes rows as written; now and then also on the disk, after what was written is there."""
        self.done[rows] = True
        if time.monotonic() - self._saved >= FLUSH_SECONDS:
            self.save(writer)

    def fail(self, row: int, reason: str) -> None:
        """Notes that the image of `row` cannot be used."""
        self.done[row] = True
        self.failed[row] = reason

    def forget_failures(self, rows: np.ndarray) -> None:
        """Lets the rows of one batch be computed again if an image among them could not be used."""
        failed = self.failed.keys() & set(rows.tolist())
        if failed:
            self.done[rows] = False
            self.failed = {row: reason for row, reason in self.failed.items() if row not in failed}

    def save(self, writer: FeatureWriter) -> None:
        """Writes the journal, after everything it says is on the disk."""
        writer.flush()
        done = base64.b64encode(np.packbits(self.done).tobytes()).decode("ascii")
        failed = {str(row): reason for row, reason in sorted(self.failed.items())}
        write_json(self.path, {"rows": len(self.done), "done": done, "failed": failed})
        self._saved = time.monotonic()

    def _read(self, rows: int) -> None:
        content = read_json(self.path)
        try:
            bits = np.frombuffer(base64.b64decode(content["done"], validate=True), dtype=np.uint8)
            self.failed = {int(row): str(reason) for row, reason in content["failed"].items()}
            self.done = np.unpackbits(bits, count=rows).astype(bool)
            whole = content["rows"] == rows and len(bits) == (rows + 7) // 8 and all(self.done[list(self.failed)])
        except (TypeError, KeyError, ValueError, IndexError, AttributeError, binascii.Error):
            whole = False
        if not whole:
            raise DataError(f"{self.path} is not a journal of {rows:,} rows; remove {self.path.parent} and rerun")
