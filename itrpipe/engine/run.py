"""Makes the parts of a map that are not there yet, in this process or in several of this machine.

A stage calls `make_parts`. It takes the makers of parts from `local_makers` here, or from `ray_makers` in `ray.py`, and
`MakerPool.made` hands the parts out. Plans read the settings in this file, so it imports nothing heavy.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from itrpipe.config import Settings
from itrpipe.engine.work import CUDA, Made, Part, Runner, Work, resolve_device
from itrpipe.errors import DataError, ItrpipeError, UnavailableError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, memory_gib, note_memory
from itrpipe.storage.artifact import DIVISION
from itrpipe.storage.disk import TEMPORARY, make_folder, read_stamped_json, write_stamped_json

PARTS = "parts"
GPUS = "CUDA_VISIBLE_DEVICES"
MOST_DEATHS = 3
"""Workers that a part may kill before it is given up."""
PATIENCE = 30.0
"""Seconds without a worker after which the user is told."""
Answer = tuple[BaseException | None, float]
"""The error that kept a part from being made, or None; and the largest memory of its process so far, GiB."""
PartFile = tuple[Part, Path]
"""A part that is to be made, and its file."""


class PartShare(NamedTuple):
    """Share `number` of `count` of the parts of a map, counted from 1, for the jobs of an array."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> PartShare:
        """Read `i/n`.

        Raises:
            ValueError: not of this form, or i is larger than n.
        """
        match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError("a part is given as i/n with 1 <= i <= n, such as 2/8")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


Device = Literal["auto", "cpu", "cuda"]
"""Setting of every stage that runs a network; `auto` takes CUDA when there is one."""


class MapExecution(Settings):
    """The place where a stage makes the parts of its maps; every choice gives the same bytes.

    Attributes:
        engine: `local` makes them in this process, or in several of this machine; `ray` on a Ray cluster.
        workers: processes; 0 takes what suits the stage on this machine, and of a cluster all there is.
        address: of the Ray cluster, `auto` for the one that this machine belongs to; empty starts one on this machine.
    """

    engine: Literal["local", "ray"] = "local"
    workers: int = Field(default=0, ge=0, le=4_096)
    address: str = ""


class SharedExecution(MapExecution):
    """The place where a stage makes the parts of its maps, and the share of them that this job makes.

    Attributes:
        part: `i/n` makes one of n shares only; empty for all.
    """

    part: str = ""

    @field_validator("part")
    @classmethod
    def _is_share(cls, value: str) -> str:
        return value and str(PartShare.parse(value))


def part_share(execution: Settings) -> PartShare | None:
    """Return the share of its parts that a step makes; None where it makes all of them."""
    part = getattr(execution, "part", "")
    return PartShare.parse(part) if part else None


def without_share(execution: Settings) -> Settings:
    """Return the execution settings of a job that makes all parts, and not only a share of them."""
    if part_share(execution) is None:
        return execution
    return execution.model_copy(update={"part": ""})


@dataclass(eq=False)
class OthersMissing(Exception):  # noqa: N818 - no error: this job is done
    """This job has made its share of a map, and what follows needs the shares of other jobs.

    Attributes:
        share: share that is made.
        rows: units of the map in this share.
        unit: name of the units, in the plural.
        paths: files of all parts of the map.
        more: whether another map follows, which jobs can share again.
    """

    share: PartShare
    rows: int
    unit: str
    paths: list[Path]
    more: bool

    def missing(self) -> int:
        """Count the parts that nobody has made yet."""
        return sum(not path.exists() for path in self.paths)


def make_parts(
    work: Work,
    folder: Path,
    execution: MapExecution,
    reporter: Reporter,
    warn: Callable[[str], object],
    *,
    more: bool = False,
) -> Made:
    """Make every part of a map that is not there yet.

    Args:
        work: the map.
        folder: folder for the files of its parts and nothing else.
        execution: where they are made, and which share of them.
        reporter: shows the progress.
        warn: called with a line about damaged files.
        more: another map of the same stage needs this one.

    Raises:
        OthersMissing: this job makes a share of the parts, and has made it.
        DataError: a worker said so, or the parts that are there are of another division.
        ItrpipeError: a worker said so, or some parts killed their workers.
    """
    make_folder(folder)
    share = part_share(execution)
    _record_division(work, folder, share, reporter)
    tasks = []
    paths = []
    for part in work.parts():
        path = folder / f"{part.name}{work.suffix}"
        tasks.append((part, path))
        paths.append(path)
    if share is not None:
        tasks = tasks[share.number - 1 :: share.count]

    intact = _intact_files(work, tasks, folder, reporter, warn)
    unmade = []
    all_rows = 0
    rows = 0
    for part, path in tasks:
        all_rows += part.rows
        if path not in intact:
            unmade.append((part, path))
            rows += part.rows
    started = time.monotonic()
    try:
        if unmade:
            makers = local_makers
            if execution.engine == "ray":
                makers = importlib.import_module("itrpipe.engine.ray").ray_makers  # by name, since it reads this file
            with (
                reporter.task(work.title, all_rows, work.unit, all_rows - rows) as progress,
                makers(work, execution, len(unmade)) as pool,
                closing(pool.made(work.title, unmade, reporter)) as made,
            ):
                for part, workers in made:
                    progress.advance(part.rows, f"{workers} workers" if workers > 1 else "")
    finally:
        # Files that killed workers have begun; those of other jobs stay.
        beginnings = tuple(f".{path.name}." for _, path in tasks)
        for path in folder.glob(f".*{TEMPORARY}"):
            if path.name.startswith(beginnings):
                path.unlink(missing_ok=True)
    if share is not None:
        raise OthersMissing(share, all_rows, work.unit, paths, more)
    return Made(paths, rows, time.monotonic() - started)


def _record_division(work: Work, folder: Path, share: PartShare | None, reporter: Reporter) -> None:
    """Record the key of the parts in a folder, and remove parts that were made under another key.

    Raises:
        DataError: there are such parts, and other jobs may be at work on them.
    """
    record = folder / DIVISION
    division = {"key": work.key}
    if record.exists():
        if read_stamped_json(record, f"remove {folder} and run the same command again") == division:
            return
        if share is not None:
            raise DataError(
                f"{folder} holds parts of another division; give every part the same settings, or remove that folder"
            )
        reporter.say(f"  {work.title}: parts of another division are removed")
        # The record goes last: without it, parts that are left would count as parts of this division.
        for path in folder.iterdir():
            if path != record:
                path.unlink()
        record.unlink()
    write_stamped_json(record, division)


def _intact_files(
    work: Work, tasks: Sequence[PartFile], folder: Path, reporter: Reporter, warn: Callable[[str], object]
) -> set[Path]:
    """Return the files of an earlier run that still count, and warn of damaged ones."""
    existing = [path for _, path in tasks if path.exists()]
    intact = set()
    damaged = 0
    with reporter.task("checking what is done", len(existing), "parts") as progress:
        for path in existing:
            try:
                if work.keeps(path):
                    intact.add(path)
            except DataError:
                damaged += 1
            progress.advance()
    if damaged:
        warn(f"{damaged:,} of {len(existing):,} parts in {folder} were damaged; they are made again")
    return intact


@dataclass
class Maps(Runner):
    """Makes maps where execution settings say, so that an interrupted run goes on.

    Args:
        folder, reporter, warn: see `Runner`.
        execution: where parts are made, and which share of them.
    """

    reporter: Reporter
    execution: MapExecution

    def made(self, work: Work, name: str, *, more: bool = False) -> Made:
        """Make every part of a map that is not there yet; see `make_parts`."""
        folder = self.folder / PARTS / name
        return make_parts(work, folder, self.execution, self.reporter, self.warn, more=more)


# Makers of parts


class Host:
    """Makes parts in a process.

    It opens the work when the first part comes, so that an error of opening is the answer to that part.

    Args:
        work: the map.
        cores: cores that the process may use.

    Attributes:
        parts: number of parts that it makes at the same time.
    """

    def __init__(self, work: Work, cores: int = 1) -> None:
        self._work = work
        self._worker = None
        self._opening = threading.Lock()
        self._in_one_thread = work.in_one_thread and resolve_device(work.device) == "cpu"
        work.cores = cores
        self.parts = work.overlap
        if self._in_one_thread:
            self.parts += cores - 1

    def make(self, part: Part, path: Path) -> Answer:
        """Make a part.

        Raises:
            Exception: it cannot be made.
        """
        if self._in_one_thread:
            import torch

            torch.set_num_threads(1)  # for this thread, and for those that begin later
        with self._opening:
            if self._worker is None:
                self._worker = self._work.open()
        self._work.make(self._worker, part, path)
        return None, memory_gib()

    def answer(self, part: Part, path: Path) -> Answer:
        """Make a part for another process, which gets an error as a value with the traceback here as a note."""
        try:
            return self.make(part, path)
        except BaseException as error:
            return sendable(error), 0.0

    def stop(self) -> None:
        """Let parts that are being made end soon, unfinished, where the worker can."""
        stop = getattr(self._worker, "stop", None)
        if stop is not None:
            stop()
        if self._in_one_thread:
            import torch

            torch.set_num_threads(torch.get_num_threads())  # those that begin later compute as this one does


def sendable(error: BaseException) -> BaseException:
    """Return an error that another process can read for certain, with the traceback here as a note."""
    try:
        pickle.loads(pickle.dumps(error))
        copy = error
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    return copy


def last_line(error: BaseException) -> str:
    """Return the last line of an error, most often behind the traceback of a worker, without its colours."""
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip()
    return text.rpartition("\n")[2].strip() or type(error).__name__


class Maker(ABC):
    """Makes parts: this process, another one, or an actor on a cluster.

    Attributes:
        died: errors of an answer that mean that the maker has died.
        tasks: task of every answer that is to come; None for the first answer, which says that parts can be sent.
    """

    died: tuple[type[Exception], ...] = ()

    def __init__(self) -> None:
        self.tasks: dict[Future[Answer], PartFile | None] = {}

    @abstractmethod
    def send(self, part: Part, path: Path) -> Future[Answer]:
        """Begin to make a part."""

    @abstractmethod
    def end(self) -> None:
        """End the maker, whatever it does."""

    def unfinished(self) -> list[PartFile]:
        """Return the tasks that it has and that are not done yet."""
        return [task for task in self.tasks.values() if task is not None]


@dataclass(frozen=True)
class MakerPool:
    """The makers of a map.

    Attributes:
        count: how many there are, at most.
        room: parts that one holds: one more than it works at, so that it never waits.
        begin: makes another one, in the place of this number.
        remedy: advice for the message, if none of them begins.
    """

    count: int
    room: int
    begin: Callable[[int], Maker]
    remedy: str = "run the same command again, with fewer --workers"

    def made(
        self, title: str, tasks: Sequence[PartFile], reporter: Reporter
    ) -> Generator[tuple[Part, int], None, None]:
        """Yield each part when it is made, with the number of makers; none of these is left in the end.

        A part that was there when its maker died is made again, alone: of those that were there together, only one may
        be the cause. One that kills again and again is given up.

        Args:
            title: name of the map, for messages.
            tasks: the parts to make.
            reporter: is told of deaths.

        Raises:
            UnavailableError: nobody begins.
            ItrpipeError: some parts were given up; all others are made.
            Exception: a maker said so.
        """
        waiting = deque(tasks)
        makers: dict[int, Maker] = {}
        deaths = Counter[str]()
        stillborn = 0
        reason = ""
        try:
            while waiting or any(maker.unfinished() for maker in makers.values()):
                for number in range(min(self.count, len(waiting))):
                    if number not in makers and stillborn < MOST_DEATHS + self.count:
                        makers[number] = self.begin(number)
                if not makers:
                    raise UnavailableError(f"no worker begins ({reason}); {self.remedy}")

                answers: dict[Future[Answer], int] = {}
                for number, maker in makers.items():
                    answers |= dict.fromkeys(maker.tasks, number)
                answered = wait(answers, PATIENCE, FIRST_COMPLETED).done
                if answers and not answered and not any(maker.unfinished() for maker in makers.values()):
                    reporter.say("  no worker is there yet; waiting for one", style="yellow")

                for answer, number in answers.items():
                    if answer not in answered or number not in makers:  # its maker died over an earlier answer
                        continue
                    maker = makers[number]
                    try:
                        error, memory = answer.result()
                    except maker.died as death:
                        del makers[number]
                        maker.end()
                        reason = last_line(death)
                        lost = maker.unfinished()
                        if not lost:
                            stillborn += 1
                        for part, path in lost:
                            deaths[part.name] += 1
                            if deaths[part.name] < MOST_DEATHS:
                                reporter.say(f"  the worker of part {part.name} died; it is made again", style="yellow")
                                waiting.append((part, path))
                        continue
                    if error is not None:
                        raise error
                    note_memory(memory)
                    task = maker.tasks.pop(answer)
                    if task is not None:
                        part, _ = task
                        yield part, len(makers)

                for maker in makers.values():
                    while waiting and None not in maker.tasks.values():  # it has begun
                        together = [*maker.unfinished(), waiting[0]]
                        has_killed = any(deaths[part.name] for part, _ in together)
                        room = 1 if has_killed else self.room
                        if len(together) > room:
                            break
                        task = waiting.popleft()
                        maker.tasks[maker.send(*task)] = task
        finally:
            for maker in makers.values():
                maker.end()
        failed = [name for name, count in deaths.items() if count == MOST_DEATHS]
        if failed:
            raise ItrpipeError(
                f"{title}: {quantity(len(failed), 'part')} ({', '.join(failed[:3])}) killed a worker {MOST_DEATHS} "
                "times, perhaps for lack of memory; all others are made. Run the same command again, it goes on where "
                "it stopped, with fewer --workers"
            )


# This machine


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def local_makers(work: Work, execution: MapExecution, parts: int) -> Iterator[MakerPool]:
    """Yield the makers of parts on this machine.

    Args:
        work: the map.
        execution: number of processes; 1 makes the parts in this one, 0 takes as many as suit the work.
        parts: how many there are to make.
    """
    gpus = []
    if resolve_device(work.device) == CUDA:
        import torch

        gpus = list(map(str, range(torch.cuda.device_count())))
        visible = os.environ.get(GPUS)
        if visible:
            gpus = visible.split(",")
    workers = execution.workers or len(gpus)
    if not workers:
        workers = usable_cores() if work.on_every_core else 1
    workers = min(workers, parts)
    if workers <= 1:
        host = Host(work, usable_cores())
        room = host.parts
        if host.parts > 1:
            room += 1
        yield MakerPool(1, room, lambda number: _ThisProcess(host))
        return

    cores = max(1, usable_cores() // workers)
    pickled = pickle.dumps(work)
    at_once = Host(work, cores).parts

    def begin(number: int) -> Maker:
        environment = {
            "OMP_NUM_THREADS": str(cores),
            "MKL_NUM_THREADS": str(cores),
        }
        if gpus:
            environment[GPUS] = gpus[number % len(gpus)]
        return _OtherProcess(pickled, at_once, cores, environment)

    yield MakerPool(workers, at_once + 1, begin)


class _ThisProcess(Maker):
    """Makes parts here: one in this thread, so that an interruption ends it at once, or several in threads."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._threads = None
        if host.parts > 1:
            self._threads = ThreadPoolExecutor(host.parts, thread_name_prefix="part")

    def send(self, part: Part, path: Path) -> Future[Answer]:
        if self._threads:
            return self._threads.submit(self._host.make, part, path)
        answer = Future()
        answer.set_result(self._host.make(part, path))
        return answer

    def end(self) -> None:
        self._host.stop()  # or the parts that are being made would be waited for
        if self._threads:
            self._threads.shutdown(cancel_futures=True)


class _OtherProcess(Maker):
    """A process that makes several parts at a time, each over a connection of its own."""

    died = (EOFError, OSError)

    def __init__(self, work: bytes, at_once: int, cores: int, environment: dict[str, str]) -> None:
        super().__init__()
        # Spawned, not forked: this process may run threads, which a fork would leave without their owners.
        context = get_context("spawn")
        self._connections = []
        theirs = []
        for _ in range(at_once):
            connection, other_end = context.Pipe()
            self._connections.append(connection)
            theirs.append(other_end)
        self._process = context.Process(target=_serve, args=(theirs, work, cores, environment), daemon=True)
        self._free = list(self._connections)
        self._threads = ThreadPoolExecutor(at_once)
        # A Ctrl-C of the terminal reaches it too, but it does not listen: this process ends it, once it has started.
        interrupts = []
        handler = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
        resource_tracker.ensure_running()  # or the start would begin it, which unblocks the signal
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # or the process would run the user's script once more
        try:
            self._process.start()
            self.tasks[self._threads.submit(self._connections[0].recv)] = None
        finally:
            sys.modules["__main__"] = script
            for connection in theirs:
                connection.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
        if interrupts:
            self.end()
            signal.raise_signal(signal.SIGINT)

    def send(self, part: Part, path: Path) -> Future[Answer]:
        return self._threads.submit(self._exchange, part, path)

    def _exchange(self, part: Part, path: Path) -> Answer:
        connection = self._free.pop()
        try:
            connection.send((part, path))
            return connection.recv()
        finally:
            self._free.append(connection)

    def end(self) -> None:
        self._process.kill()  # before the end of a connection tells it so
        self._process.join()
        self._threads.shutdown(cancel_futures=True)
        for connection in self._connections:
            connection.close()


def _serve(connections: Sequence[Connection], pickled: bytes, cores: int, environment: dict[str, str]) -> None:
    """Make parts that come over connections, and answer, until the process that started this one ends it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)  # before any library is imported that reads it
    try:
        host = Host(pickle.loads(pickled), cores)
    except BaseException as error:  # such as a module that is not there
        connections[0].send((sendable(error), 0.0))
        return
    connections[0].send((None, 0.0))

    def answer(connection: Connection) -> None:
        while True:
            connection.send(host.answer(*connection.recv()))

    with ThreadPoolExecutor(len(connections)) as pool:
        list(pool.map(answer, connections))


def _end_with_parent() -> None:
    """End this process with its parent, which when killed closes no connection that a worker waits for."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
