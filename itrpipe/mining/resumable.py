"""Work in blocks that goes on after an interruption where its progress was saved last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from itrpipe.artifacts.disk import CHECKSUM, STAMP_HERE, check_stamp, stamped, write_bytes
from itrpipe.errors import DataError
from itrpipe.progress import Reporter


class Resumable(Protocol):
    """What the miners and the second ranking have in common; see `ExactMiner`."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks in all."""
        ...

    def pending(self) -> list[int]:
        """Blocks that are still to be done."""
        ...

    def step(self, block_index: int) -> None:
        """Does a block."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """The progress."""
        ...

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes the progress of an earlier run."""
        ...


def work_through(
    work: Resumable,
    path: Path,
    reporter: Reporter,
    name: str,
    unit: str = "blocks",
    size: Callable[[int], int] = lambda block: 1,
    checkpoint_seconds: float = 60.0,
) -> None:
    """Does every pending block, saving progress now and then.

    Args:
        work: the blocks.
        path: file of the progress; read first when it is there.
        reporter: shows the progress.
        name: of what is being done.
        unit: what a block holds, in the plural.
        size: how many of these a block holds.
        checkpoint_seconds: time between two savings.

    Raises:
        DataError: the file is damaged or of other work.
    """
    if path.exists():
        remedy = "remove it and run the same command again"
        content = path.read_bytes()
        check_stamp(path, remedy, content)
        try:
            work.restore(load(content))
        except SafetensorError as error:
            raise DataError(f"{path} is damaged ({error}); {remedy}") from None
    pending = work.pending()
    total = sum(map(size, range(work.num_blocks)))
    saved_at = time.monotonic()
    with reporter.task(name, total, unit, total - sum(map(size, pending))) as task:
        for block in pending:
            work.step(block)
            task.advance(size(block))
            if time.monotonic() - saved_at >= checkpoint_seconds:
                save_progress(work, path)
                saved_at = time.monotonic()


def save_progress(work: Resumable, path: Path) -> None:
    """Saves what is done so far, atomically."""
    write_bytes(path, stamped(save(work.state(), {CHECKSUM: STAMP_HERE})))
