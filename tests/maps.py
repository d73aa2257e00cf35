"""Maps of the product, made without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from itrpipe.engine.execution import MapExecution
from itrpipe.engine.run import Made, make_parts
from itrpipe.engine.work import Work
from itrpipe.progress import Reporter


def made(work: Work, folder: Path, workers: int = 1, warn: Callable[[str], None] = print) -> Made:
    """Makes all parts of a map in a folder, by default in this process."""
    return make_parts(work, folder, MapExecution(workers=workers), Reporter(Console(quiet=True)), warn)
