"""The processes of a launcher such as torchrun: the first runs the command, the others train along when it trains."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from itrpipe.errors import ItrpipeError, UnavailableError
from itrpipe.training.world import PATIENCE, World

_COURTESY = 5.0
"""Seconds in which the first process may tell of an error that all of them met."""
_SOON = 10.0
"""Seconds after which a process says for whom it waits."""
_GONE = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused")
_together = False


def together(command: Callable[[], object]) -> None:
    """Runs a command in the first process, while the others wait for its trainings and take part in them.

    Args:
        command: of the user.

    Raises:
        UnavailableError: another process has ended.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def meet() -> World:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        dist.init_process_group(backend, store=_fresh(store), rank=rank, world_size=size, timeout=PATIENCE)
        return World.joined()

    rank, size, address, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    world = _heard(meet, f"process {int(rank) + 1} of {size} waits for the others at {address}:{port}")
    try:
        _lead(world, command) if world.leads else _follow(world)
    except (RuntimeError, ItrpipeError) as error:
        gone = isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _GONE)
        if not world.leads:
            time.sleep(_COURTESY)
        if gone:
            raise UnavailableError(
                f"process {world.rank + 1} of {world.size}: another process of this training has ended, and tells why "
                "if it could; the same command goes on where it stopped"
            ) from None
        if world.leads or not isinstance(error, ItrpipeError):
            raise
        raise type(error)(f"process {world.rank + 1} of {world.size}: {error}") from None
    finally:
        World.leave()  # at the end of the process its threads would be in the way


def _end_with(launcher: int) -> None:
    """Interrupts this process when torchrun is gone, which can no longer end it when another one dies."""
    while os.getppid() == launcher:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _heard(wait: Callable[[], Any], whom: str = "") -> Any:
    """What a call of torch returns that may take days: beside it this thread hears signals.

    Args:
        wait: the call.
        whom: is printed where it takes long; empty where nobody has to know.
    """
    waiting: Future[Any] = Future()

    def run() -> None:
        try:
            waiting.set_result(wait())
        except BaseException as error:
            waiting.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return waiting.result(_SOON if whom else None)
    except TimeoutError:
        if not waiting.done():
            print(whom, file=sys.stderr, flush=True)
        return waiting.result()


def _fresh(store: Store) -> Store:
    """A store without what processes wrote that the launcher has started again since, such as their addresses.

    On several machines these do not count alike how often that was; see stages/README.md for what helps there.
    """
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        return store
    return PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _lead(world: World, command: Callable[[], object]) -> None:
    try:
        command()
    finally:
        if not _together:  # else the others are in the middle of something, and see that this process is gone
            world.agreed(None)


def _follow(world: World) -> None:
    while (task := _heard(lambda: world.agreed(None))) is not None:
        function, arguments = task
        function(*arguments)


@contextmanager
def joined_by(world: World, function: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Lets all other processes run a function while the first one runs a block.

    Args:
        world: all processes.
        function, arguments: are pickled.
    """
    global _together
    if world.size > 1 and world.leads:
        world.agreed((function, arguments))
        _together = True
    yield
    _together = False
