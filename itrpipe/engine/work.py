"""What a stage says of a map over its data: the parts, and how one of them is made."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from itrpipe.engine.device import resolve_device
from itrpipe.progress import memory_gib
from itrpipe.storage.disk import check_stamp

if TYPE_CHECKING:
    import numpy as np

AGAIN = "remove it and run the same command again"
ARRAYS = ".arrays"
Worker = TypeVar("Worker")


@dataclass(frozen=True)
class Part:
    """One part of a map, which depends on the data alone, never on who makes it.

    Attributes:
        name: of its file, without the suffix.
        rows: how many units it holds.
        content: what the worker is told of it beside the description of the map; it is pickled.
    """

    name: str
    rows: int
    content: Any = None


class Work(ABC, Generic[Worker]):
    """A map over data. It is pickled to whoever makes its parts, so it describes and holds nothing that is open.

    Attributes:
        title: what is being done, for people.
        unit: what parts hold, in the plural.
        suffix: of the files of parts.
        overlap: parts that one worker makes at the same time, in threads: more than 1 where reading and computing take
            turns.
        in_one_thread: whether a part is computed by torch on the processor, and so by one thread, because its bytes may
            depend on their number. A process then makes as many more parts at the same time as it has further cores.
        slots: parts that compute at the same time in this process; its host knows.
        device: where a worker computes: `cpu`, `cuda`, or `auto` for a GPU where there is one. A worker has a GPU for
            itself.
        key: what the parts depend on beside the fingerprint of the artifact.
    """

    title: str
    unit: str
    suffix: ClassVar[str] = ARRAYS
    overlap: ClassVar[int] = 1
    in_one_thread: ClassVar[bool] = False
    slots: int = 1
    device: str = "cpu"
    key: str = ""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """All parts, in the order of the data."""

    @abstractmethod
    def open(self) -> Worker:
        """What makes parts, such as a model; called once in every process."""

    @abstractmethod
    def make(self, worker: Worker, part: Part, path: Path) -> None:
        """Writes the file of a part, whole or not at all, and nothing else."""

    def keeps(self, path: Path) -> bool:
        """Whether a file of an earlier run still counts.

        Raises:
            DataError: it is not as it was written.
        """
        check_stamp(path, AGAIN, None if self.suffix == ARRAYS else path.read_bytes())  # others are small
        return True

    def local_workers(self) -> int:
        """Processes that suit it on this machine."""
        return 1


def name_of(number: int) -> str:
    """Name of a part: its number, in order also where a folder is listed."""
    return f"{number:06}"


def numbered(contents: Iterable[tuple[int, Any]]) -> list[Part]:
    """Parts of so many rows with such contents."""
    return [Part(name_of(number), rows, content) for number, (rows, content) in enumerate(contents)]


def cut(items: Sequence[Any] | np.ndarray, size: int) -> list[Part]:
    """Parts of so many consecutive items, the last of fewer perhaps."""
    pieces = (items[start : start + size] for start in range(0, len(items), size))
    return numbered((len(own), own) for own in pieces)


class Host(Generic[Worker]):
    """Makes parts in a process; what it opens, it opens when the first part comes, so that an error reaches someone.

    Args:
        work: the map.
        cores: that the process may use.

    Attributes:
        parts: how many it makes at the same time.
    """

    def __init__(self, work: Work[Worker], cores: int = 1) -> None:
        self._work = work
        self._worker: Worker | None = None
        self._opening = threading.Lock()
        self._alone = work.in_one_thread and (work.device == "cpu" or resolve_device(work.device) == "cpu")
        self._threads = 0
        work.slots = cores if self._alone else 1
        self.parts = work.slots + work.overlap - 1

    def make(self, part: Part, path: Path) -> float:
        """Makes a part; returns the largest memory of this process so far, GiB."""
        if self._alone:
            self._compute_alone()
        with self._opening:
            if self._worker is None:
                self._worker = self._work.open()
        self._work.make(self._worker, part, path)
        return memory_gib()

    def _compute_alone(self) -> None:
        """Lets torch compute in this thread and in no others."""
        import torch

        with self._opening:
            self._threads = self._threads or torch.get_num_threads()
        torch.set_num_threads(1)

    def stop(self) -> None:
        """Lets parts that are being made end soon, unfinished, where the worker can."""
        stop = getattr(self._worker, "stop", None)
        if stop is not None:
            stop()
        if self._threads:
            import torch

            torch.set_num_threads(self._threads)
