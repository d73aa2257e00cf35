"""Makes parts on a Ray cluster, in actors of Ray Core; the files of parts lie on a file system that all nodes share."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.engine.run import Answer, Crew, Host, Maker, MapExecution, last_line, usable_cores
from itrpipe.engine.work import Part, Work
from itrpipe.errors import MissingInputError, UnavailableError, reason_of

LEFT_ALONE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TQDM_PATCH_PRINT": "0"}
"""Environment of Ray unless the user sets another: it reports to nobody, and Python's `print` stays Python's."""
_PATIENCE = 30.0
"""Seconds until a machine counts as one that does not answer."""


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
    own = {"address": "local", "num_cpus": workers or usable_cores(), "include_dashboard": False}
    where = "this machine"
    remedy = "it may be too busy to start one; run the same command again, or leave --engine ray out"
    if address:
        where = f"--address {address}"
        remedy = (
            "start one with `ray start --head`, set its RAY_AUTH_MODE and token here, or leave --address out for one "
            "of this machine alone"
        )
    on_end = signal.getsignal(signal.SIGTERM)
    try:
        try:
            given = {"address": _answering(address)} if address else own
            ray.init(log_to_driver=False, logging_level="error", **given)
        except Exception as error:  # Ray raises plain ones, too
            raise UnavailableError(f"no Ray cluster answers at {where} ({reason_of(error)}); {remedy}") from None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_end)  # Ray has taken it for itself
        yield
    finally:
        ray.shutdown()


def _answering(address: str) -> str:
    """Return the address of a cluster; Ray itself tries for minutes where nobody answers, and then ends the process.

    Raises:
        OSError: nobody answers.
        ValueError: it is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address  # what `ray.init` begins with

    found = address if "://" in address else canonicalize_bootstrap_address(address) or address
    host, _, port = found.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("give it as HOST:PORT, or as auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
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


def nodes(ray: Any, root: Path) -> Iterator[Node]:
    """The machines of the connected cluster.

    Args:
        ray: of `load_ray`.
        root: the data folder.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0, max_retries=0)(_look)
    for each in (node for node in ray.nodes() if node["Alive"]):
        there = NodeAffinitySchedulingStrategy(each["NodeID"], soft=False)
        try:
            seen: tuple[str, bool] = ray.get(look.options(scheduling_strategy=there).remote(root), timeout=_PATIENCE)
        except ray.exceptions.RayError as error:
            seen = f"does not run ({last_line(error)})", False
        yield Node(each["NodeManagerAddress"], each["Resources"], *seen)


def _look(root: Path) -> tuple[str, bool]:
    """Return the version of itrpipe on a node, and whether it has the data folder."""
    from itrpipe import __version__

    return __version__, root.is_dir()


@contextmanager
def crew(work: Work, execution: MapExecution, parts: int) -> Iterator[Crew]:
    """The actors of a map. They get parts once they are there: of more than the cluster has room for, some never are.

    Args:
        work: the map.
        execution: where the cluster is, and how many there are; 0 for as many as it has room for.
        parts: how many there are to make.

    Raises:
        MissingInputError: Ray is not installed.
        UnavailableError: there is no cluster at the address.
    """
    ray = load_ray()
    with connected(ray, execution.address, execution.workers):
        room = ray.cluster_resources()
        what = "GPU" if work.device == "cuda" or (work.device == "auto" and room.get("GPU")) else "CPU"
        actor = ray.remote(max_concurrency=work.overlap, num_cpus=1, num_gpus=int(what == "GPU"))(_Remote)
        description = ray.put(work)
        folder = Path.cwd()
        count = execution.workers or max(1, int(room.get(what, 0)))
        remedy = "see `itrpipe doctor --address`"
        yield Crew(count, work.overlap + 1, lambda number: _Actor(ray, actor.remote(description, folder)), remedy)


class _Remote:
    """A host in an actor, in the folder of the driver, where there is one."""

    def __init__(self, work: Work, folder: Path) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._host = Host(work)

    def begun(self) -> Answer:
        """Answers when the actor is there."""
        return None, 0.0

    def make(self, part: Part, path: Path) -> Answer:
        return self._host.answer(part, path)


class _Actor(Maker):
    """An actor of the cluster, or one that waits for room."""

    def __init__(self, ray: Any, actor: Any) -> None:
        super().__init__()
        self.died = (ray.exceptions.RayError,)
        self._ray = ray
        self._actor = actor
        self.parts[actor.begun.remote().future()] = None

    def send(self, part: Part, path: Path) -> Future[Answer]:
        return self._actor.make.remote(part, path.absolute()).future()

    def end(self) -> None:
        self._ray.kill(self._actor)
