"""Maps of the product, made without a word, and mined lists, written at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from itrpipe.engine.run import SharedExecution, make_parts
from itrpipe.engine.work import Made, Work
from itrpipe.mining.files import ListWriter, MinedList
from itrpipe.progress import Reporter


def made(work: Work, folder: Path, workers: int = 1, warn: Callable[[str], None] = print, **execution: Any) -> Made:
    """Makes all parts of a map in a folder, by default in this process."""
    settings = SharedExecution(workers=workers, **execution)
    return make_parts(work, folder, settings, Reporter(Console(quiet=True)), warn)


def write_list(folder: Path, direction: str, mined: MinedList) -> None:
    """Writes one direction; `direction` is a key of `FILES`."""
    probability = mined.false_negative_probability
    wide, guarded = mined.candidates.dtype == np.int64, probability is not None
    with ListWriter(folder, direction, mined.candidates.shape[1], guarded=guarded, wide=wide) as writer:
        writer.write(mined.anchor_ids.tolist(), mined.candidates, mined.scores, probability)
