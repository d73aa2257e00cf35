"""Makes the parts of a map that are not there yet: which, by whom (`Maker`, `Crew`), and on this machine itself.

Parts are made in this process, or in several that run beside it. Light: plans read the settings of this file.
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
from typing import Generic, Literal, NamedTuple

from pydantic import Field, field_validator

from itrpipe.config import Settings
from itrpipe.engine.work import CUDA, Made, Part, Runner, Work, Worker, resolve_device
from itrpipe.errors import DataError, ItrpipeError, UnavailableError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, memory_gib, note_memory
from itrpipe.storage.artifact import DIVISION
from itrpipe.storage.disk import TEMPORARY, make_folder, read_stamped_json, write_stamped_json

PARTS = "parts"
_SHARE = re.compile(r"([1-9]\d*)/([1-9]\d*)")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
GPUS = "CUDA_VISIBLE_DEVICES"
MOST_DEATHS = 3
"""Workers that a part may kill before it is given up."""
PATIENCE = 30.0
"""Seconds without a worker after which the user is told."""
_COLOUR = re.compile(r"\x1b\[\d*m")
Answer = tuple[BaseException | None, float]
"""Why a part is not made, or None; and the largest memory of its process so far, GiB."""
Given = tuple[Part, Path]
"""A part that is to be made, and its file."""


class Share(NamedTuple):
    """Share `number` of `count` of the parts of a map, counted from 1, for the jobs of an array."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Reads `i/n`.

        Raises:
            ValueError: not of this form, or i is larger than n.
        """
        match = _SHARE.fullmatch(text)
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
    """Place where a stage makes the parts of its maps, and share of them that this job makes.

    Attributes:
        part: `i/n` makes one of n shares only; empty for all.
    """

    part: str = ""

    @field_validator("part")
    @classmethod
    def _is_share(cls, value: str) -> str:
        return value and str(Share.parse(value))


def share_of(execution: Settings) -> Share | None:
    """Return the share of its parts that a step makes; None where it makes all of them."""
    part = getattr(execution, "part", "")
    return Share.parse(part) if part else None


def whole(execution: Settings) -> Settings:
    """Return the settings of a job that makes all parts and is like another in all else."""
    return execution.model_copy(update={"part": ""}) if share_of(execution) else execution


@dataclass(eq=False)
class OthersMissing(Exception):  # noqa: N818 - no error: this job is done
    """This job has made its share of a map, and what follows needs the shares of other jobs.

    Attributes:
        share: that is made.
        rows: units of the map in this share.
        unit: what these are, in the plural.
        paths: files of all parts of the map.
        more: whether another map follows, which jobs can share again.
    """

    share: Share
    rows: int
    unit: str
    paths: list[Path]
    more: bool

    def missing(self) -> int:
        """Parts that nobody has made yet."""
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
    """Makes every part of a map that is not there yet.

    Args:
        work: the map.
        folder: of the files of its parts, for nothing else.
        execution: where they are made, and which share of them.
        reporter: shows the progress.
        warn: is told what was damaged.
        more: another map of the same stage needs this one.

    Raises:
        OthersMissing: this job makes a share of the parts, and has made it.
        DataError: a worker said so, or the parts that are there are of another division.
        ItrpipeError: a worker said so, or some parts killed their workers.
    """
    make_folder(folder)
    share = share_of(execution)
    record = folder / DIVISION
    division = {"key": work.key}
    if record.exists() and read_stamped_json(record, f"remove {folder} and run the same command again") != division:
        if share is not None:  # others may be at work on them
            raise DataError(
                f"{folder} holds parts of another division; give every part the same settings, or remove that folder"
            )
        reporter.say(f"  {work.title}: parts of another division are removed")
        for other in folder.iterdir():  # before the record, without which they would count as parts of this division
            if other != record:
                other.unlink()
        record.unlink()
    if not record.exists():
        write_stamped_json(record, division)
    every = [(part, folder / f"{part.name}{work.suffix}") for part in work.parts()]
    own = every[share.number - 1 :: share.count] if share else every
    found = [path for _, path in own if path.exists()]
    kept = set()
    damaged = 0
    with reporter.task("checking what is done", len(found), "parts") as task:
        for path in found:
            try:
                if work.keeps(path):
                    kept.add(path)
            except DataError:
                damaged += 1
            task.advance()
    if damaged:
        warn(f"{damaged:,} of {len(found):,} parts in {folder} were damaged; they are made again")
    todo = []
    total = 0
    rows = 0
    for part, path in own:
        total += part.rows
        if path not in kept:
            todo.append((part, path))
            rows += part.rows
    started = time.monotonic()
    try:
        if todo:
            begin = crew
            if execution.engine == "ray":
                begin = importlib.import_module("itrpipe.engine.ray").crew  # by name, since it reads this file
            with (
                reporter.task(work.title, total, work.unit, total - rows) as task,
                begin(work, execution, len(todo)) as makers,
                closing(makers.made(work.title, todo, reporter)) as made,
            ):
                for part, workers in made:
                    task.advance(part.rows, f"{workers} workers" if workers > 1 else "")
    finally:  # what workers that were killed have begun to write is nobody else's
        begun = tuple(f".{path.name}." for _, path in own)
        for path in folder.glob(f".*{TEMPORARY}"):
            if path.name.startswith(begun):
                path.unlink(missing_ok=True)
    paths = [path for _, path in every]
    if share is not None:
        raise OthersMissing(share, total, work.unit, paths, more)
    return Made(paths, rows, time.monotonic() - started)


@dataclass
class Maps(Runner):
    """Makes maps where execution settings say, so that an interrupted run goes on.

    Args:
        folder, reporter, warn: as of `Runner`.
        execution: where parts are made, and which share of them.
    """

    reporter: Reporter
    execution: MapExecution

    def made(self, work: Work, name: str, *, more: bool = False) -> Made:
        """Makes every part of a map that is not there yet; see `make_parts`."""
        folder = self.folder / PARTS / name
        return make_parts(work, folder, self.execution, self.reporter, self.warn, more=more)


# Who makes parts


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


def last_line(error: BaseException) -> str:
    """Return the last line of an error, most often behind the traceback of a worker, without its colours."""
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
        waiting = deque(todo)
        makers = dict[int, Maker]()
        deaths = Counter[str]()
        stillborn = 0
        reason = ""
        try:
            while waiting or any(maker.at_work() for maker in makers.values()):
                for number in range(min(self.count, len(waiting))):
                    if number not in makers and stillborn < MOST_DEATHS + self.count:
                        makers[number] = self.begin(number)
                if not makers:
                    raise UnavailableError(f"no worker begins ({reason}); {self.remedy}")
                answers = dict[Future[Answer], int]()
                for number, maker in makers.items():
                    answers |= dict.fromkeys(maker.parts, number)
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
                        for given in maker.at_work():
                            part = given[0].name
                            deaths[part] += 1
                            if deaths[part] < MOST_DEATHS:
                                reporter.say(f"  the worker of part {part} died; it is made again", style="yellow")
                                waiting.append(given)
                        continue
                    if error is not None:
                        raise error
                    note_memory(memory)
                    if given := maker.parts.pop(answer):
                        yield given[0], len(makers)
                for maker in makers.values():
                    while waiting and None not in maker.parts.values():  # it has begun
                        together = [*maker.at_work(), waiting[0]]
                        suspected = any(deaths[part.name] for part, _ in together)
                        if len(together) > (1 if suspected else self.room):
                            break
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


# This machine


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def crew(work: Work, execution: MapExecution, parts: int) -> Iterator[Crew]:
    """Yield the makers of parts on this machine.

    Args:
        work: the map.
        execution: says in how many processes; 1 makes them in this one, 0 what suits the work.
        parts: how many there are to make.
    """
    gpus = []
    if resolve_device(work.device) == CUDA:
        import torch

        named = os.environ.get(GPUS)
        gpus = named.split(",") if named else list(map(str, range(torch.cuda.device_count())))
    workers = min(execution.workers or len(gpus) or (usable_cores() if work.on_every_core else 1), parts)
    if workers <= 1:
        host = Host(work, usable_cores())
        yield Crew(1, host.parts + (host.parts > 1), lambda number: _Here(host))
        return
    cores = max(1, usable_cores() // workers)
    pickled = pickle.dumps(work)
    at_once = Host(work, cores).parts

    def begin(number: int) -> Maker:
        environment = dict.fromkeys(THREADS, str(cores)) | ({GPUS: gpus[number % len(gpus)]} if gpus else {})
        return _Process(pickled, at_once, cores, environment)

    yield Crew(workers, at_once + 1, begin)


class _Here(Maker):
    """This process: in this thread, so that an interruption ends a part at once, or in several."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._threads = ThreadPoolExecutor(host.parts, thread_name_prefix="part") if host.parts > 1 else None

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


class _Process(Maker):
    """A process that makes several parts at a time, each over a connection of its own."""

    died = (EOFError, OSError)

    def __init__(self, work: bytes, at_once: int, cores: int, environment: dict[str, str]) -> None:
        super().__init__()
        # Spawned, not forked: this process may run threads, which a fork would leave without their owners.
        context = get_context("spawn")
        self._ours, theirs = zip(*(context.Pipe() for _ in range(at_once)), strict=True)
        self._process = context.Process(target=_serve, args=(theirs, work, cores, environment), daemon=True)
        self._free = list(self._ours)
        self._threads = ThreadPoolExecutor(at_once)
        came = []
        # A Ctrl-C of the terminal reaches it too, but it does not listen: this process ends it, once it has started.
        listens = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if listens else None
        resource_tracker.ensure_running()  # or the start would begin it, which unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # or the process would run the user's script once more
        try:
            self._process.start()
            self.parts[self._threads.submit(self._ours[0].recv)] = None
        finally:
            sys.modules["__main__"] = script
            for each in theirs:
                each.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
        if came:
            self.end()
            signal.raise_signal(signal.SIGINT)

    def send(self, part: Part, path: Path) -> Future[Answer]:
        return self._threads.submit(self._ask, part, path)

    def _ask(self, part: Part, path: Path) -> Answer:
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
        for each in self._ours:
            each.close()


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
    """A killed parent closes no connection that a worker waits for, so it would wait for work for ever."""
    if parent := parent_process():
        parent.join()
        os._exit(1)
