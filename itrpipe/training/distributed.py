"""The processes that train one model together, and how the rows that it computes are divided.

Every process computes the loss of the whole batch, from encodings that all of them have made a share of. So the mean of
their gradients, which `DistributedDataParallel` takes while the backward pass goes on, is the gradient of one process,
if the gradient of what was gathered is summed over the processes: each then holds what all of them know about its own
share.

Of a method whose loss is a sum over anchors (`Method.local`), each process computes the part of its own images and
captions, N times, so that the mean is again the loss; of N processes each holds 2/N of the scores [B, B]. It is what
open_clip calls local loss with gathered gradients. Models that score pair by pair divide the scores instead.

Of a step of N processes with B pairs, embeddings of width D and P parameters, each process receives
(N - 1)/N · B · 2 D · 4 bytes of embeddings and 2 (N - 1)/N · P · 4 bytes of gradients, in single precision. Models that
score pair by pair gather regions and words instead of embeddings, and their gradients, which are as large again.

A model says which of its methods give row k of the result for row k of some arguments (`Matcher.by_rows`). Spread, it
lets each process compute its share of these rows and gathers the result, so that whoever calls it, a method or the
validation, sees whole batches as if there were one process. The shape of a result follows from the shapes of the
arguments, so that each process knows those of the others without asking.

Encoders may also go over their rows in chunks, of which only the result is kept: the gradient of the loss by the
encodings is taken first, and the chunks are computed again one by one to carry it on. A step then takes the memory of
one chunk and of the encodings, for about a third more time.

Source of the latter: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from itrpipe.errors import ItrpipeError, UnavailableError, UsageError
from itrpipe.models.base import ENCODERS, Anchors, ImageBatch, Matcher, changed, rows_of

Value = TypeVar("Value")
PATIENCE = datetime.timedelta(days=30)
"""How long processes wait for the first one, which may extract features meanwhile; one that dies ends all at once."""


@dataclass
class World:
    """The processes that train a model, as one of them sees them. Each has to make the same calls in the same order.

    Attributes:
        rank: number of this one, from 0.
        size: how many there are.
        told: group over which sizes and decisions are exchanged, on the processor.
    """

    rank: int = 0
    size: int = 1
    told: Any = None

    @staticmethod
    def joined() -> World:
        """The processes of the group that torch has begun, or this one alone."""
        return _joined() if dist.is_initialized() and dist.get_world_size() > 1 else ALONE

    @staticmethod
    def leave() -> None:
        """Ends the group that torch has begun."""
        _joined.cache_clear()
        dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def own(self, rows: int) -> slice:
        """The rows of this process, of so many."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def counts(self, rows: int) -> list[int]:
        """How many of these rows each process has."""
        return [rows * (rank + 1) // self.size - rows * rank // self.size for rank in range(self.size)]

    def agreed(self, value: Value) -> Value:
        """What the first process has."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0, group=self.told)
        return held[0]

    def wait(self) -> None:
        """Waits until every process is here."""
        if self.size > 1:
            dist.barrier(group=self.told)

    def gathered(self, own: Tensor, counts: Sequence[int], *, alike: bool) -> Tensor:
        """All rows [sum of b, ...] of a tensor, process by process.

        Args:
            own: the rows of this process [b, ...]; those of other processes have the same shape behind the first axis.
            counts: b of every process.
            alike: every process computes the same from the result, so that its gradients are equal, and not each a part
                of the whole.
        """
        return _Gather.apply(own, self.rank, counts, alike)  # pyright: ignore[reportReturnType]

    @staticmethod
    def total(value: Tensor) -> Tensor:
        """The sum over the processes, without gradient."""
        held = value.detach().clone()
        dist.all_reduce(held)
        return held

    def summing(self, module: nn.Module) -> Any:
        """The module, whose backward pass leaves in every process the mean of the gradients of all of them."""
        if self.size == 1:
            return module
        # Of its own, so that these sums and the gathers of the backward pass never share a group.
        group = dist.new_group(timeout=PATIENCE)
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return DistributedDataParallel(
                module,
                process_group=group,
                broadcast_buffers=False,  # newer releases call it otherwise, and tell so
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
            )


ALONE = World()


@cache
def _joined() -> World:
    return World(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=PATIENCE))


class _Gather(torch.autograd.Function):
    """Rows of all processes; see `World.gathered`."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, rank: int, counts: Sequence[int], alike: bool) -> Tensor:
        ctx.rank, ctx.counts, ctx.alike = rank, counts, alike
        most = max(counts)
        sent = nn.functional.pad(own, [0, 0] * (own.ndim - 1) + [0, most - len(own)]).contiguous()
        held = own.new_empty(len(counts) * most, *own.shape[1:])
        dist.all_gather_into_tensor(held, sent)
        return torch.cat([each[:rows] for each, rows in zip(held.split(most), counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        parts = gradients[0].split(ctx.counts)
        if ctx.alike:
            return parts[ctx.rank] * len(parts), None, None, None
        padded = nn.utils.rnn.pad_sequence(list(parts), batch_first=True)  # [processes, most rows, ...]
        own = torch.empty_like(padded[0])
        dist.reduce_scatter_tensor(own, padded.flatten(0, 1))
        return own[: ctx.counts[ctx.rank]], None, None, None


AnyMatcher = Matcher[Any, Any]


@dataclass(frozen=True)
class OwnImages(ImageBatch):
    """The images of a batch that this process encodes, where it has not read the others.

    Attributes:
        rows: B, of the whole batch.
        first: of these rows that this process has read.
    """

    rows: int = 0
    first: int = 0

    def mirrored(self, chosen: Tensor) -> OwnImages:
        """See `ImageBatch`; bool [B] is of the whole batch."""
        assert self.pixels is not None
        return super().mirrored(chosen[self.first : self.first + len(self.pixels)])


class Spread:
    """How the rows of a model are divided.

    Args:
        world: the processes.
        chunk: rows of an encoder at a time in training; 0 for all of them.
        local: each process computes the losses of its own anchors.

    Attributes:
        counts: rows of every process of what is computed now; only all of them where each process computes all, and
            none where nothing is divided.
    """

    def __init__(self, world: World, chunk: int, local: bool = False) -> None:
        self.world, self.chunk, self.local = world, chunk, local and world.size > 1
        self.counts: list[int] = []
        self._seeds: Iterator[int] = count()

    def __deepcopy__(self, memo: dict[int, Any]) -> Spread:
        """A copy of a model is divided alike, by the same processes."""
        return self

    def averaged(self, *named: Mapping[str, float | Tensor]) -> list[dict[str, Tensor]]:
        """The means over the processes of numbers, without gradient; one tensor is among them, on their device."""
        values = [each for one in named for each in one.values()]
        device = next(each.device for each in values if isinstance(each, Tensor))
        held = torch.stack([torch.as_tensor(each, dtype=torch.float64, device=device) for each in values])
        means = iter(self.world.total(held) / self.world.size)
        return [{name: next(means) for name in one} for one in named]

    def begin_step(self, *place: int) -> None:
        """Lets random numbers of a process depend on the place of the step in the training."""
        self._seeds = count(int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0] >> 1))

    def end(self, model: AnyMatcher) -> None:
        """Lets a model compute everything itself again."""
        for module in model.modules():
            module.__class__ = getattr(type(module), "undivided", type(module))

    def compute(self, model: AnyMatcher, name: str, function: Callable, arguments: Sequence[Any]) -> Any:
        """The result of a method of a model, all rows of it.

        Args:
            model: whose method it is.
            name: of the method.
            function: the method, as the model defines it.
            arguments: of the method.
        """
        if self.counts:  # a method of the model calls another one, of which it has its own rows
            return function(*arguments)
        places = model.by_rows[name]
        held = arguments[places[0]]
        rows = held.rows if isinstance(held, OwnImages) else len(tensors_of(held)[0])
        chunk = self.chunk if name in ENCODERS and model.training else 0
        # Where there is not a row for each, all of them compute all.
        counts = self.world.counts(rows) if rows >= self.world.size else [rows]

        def inside(*own: Any) -> Any:
            self.counts = counts
            try:
                return function(*own)
            finally:
                self.counts = []

        if len(counts) == 1:
            return _in_chunks(inside, arguments, places, rows, chunk)
        own, device = self.world.own(rows), next(model.parameters()).device
        # Random numbers of this process alone; behind it they go on as they did before, alike in all processes.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed((next(self._seeds) * self.world.size + self.world.rank) % 2**63)
            taken = arguments if isinstance(held, OwnImages) else _at(arguments, places, own)
            found = _in_chunks(inside, taken, places, own.stop - own.start, chunk)
        alike = name not in ENCODERS or (model.by_rows.keys() <= set(ENCODERS) and not self.local)
        return changed(found, lambda tensor: self.world.gathered(tensor, counts, alike=alike))


def spread(model: AnyMatcher, world: World = ALONE, chunk: int = 0, local: bool = False) -> Spread:
    """Lets a model divide what it computes; with one process and no chunks it stays as it is.

    Args:
        model: is changed, on its device; BatchNorm then takes the statistics of the rows of all processes.
        world: the processes that train it.
        chunk, local: see `Spread`; losses stay whole where scores are divided.

    Raises:
        UsageError: chunks are asked for, and a layer of the model looks at the whole batch.
    """
    plan = Spread(world, chunk, local and model.by_rows.keys() <= set(ENCODERS))
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if chunk and norms:
        raise UsageError(
            f"encode_chunk = {chunk}, but {type(model).__name__} normalises over the whole batch, which chunks would "
            "change; give --set encode_chunk=0"
        )
    if world.size > 1:
        for norm in norms:
            norm.__class__ = _gathering(type(norm))
            norm.plan = plan  # pyright: ignore[reportArgumentType]
    if chunk or world.size > 1:
        model.__class__ = _spread_class(type(model))
        model.spread = plan  # pyright: ignore[reportArgumentType]
    return plan


@cache
def _spread_class(kind: type[AnyMatcher]) -> type[AnyMatcher]:
    """A class of the same models whose methods of `by_rows` are divided."""

    def divided(name: str) -> Callable:
        def method(self: Any, *arguments: Any) -> Any:
            return self.spread.compute(self, name, getattr(super(made, self), name), arguments)

        return method

    def anchors(self: Any, count: int) -> Anchors:
        world = self.spread.world
        if not self.spread.local or count < world.size:
            return Anchors(slice(0, count))
        rows = world.own(count)
        return Anchors(rows, world.size * (rows.stop - rows.start) / count, world.total)

    methods = {name: divided(name) for name in kind.by_rows}
    made = type(f"Spread{kind.__name__}", (kind,), {**methods, "anchors": anchors, "undivided": kind})
    return made


@cache
def _gathering(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """BatchNorm over the rows of all processes; of torch's own there is one for GPUs only."""

    class Gathering(kind):  # pyright: ignore[reportGeneralTypeIssues]
        """The same layer; in training it sees the rows of all processes."""

        plan: Spread
        undivided = kind

        def forward(self, rows: Tensor) -> Tensor:
            counts, rank = self.plan.counts, self.plan.world.rank
            if not self.training or len(counts) < 2:
                return super().forward(rows)
            each = len(rows) // counts[rank]  # of an image, for example its regions
            counts = [each * count for count in counts]
            whole = self.plan.world.gathered(rows, counts, alike=False)
            return super().forward(whole).split(counts)[rank]

    return Gathering


def _in_chunks(function: Callable, arguments: Sequence[Any], places: Sequence[int], rows: int, chunk: int) -> Any:
    """The result of a function of so many rows, chunk by chunk; of chunks, activations are not kept."""
    if not 0 < chunk < rows:
        return function(*arguments)
    parts = []
    for start in range(0, rows, chunk):
        own = _at(arguments, places, slice(start, min(start + chunk, rows)))
        parts.append(checkpoint(function, *own, use_reentrant=False) if torch.is_grad_enabled() else function(*own))
    joined = iter([torch.cat(each) for each in zip(*map(tensors_of, parts), strict=True)])
    return changed(parts[0], lambda _: next(joined))


def _at(arguments: Sequence[Any], places: Sequence[int], rows: slice) -> list[Any]:
    return [rows_of(each, rows) if place in places else each for place, each in enumerate(arguments)]


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a tensor or a dataclass of such, in order."""
    found = []
    changed(value, lambda tensor: found.append(tensor) or tensor)
    return found


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
        if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
            # Without what processes wrote, such as their addresses, that the launcher has started again since. On
            # several machines these do not count alike how often that was; stages/README.md says what helps there.
            store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        return World.joined()

    rank, size, address, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    world = _heard(meet, f"process {int(rank) + 1} of {size} waits for the others at {address}:{port}")
    try:
        if world.leads:
            try:
                command()
            finally:
                if not _together:  # else the others are in the middle of something, and see that this process is gone
                    world.agreed(None)
        while not world.leads and (task := _heard(lambda: world.agreed(None))) is not None:
            function, arguments = task
            function(*arguments)
    except (RuntimeError, ItrpipeError) as error:
        gone = isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _GONE)
        if not world.leads:
            time.sleep(_COURTESY)
        if gone:
            raise UnavailableError(
                f"process {world.rank + 1} of {world.size}: another process of this training has ended, and says why "
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
    waiting = Future()

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
