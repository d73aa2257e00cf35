"""Makes parts on this machine: in this process, or in several that run beside it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from itrpipe.engine.run import Answer, Crew, Host, Maker, MapExecution, sendable
from itrpipe.engine.work import CUDA, Part, Work, resolve_device

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
GPUS = "CUDA_VISIBLE_DEVICES"


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def crew(work: Work, execution: MapExecution, parts: int) -> Iterator[Crew]:
    """Those who make parts on this machine.

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
    cores, pickled = max(1, usable_cores() // workers), pickle.dumps(work)
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
        self._free, self._threads, came = list(self._ours), ThreadPoolExecutor(at_once), []
        # A Ctrl-C of the terminal reaches it too, but it does not listen: this process ends it, once it has started.
        listens = threading.current_thread() is threading.main_thread()
        handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if listens else None
        resource_tracker.ensure_running()  # or the start would begin it, which unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
            self.parts[self._threads.submit(self._ours[0].recv)] = None
        finally:
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
    """What a process does: parts come and answers go until the one that started it ends it."""
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
