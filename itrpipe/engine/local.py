"""Makes parts on this machine: in this process, or in several that run beside it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from itrpipe.engine.device import resolve_device
from itrpipe.engine.queue import Outcome, Queue
from itrpipe.engine.work import Host, Part, Work

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
GPUS = "CUDA_VISIBLE_DEVICES"


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def made(work: Work, queue: Queue, workers: int) -> Generator[Outcome, None, None]:
    """Makes all parts of a queue.

    Args:
        work: the map.
        queue: parts and their files.
        workers: processes; 1 makes them in this one, 0 what suits the work.

    Yields:
        What became of each.
    """
    wanted = min(workers or (len(_visible_gpus()) if _on_gpu(work) else work.local_workers()), len(queue))
    if wanted > 1:
        yield from _by_processes(work, queue, wanted)
        return
    host = Host(work, usable_cores())
    try:
        yield from _by_threads(host, queue) if host.parts > 1 else _one_by_one(host, queue)
    finally:
        host.stop()


def _one_by_one(host: Host, queue: Queue) -> Iterator[Outcome]:
    while queue:
        part, path = queue.take()
        yield Outcome(part, memory=host.make(part, path))


def _by_threads(host: Host, queue: Queue) -> Iterator[Outcome]:
    """Makes several parts at the same time in this process."""
    running = deque[tuple[Part, Future[float]]]()
    pool = ThreadPoolExecutor(host.parts, thread_name_prefix="part")
    try:
        while queue or running:
            while queue and len(running) <= host.parts:
                part, path = queue.take()
                running.append((part, pool.submit(host.make, part, path)))
            part, future = running.popleft()
            yield Outcome(part, memory=future.result())
    finally:
        host.stop()  # or the parts that are being made would be waited for
        pool.shutdown(cancel_futures=True)


class _Answer(NamedTuple):
    """What a process says of a part.

    Attributes:
        name: of the part.
        error: why it is not made, and where that was.
        memory: GiB.
    """

    name: str
    error: tuple[BaseException, str] | None
    memory: float


class _Process:
    """A process that makes parts, and those that it has."""

    def __init__(self, work: bytes, cores: int, environment: dict[str, str]) -> None:
        # Spawned, not forked: this process may run threads, which a fork would leave without their owners.
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, cores, environment), daemon=True)
        # A Ctrl-C of the terminal reaches it too, but it does not listen: this process ends it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.parts: dict[str, tuple[Part, Path]] = {}

    def send(self, part: Part, path: Path) -> None:
        """Gives it a part; one that is dead by now is found out when its answer is read."""
        self.parts[part.name] = (part, path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((part, path))

    def answer(self) -> _Answer | None:
        """The next answer; None of a process that has died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):  # the latter where it died in the middle of an answer
            return None

    def end(self) -> None:
        """Ends it, whatever it does."""
        self.process.kill()  # before the end of the pipe tells it so
        self.process.join()
        self.connection.close()


def _by_processes(work: Work, queue: Queue, workers: int) -> Iterator[Outcome]:
    pickled, gpus = pickle.dumps(work), _visible_gpus() if _on_gpu(work) else []
    cores = max(1, usable_cores() // workers)
    at_once = Host(work, cores).parts

    def begin(number: int) -> _Process:
        environment: dict[str, str] = dict.fromkeys(THREADS, str(cores))
        if gpus:
            environment[GPUS] = gpus[number % len(gpus)]
        return _Process(pickled, cores, environment)

    processes: dict[int, _Process] = {}
    try:
        for number in range(workers):
            processes[number] = begin(number)
        while queue or any(each.parts for each in processes.values()):
            for number, each in list(processes.items()):
                if queue and not each.parts and not each.process.is_alive():
                    processes[number] = each = begin(number)
                while queue.has_for(each.parts.values(), at_once):
                    each.send(*queue.take())
            busy = {each.connection: number for number, each in processes.items() if each.parts}
            for ready in connection.wait(list(busy)):
                each = processes[busy[ready]]  # pyright: ignore[reportArgumentType]
                answer = each.answer()
                if answer is None:
                    yield from _bury(each, queue, at_once, len(processes))
                    continue
                part, _ = each.parts.pop(answer.name)
                if answer.error is not None:
                    raise told(*answer.error)
                yield Outcome(part, memory=answer.memory, workers=len(processes))
    finally:
        for each in processes.values():
            each.end()


def _bury(process: _Process, queue: Queue, overlap: int, workers: int) -> Iterator[Outcome]:
    """Takes back the parts of a process that has died; those that it worked at may have been the cause."""
    process.end()
    for place, (part, path) in enumerate(process.parts.values()):
        queue.give_back(part, path, died=place < overlap)
        if place < overlap:
            yield Outcome(part, died=True, workers=workers)
    process.parts.clear()


def _on_gpu(work: Work) -> bool:
    return work.device != "cpu" and resolve_device(work.device) == "cuda"


def _visible_gpus() -> list[str]:
    import torch

    named = os.environ.get(GPUS)
    return named.split(",") if named else list(map(str, range(torch.cuda.device_count())))


def told(error: BaseException, where: str) -> BaseException:
    """An error of a worker, with the traceback there as a note."""
    error.add_note(f"in a worker:\n{where}")
    return error


def _serve(theirs: Connection, pickled: bytes, cores: int, environment: dict[str, str]) -> None:
    """What a process does: parts come and answers go until the one that started it ends it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)  # before any library is imported that reads it
    try:
        work, sending = pickle.loads(pickled), threading.Lock()
    except BaseException as caught:  # such as a module that is not there
        part, _ = theirs.recv()
        theirs.send(_Answer(part.name, (_picklable(caught), traceback.format_exc()), 0.0))
        return
    host = Host(work, cores)

    def make(part: Part, path: Path) -> None:
        error, memory = None, 0.0
        try:
            memory = host.make(part, path)
        except BaseException as caught:
            error = (_picklable(caught), traceback.format_exc())
        with sending:
            theirs.send(_Answer(part.name, error, memory))

    with ThreadPoolExecutor(host.parts) as pool:
        while True:
            pool.submit(make, *theirs.recv())


def _picklable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    """A killed parent closes no pipe that a worker waits for, so it would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
