"""What a finished training writes beside its weights: its history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_history(path: Path, history: list[dict[str, Any]]) -> None:
    """Writes one row per validation.

    Args:
        path: the file.
        history: rows, whose columns may differ: the first epochs may be trained with another loss.
    """
    names = list(dict.fromkeys(name for row in history for name in row))
    pq.write_table(pa.table({name: [row.get(name) for row in history] for name in names}), path)
