"""A map so small that only the engine matters, and what can go wrong in it. Workers import it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.engine.work import Part, Work, cut
from itrpipe.progress import Reporter
from itrpipe.storage.parts import ArrayWriter

ROWS, COUNT = 5, 8
"""Numbers of a part, and parts of most maps."""


def content(folder: Path) -> dict[str, bytes]:
    """Bytes of every file, hidden ones too."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Toy(Work[int]):
    """Squares of numbers, a few in a part.

    Args:
        count: of parts.
        spoil: called while a part is being written; it is pickled.
        key: see `Work`.
    """

    title, unit = "squaring", "numbers"

    def __init__(self, count: int, spoil: Callable[[Part], Any] | None = None, key: str = "") -> None:
        self._count, self._spoil, self.key = count, spoil, key

    def parts(self) -> list[Part]:
        return cut(range(ROWS * self._count), ROWS)

    def open(self) -> int:
        return 2

    def make(self, worker: int, part: Part, path: Path) -> None:
        with ArrayWriter(path, {"squares": (np.int64, (ROWS,))}, {"of": part.name}) as writer:
            if self._spoil is not None:
                self._spoil(part)
            writer.write("squares", 0, np.array(part.content) ** worker)


class Threaded(Toy):
    """The same, two parts of a worker at a time."""

    overlap = 2


class Alone(Toy):
    """The same, each part by one thread of torch."""

    in_one_thread = True


class Unreadable(Toy):
    """A map that no worker can read."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> Any:
    raise LookupError("nobody reads this")


# What goes wrong while a part is being made


def note(folder: Path, part: Part) -> None:
    """Leaves a file of the part's name that holds the process and its threads."""
    (folder / f"{part.name}.new").write_text(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS', '')}")
    os.replace(folder / f"{part.name}.new", folder / part.name)


def note_threads(folder: Path, part: Part) -> None:
    """Leaves a file of the part's name that holds how many threads torch computes with."""
    import torch

    (folder / part.name).write_text(str(torch.get_num_threads()))


def die_once(marker: Path, name: str, part: Part) -> None:
    if part.name == name:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)


def die(name: str, part: Part) -> None:
    if part.name == name:
        os.kill(os.getpid(), signal.SIGKILL)


def fail(name: str, error: BaseException, part: Part) -> None:
    if part.name == name:
        raise error


class OneArgumentTooManyError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, what: str, more: str) -> None:
        super().__init__(f"{what} {more}")


def fail_oddly(part: Part) -> None:
    raise OneArgumentTooManyError("no such", "letter")


def note_and_die(folder: Path, part: Part) -> None:
    note(folder, part)
    die("000003", part)


def hang_from(first: str, folder: Path, part: Part) -> None:
    """Notes that a part is being made, and makes it for a minute unless it stands before `first`."""
    if part.name >= first:
        note(folder, part)
        time.sleep(60)


def dawdle(seconds: float, part: Part) -> None:
    time.sleep(seconds)


# What drivers and workers are looked at with


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(holds: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit, what
        time.sleep(0.01)


if __name__ == "__main__":
    # A driver in a process of its own: folder of parts, folder of notes, workers, which kind, engine.
    from tests.engine import toy  # what workers import, which this file is not

    parts, notes, workers, kind, engine = sys.argv[1:]
    work = getattr(toy, kind)(8, partial(toy.hang_from, "000003", Path(notes)))
    execution = MapExecution(engine=engine, workers=int(workers))  # pyright: ignore[reportArgumentType]
    try:
        make_parts(work, Path(parts), execution, Reporter(Console(quiet=True)), print)
    except KeyboardInterrupt:
        sys.exit("interrupted")
