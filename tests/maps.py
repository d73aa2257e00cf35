"""Maps of the product, made without a word, and mined lists, written at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from itrpipe.engine.run import Made, SharedExecution, make_parts
from itrpipe.engine.work import Work
from itrpipe.mining.lists import CandidateLists, HeldRows, ListWriter, MinedList
from itrpipe.progress import Reporter


def made(work: Work, folder: Path, workers: int = 1, warn: Callable[[str], None] = print, **execution: Any) -> Made:
    """Makes all parts of a map in a folder, by default in this process."""
    settings = SharedExecution(workers=workers, **execution)
    return make_parts(work, folder, settings, Reporter(Console(quiet=True)), warn)


def write_list(folder: Path, direction: str, mined: MinedList) -> None:
    """Writes one direction; `direction` is a key of `FILES`."""
    ids = HeldRows(np.char.encode(mined.anchor_ids.astype(str), "utf-8"))
    with ListWriter(folder, ids, ids) as writer:
        lists = CandidateLists(mined.candidates, mined.scores)
        writer.write(direction, slice(0, len(mined.candidates)), lists, mined.false_negative_probability)
