"""Makes parts on a Ray cluster, in actors of Ray Core; the files of parts lie on a file system that all nodes share."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.engine.execution import MapExecution
from itrpipe.engine.local import told, usable_cores
from itrpipe.engine.queue import MOST_DEATHS, Outcome, Queue
from itrpipe.engine.work import Host, Part, Work
from itrpipe.errors import MissingInputError, UnavailableError
from itrpipe.progress import Reporter

LEFT_ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TQDM_PATCH_PRINT": "0"}
"""What Ray is told unless the user says otherwise: it reports to nobody, and Python's `print` stays Python's."""
PATIENCE = 30.0
"""Seconds without a worker after which the user is told."""
_COLOUR = re.compile(r"\x1b\[\d*m")


def load_ray() -> Any:
    """The library.

    Raises:
        MissingInputError: it is not installed.
    """
    for name, value in LEFT_ALONE.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise MissingInputError("--engine ray needs the library Ray: pip install 'itrpipe[ray]'") from None
    return ray


@contextmanager
def connected(ray: Any, address: str, workers: int = 0) -> Iterator[None]:
    """A connection to a cluster, or to one of this machine alone that ends with it.

    Args:
        ray: of `load_ray`.
        address: of the cluster; empty starts one.
        workers: cores of the one that is started; 0 for those of the machine.

    Raises:
        UnavailableError: there is no cluster at that address.
    """
    if ray.is_initialized():
        yield
        return
    own: dict[str, Any] = {"address": "local", "num_cpus": workers or usable_cores(), "include_dashboard": False}
    on_end = signal.getsignal(signal.SIGTERM)
    try:
        try:
            given = {"address": _answering(address)} if address else own
            ray.init(log_to_driver=False, logging_level="error", **given)
        except Exception as error:  # Ray raises plain ones, too
            where = f"--address {address}" if address else "this machine"
            remedy = (
                "start one with `ray start --head`, set its RAY_AUTH_MODE and token here, or leave --address out for "
                "one of this machine alone"
                if address
                else "it may be too busy to start one; run the same command again, or leave --engine ray out"
            )
            reason = " ".join(str(error).split())
            raise UnavailableError(f"no Ray cluster answers at {where} ({reason}); {remedy}") from None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_end)  # Ray has taken it for itself
        yield
    finally:
        ray.shutdown()


def _answering(address: str) -> str:
    """Where a cluster is: Ray itself tries for minutes where nobody answers, and then ends the process.

    Raises:
        OSError: nobody answers.
        ValueError: it is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address  # what `ray.init` begins with

    found = address if "://" in address else canonicalize_bootstrap_address(address) or address
    host, _, port = found.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("give it as HOST:PORT, or as auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    return found


class Node(NamedTuple):
    """A machine of a cluster.

    Attributes:
        name: address.
        resources: name -> amount; memory in bytes.
        itrpipe: version there, or why there is none.
        sees_data: whether it has the data folder.
    """

    name: str
    resources: dict[str, float]
    itrpipe: str
    sees_data: bool


def nodes(ray: Any, root: Path) -> list[Node]:
    """The machines of the connected cluster.

    Args:
        ray: of `load_ray`.
        root: the data folder.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [each for each in ray.nodes() if each["Alive"]]
    look = ray.remote(num_cpus=0, max_retries=0)(_look)
    there = [NodeAffinitySchedulingStrategy(each["NodeID"], soft=False) for each in alive]
    asked = [look.options(scheduling_strategy=each).remote(root) for each in there]
    return [
        Node(each["NodeManagerAddress"], each["Resources"], *_seen(ray, answer))
        for each, answer in zip(alive, asked, strict=True)
    ]


def _seen(ray: Any, answer: Any) -> tuple[str, bool]:
    try:
        return ray.get(answer, timeout=PATIENCE)
    except ray.exceptions.RayError as error:
        return f"does not run ({_reason(error)})", False


def _look(root: Path) -> tuple[str, bool]:
    """What a node says of itself."""
    from itrpipe import __version__

    return __version__, root.is_dir()


def _text(error: Exception) -> str:
    """An error of Ray, most often with the traceback of a worker, without its colours."""
    return _COLOUR.sub("", str(error)).strip() or type(error).__name__


def _reason(error: Exception) -> str:
    """The last line of it, which says what it was."""
    return _text(error).splitlines()[-1].strip()


def made(work: Work, queue: Queue, execution: MapExecution, reporter: Reporter) -> Generator[Outcome, None, None]:
    """Makes all parts of a queue; see `itrpipe.engine.local.made`.

    Raises:
        MissingInputError: Ray is not installed.
        UnavailableError: there is no cluster at the address.
    """
    ray = load_ray()
    with connected(ray, execution.address, execution.workers):
        crew = _Crew(ray, work, execution.workers)
        try:
            yield from crew.make(queue, reporter)
        finally:
            crew.end()


class _Remote:
    """What runs in an actor: a host in the folder of the driver, where there is one."""

    def __init__(self, work: Work, folder: Path) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._host = Host(work)

    def begun(self) -> None:
        """Answers when the actor is there."""

    def make(self, part: Part, path: Path) -> float:
        return self._host.make(part, path)


class _Crew:
    """The actors of a map. They get parts once they are there: of more than the cluster has room for, some never are.

    Args:
        ray: the library.
        work: the map.
        workers: how many; 0 for as many as the cluster has room for.
    """

    def __init__(self, ray: Any, work: Work, workers: int) -> None:
        self._ray, self._work = ray, work
        resources = ray.cluster_resources()
        self._what = "GPU" if work.device == "cuda" or (work.device == "auto" and resources.get("GPU")) else "CPU"
        needs = {"num_cpus": 1, "num_gpus": int(self._what == "GPU")}
        self._actor = ray.remote(max_concurrency=work.overlap, max_restarts=0, **needs)(_Remote)
        self._description, self._folder = ray.put(work), Path.cwd()
        self._wanted = workers or max(1, int(resources.get(self._what, 0)))
        self._beginning: dict[Any, Any] = {}
        self._parts: dict[Any, dict[Any, tuple[Part, Path]]] = {}
        self._stillborn = 0

    def make(self, queue: Queue, reporter: Reporter) -> Iterator[Outcome]:
        """Yields what becomes of each part."""
        for _ in range(min(self._wanted, len(queue))):
            self._begin()
        while queue or any(self._parts.values()):
            for actor, own in self._parts.items():
                while queue.has_for(own.values(), self._work.overlap):
                    part, path = queue.take()
                    own[actor.make.remote(part, path.absolute())] = (part, path)
            owners = {answer: actor for actor, own in self._parts.items() for answer in own}
            ready, _ = self._ray.wait([*owners, *self._beginning], timeout=PATIENCE)
            if not ready and not self._parts:
                reporter.say(f"  no {self._what} of the cluster is free; waiting for one", style="yellow")
            for answer in ready:
                if answer in self._beginning:
                    self._welcome(answer)
                else:
                    yield from self._read(answer, owners[answer], queue)

    def _begin(self) -> None:
        actor = self._actor.remote(self._description, self._folder)
        self._beginning[actor.begun.remote()] = actor

    def _welcome(self, answer: Any) -> None:
        """Counts an actor in that is there, or begins another one for one that has died before, with its node perhaps.

        Raises:
            UnavailableError: no actor lives.
        """
        actor = self._beginning.pop(answer)
        try:
            self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._ray.kill(actor)
            self._stillborn += 1
            if self._stillborn < MOST_DEATHS + self._wanted:
                self._begin()
            elif not self._parts and not self._beginning:
                raise UnavailableError(
                    f"no worker of the Ray cluster begins ({_reason(error)}); see `itrpipe doctor --address`"
                ) from None
        else:
            self._parts[actor] = {}

    def _read(self, answer: Any, actor: Any, queue: Queue) -> Iterator[Outcome]:
        errors = self._ray.exceptions
        try:
            memory = self._ray.get(answer)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(_reason(error))
            raise told(cause, _text(error)) from None
        except errors.RayError:  # its process or its node has died, or nobody hears from it any more
            yield from self._bury(actor, queue)
            return
        part, _ = self._parts[actor].pop(answer)
        yield Outcome(part, memory=memory, workers=len(self._parts))

    def _bury(self, actor: Any, queue: Queue) -> Iterator[Outcome]:
        """Takes back the parts of an actor that has died, and begins another one."""
        own = self._parts.pop(actor)
        self._ray.kill(actor)
        for place, (part, path) in enumerate(own.values()):
            queue.give_back(part, path, died=place < self._work.overlap)
            if place < self._work.overlap:
                yield Outcome(part, died=True, workers=len(self._parts))
        if queue:
            self._begin()

    def end(self) -> None:
        """Ends all actors."""
        for actor in [*self._parts, *self._beginning.values()]:
            self._ray.kill(actor)
