"""A map so small that only the engine matters, and what can go wrong in it. Workers import it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.engine.work import Part, Work, cut
from itrpipe.storage.arrays import array_writer

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
        with array_writer(path, {"squares": (np.int64, (ROWS,))}, {"of": part.name}) as writer:
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
        return int, ("nobody reads this",)


# What goes wrong while a part is being made


def note(folder: Path, part: Part) -> None:
    """Leaves a file of the part's name that holds the process, its threads, and those that torch computes with."""
    torch = sys.modules.get("torch")
    threads = f"{os.environ.get('OMP_NUM_THREADS')} {torch and torch.get_num_threads()}"
    (folder / f"{part.name}.new").write_text(f"{os.getpid()} {threads}")
    os.replace(folder / f"{part.name}.new", folder / part.name)


def noted(folder: Path) -> list[list[str]]:
    """What `note` has left: process, threads, threads of torch."""
    return [path.read_text().split() for path in folder.glob("??????")]


def die(name: str, folder: Path, once: bool, part: Part) -> None:
    note(folder, part)
    if part.name == name and not (once and (folder / "died").exists()):
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def fail(name: str, error: Callable[[], BaseException], part: Part) -> None:
    if part.name == name:
        raise error()


class OneArgumentTooManyError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, what: str, more: str) -> None:
        super().__init__(f"{what} {more}")


def hang_from(first: str, folder: Path, seconds: float, part: Part) -> None:
    """Notes that a part is being made, and makes it for a while unless it stands before `first`."""
    if part.name >= first:
        note(folder, part)
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


def driver(folder: Path, notes: Path, workers: int, kind: type[Toy], engine: str) -> subprocess.Popen[str]:
    """A process in which all parts from the third on hang."""
    command = [sys.executable, __file__, str(folder), str(notes), str(workers), kind.__name__, engine]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


if __name__ == "__main__":
    from tests.engine import toy  # what workers import, which this file is not
    from tests.maps import made

    parts, notes, workers, kind, engine = sys.argv[1:]
    work = getattr(toy, kind)(COUNT, partial(toy.hang_from, "000003", Path(notes), 60.0))
    try:
        made(work, Path(parts), int(workers), engine=engine)
    except KeyboardInterrupt:
        sys.exit("interrupted")
