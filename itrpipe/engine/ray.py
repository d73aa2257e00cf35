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
from types import ModuleType
from typing import Any, NamedTuple

from itrpipe.engine.run import Answer, Host, Maker, MakerPool, MapExecution, last_line, usable_cores
from itrpipe.engine.work import Part, Work
from itrpipe.errors import MissingInputError, UnavailableError, reason_of

_PATIENCE = 30.0
"""Seconds until a machine counts as one that does not answer."""


def load_ray() -> ModuleType:
    """Import the library Ray and return it.

    Raises:
        MissingInputError: it is not installed.
    """
    # Ray reports to nobody, and Python's `print` stays Python's, unless the user sets otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")
    try:
        import ray
    except ImportError:
        raise MissingInputError("--engine ray needs the library Ray: pip install 'itrpipe[ray]'") from None
    return ray


@contextmanager
def connected(ray: ModuleType, address: str, workers: int = 0) -> Iterator[None]:
    """Connect to a cluster, or to one of this machine alone that ends with the connection.

    Args:
        ray: the library, see `load_ray`.
        address: address of the cluster; empty starts one.
        workers: cores of the cluster that is started; 0 for all that this process may use.

    Raises:
        UnavailableError: there is no cluster at that address.
    """
    if ray.is_initialized():
        yield
        return
    if address:
        where = f"--address {address}"
        remedy = (
            "start one with `ray start --head`, set its RAY_AUTH_MODE and token here, or leave --address out for one "
            "of this machine alone"
        )
    else:
        where = "this machine"
        remedy = "it may be too busy to start one; run the same command again, or leave --engine ray out"
    on_end = signal.getsignal(signal.SIGTERM)
    try:
        try:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            if address:
                ray.init(_reachable_address(address), **options)
            else:
                ray.init("local", num_cpus=workers or usable_cores(), include_dashboard=False, **options)
        except Exception as error:  # Ray raises plain ones, too
            raise UnavailableError(f"no Ray cluster answers at {where} ({reason_of(error)}); {remedy}") from None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_end)  # Ray has taken it for itself
        yield
    finally:
        ray.shutdown()


def _reachable_address(address: str) -> str:
    """Return the address of a cluster once something answers there.

    Ray itself tries for minutes where nobody answers, and then ends the process.

    Raises:
        OSError: nobody answers.
        ValueError: it is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address  # what `ray.init` begins with

    if "://" not in address:
        address = canonicalize_bootstrap_address(address) or address
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("give it as HOST:PORT, or as auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    return address


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


def nodes(ray: ModuleType, root: Path) -> Iterator[Node]:
    """Yield the machines of the connected cluster.

    Args:
        ray: the library, see `load_ray`.
        root: the data folder.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    inspect = ray.remote(num_cpus=0, max_retries=0)(_inspect_node)
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        try:
            answer = inspect.options(scheduling_strategy=there).remote(root)
            version, sees_data = ray.get(answer, timeout=_PATIENCE)
        except ray.exceptions.RayError as error:
            version = f"does not run ({last_line(error)})"
            sees_data = False
        yield Node(node["NodeManagerAddress"], node["Resources"], version, sees_data)


def _inspect_node(root: Path) -> tuple[str, bool]:
    """Return the version of itrpipe on a node, and whether it has the data folder."""
    from itrpipe import __version__

    return __version__, root.is_dir()


@contextmanager
def ray_makers(work: Work, execution: MapExecution, parts: int) -> Iterator[MakerPool]:
    """Yield the actors of a map, which get parts once they have begun.

    Where there are more of them than the cluster has room for, some never begin.

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
        resources = ray.cluster_resources()
        on_gpu = work.device == "cuda" or (work.device == "auto" and bool(resources.get("GPU")))
        count = execution.workers or max(1, int(resources.get("GPU" if on_gpu else "CPU", 0)))
        actor = ray.remote(max_concurrency=work.overlap, num_cpus=1, num_gpus=int(on_gpu))(_RemoteHost)
        description = ray.put(work)
        folder = Path.cwd()

        def begin(number: int) -> Maker:
            return _Actor(ray, actor.remote(description, folder))

        yield MakerPool(count, work.overlap + 1, begin, remedy="see `itrpipe doctor --address`")


class _RemoteHost:
    """A host in an actor, in the folder of the driver, where there is one."""

    def __init__(self, work: Work, folder: Path) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        self._host = Host(work)

    def begun(self) -> Answer:
        """Answer as soon as the actor is there."""
        return None, 0.0

    def make(self, part: Part, path: Path) -> Answer:
        return self._host.answer(part, path)


class _Actor(Maker):
    """An actor of the cluster, or one that waits for room."""

    def __init__(self, ray: ModuleType, actor: Any) -> None:
        super().__init__()
        self.died = (ray.exceptions.RayError,)
        self._ray = ray
        self._actor = actor
        self.tasks[actor.begun.remote().future()] = None

    def send(self, part: Part, path: Path) -> Future[Answer]:
        return self._actor.make.remote(part, path.absolute()).future()

    def end(self) -> None:
        self._ray.kill(self._actor)
