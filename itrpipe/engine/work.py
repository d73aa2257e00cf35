"""A map over data: its parts, how one of them is made and on which device, and those who make them."""

from __future__ import annotations

import pickle
import re
import threading
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from itrpipe.errors import ItrpipeError, UnavailableError, UsageError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, memory_gib, note_memory
from itrpipe.storage.disk import AGAIN, check_stamp

if TYPE_CHECKING:
    import numpy as np

ARRAYS = ".arrays"
CUDA = "cuda"
MOST_DEATHS = 3
"""Workers that a part may kill before it is given up."""
PATIENCE = 30.0
"""Seconds without a worker after which the user is told."""
_COLOUR = re.compile(r"\x1b\[\d*m")
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
        cores: that this process may use; its host knows.
        device: where a worker computes: `cpu`, `cuda`, or `auto` for a GPU where there is one. A worker has a GPU for
            itself.
        key: what the parts depend on beside the fingerprint of the artifact.
        on_every_core: whether a process for every core suits it on this machine, since it is Python all through.
        untold: names of attributes that a worker opens itself, or that parts tell it of as far as it needs them.
    """

    title: str
    unit: str
    suffix: ClassVar[str] = ARRAYS
    overlap: ClassVar[int] = 1
    in_one_thread: ClassVar[bool] = False
    on_every_core: ClassVar[bool] = False
    untold: ClassVar[tuple[str, ...]] = ()
    cores: int = 1
    device: str = "cpu"
    key: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return what workers are told."""
        return {name: value for name, value in self.__dict__.items() if name not in self.untold}

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


def numbered(contents: Iterable[tuple[int, Any]]) -> list[Part]:
    """Parts of so many rows with such contents, named by their number, in order also where a folder is listed."""
    return [Part(f"{number:06}", rows, content) for number, (rows, content) in enumerate(contents)]


def cut(items: Sequence[Any] | np.ndarray, size: int) -> list[Part]:
    """Parts of so many consecutive items, the last of fewer perhaps."""
    pieces = (items[start : start + size] for start in range(0, len(items), size))
    return numbered((len(own), own) for own in pieces)


def resolve_device(device: str) -> str:
    """`auto` becomes `cuda` where there is one, else `cpu`.

    On a GPU, cuDNN is told for this process to keep single precision: by itself it multiplies in TF32, which keeps 10
    bits of a factor, and the same captions would score differently by 1e-4 in another batch.

    Raises:
        UsageError: it is none of these, or CUDA was asked for and is not there.
    """
    if device == "cpu":
        return device
    import torch

    if device not in ("auto", CUDA):
        raise UsageError(f"device {device!r} is none of auto, cpu and {CUDA}; choose one")
    if device == CUDA and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is visible; use --device cpu or check `itrpipe doctor`")
    if device == "auto":
        device = CUDA if torch.cuda.is_available() else "cpu"
    if device == CUDA:
        torch.backends.cudnn.allow_tf32 = False
    return device


Answer = tuple[BaseException | None, float]
"""Of a part: why it is not made, or None; and the largest memory of its process so far, GiB."""


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
        self._alone = work.in_one_thread and resolve_device(work.device) == "cpu"
        work.cores = cores
        self.parts = (cores if self._alone else 1) + work.overlap - 1

    def make(self, part: Part, path: Path) -> Answer:
        """Makes a part.

        Raises:
            Exception: it cannot be made.
        """
        if self._alone:
            import torch

            torch.set_num_threads(1)  # for this thread, and for those that begin later
        with self._opening:
            if self._worker is None:
                self._worker = self._work.open()
        self._work.make(self._worker, part, path)
        return None, memory_gib()

    def answer(self, part: Part, path: Path) -> Answer:
        """Makes a part for another process, which gets an error as a value with the traceback here as a note."""
        try:
            return self.make(part, path)
        except BaseException as error:
            return sendable(error), 0.0

    def stop(self) -> None:
        """Lets parts that are being made end soon, unfinished, where the worker can."""
        if stop := getattr(self._worker, "stop", None):
            stop()
        if self._alone:
            import torch

            torch.set_num_threads(torch.get_num_threads())  # those that begin later compute as this one does


def sendable(error: BaseException) -> BaseException:
    """An error that another process can read for certain, with the traceback here as a note."""
    try:
        pickle.loads(pickle.dumps(error))
        told = error
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
    told.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    return told


Given = tuple[Part, Path]
"""A part that is to be made, and its file."""


def last_line(error: BaseException) -> str:
    """What an error says in the end, most often behind the traceback of a worker, without its colours."""
    return _COLOUR.sub("", str(error)).strip().rpartition("\n")[2].strip() or type(error).__name__


class Maker(ABC):
    """Makes parts: this process, another one, or an actor on a cluster.

    Attributes:
        died: errors of an answer that mean that the maker has died.
        parts: answers that are to come, and the parts that they are about; None of the first one, which says that
            parts can be sent.
    """

    died: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self.parts: dict[Future[Answer], Given | None] = {}

    @abstractmethod
    def send(self, part: Part, path: Path) -> Future[Answer]:
        """Lets a part be made."""

    @abstractmethod
    def end(self) -> None:
        """Ends it, whatever it does."""

    def at_work(self) -> list[Given]:
        """The parts that it has and that are not made yet."""
        return [given for given in self.parts.values() if given]


@dataclass(frozen=True)
class Crew:
    """The makers of a map.

    Attributes:
        count: how many there are, at most.
        room: parts that one holds: one more than it works at, so that it never waits.
        begin: makes another one, in the place of this number.
        remedy: what to do where none of them begins.
    """

    count: int
    room: int
    begin: Callable[[int], Maker]
    remedy: str = "run the same command again, with fewer --workers"

    def made(self, title: str, todo: Sequence[Given], reporter: Reporter) -> Generator[tuple[Part, int], None, None]:
        """Yields the parts as they are made, and how many makers there are, of whom none is left in the end.

        A part that was there when its maker died is made again, alone: of those that were there together, only one may
        be the cause. One that kills again and again is given up.

        Args:
            title: of the map.
            todo: its parts.
            reporter: is told of deaths.

        Raises:
            UnavailableError: nobody begins.
            ItrpipeError: some parts were given up; all others are made.
            Exception: a maker said so.
        """
        waiting, makers, deaths = deque(todo), dict[int, Maker](), Counter[str]()
        stillborn, reason = 0, ""
        try:
            while waiting or any(maker.at_work() for maker in makers.values()):
                for number in range(min(self.count, len(waiting))):
                    if number not in makers and stillborn < MOST_DEATHS + self.count:
                        makers[number] = self.begin(number)
                if not makers:
                    raise UnavailableError(f"no worker begins ({reason}); {self.remedy}")
                answers = {answer: number for number, maker in makers.items() for answer in maker.parts}
                answered = wait(answers, PATIENCE, FIRST_COMPLETED).done
                if answers and not answered and not any(maker.at_work() for maker in makers.values()):
                    reporter.say("  no worker is there yet; waiting for one", style="yellow")
                for answer, number in answers.items():
                    if answer not in answered or number not in makers:  # that has died
                        continue
                    maker = makers[number]
                    try:
                        error, memory = answer.result()
                    except maker.died as death:
                        makers.pop(number).end()
                        stillborn += not maker.at_work()
                        reason = last_line(death)
                        deaths.update(part.name for part, _ in maker.at_work())
                        again = [given for given in maker.at_work() if deaths[given[0].name] < MOST_DEATHS]
                        for part, _ in again:
                            reporter.say(f"  the worker of part {part.name} died; it is made again", style="yellow")
                        waiting += again
                        continue
                    if error is not None:
                        raise error
                    note_memory(memory)
                    if given := maker.parts.pop(answer):
                        yield given[0], len(makers)
                for maker in makers.values():
                    while waiting and self._takes(maker, waiting[0], deaths):
                        given = waiting.popleft()
                        maker.parts[maker.send(*given)] = given
        finally:
            for maker in makers.values():
                maker.end()
        if failed := [name for name, count in deaths.items() if count == MOST_DEATHS]:
            raise ItrpipeError(
                f"{title}: {quantity(len(failed), 'part')} ({', '.join(failed[:3])}) killed a worker {MOST_DEATHS} "
                "times, perhaps for lack of memory; all others are made. Run the same command again, it goes on where "
                "it stopped, with fewer --workers"
            )

    def _takes(self, maker: Maker, following: Given, deaths: Counter[str]) -> bool:
        """Whether a maker that has begun has room for the next part; one that was there at a death is alone."""
        together = [*maker.at_work(), following]
        begun, suspected = None not in maker.parts.values(), any(deaths[part.name] for part, _ in together)
        return begun and len(together) <= (1 if suspected else self.room)
