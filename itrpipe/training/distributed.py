"""The processes that train one model together, and how the rows that it computes are divided.

Every process computes the loss of the whole batch, from encodings that all of them have made a share of. So the mean of
their gradients, which `DistributedDataParallel` takes while the backward pass goes on, is the gradient of one process,
if the gradient of gathered rows is summed over the processes: each then holds the whole gradient of its own share.

Models that score pair by pair divide the scores as well, and each process knows a part of the gradient of encodings.

Of a step of N processes with B pairs, embeddings of width D and P parameters, each process receives
(N - 1)/N · B · 2 D · 4 bytes of embeddings and 2 (N - 1)/N · P · 4 bytes of gradients, in single precision. Models that
score pair by pair gather regions and words instead of embeddings, and their gradients, which are as large again.

A model says which of its methods give row k of the result for row k of some arguments (`Matcher.by_rows`). A
`SharedModel` around it lets each process compute its share of these rows and gathers the result, so that whoever calls
it, a method or the validation, sees whole batches as if there were one process. The shape of a result follows from the
shapes of the arguments, so that each process knows those of the others without asking.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from itertools import pairwise
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

from itrpipe.engine.work import CUDA
from itrpipe.errors import ItrpipeError, UnavailableError, UsageError
from itrpipe.models.base import ENCODERS, AnyMatcher, ImageBatch, change_tensors

Value = TypeVar("Value")
PATIENCE = datetime.timedelta(days=30)
"""Time that processes wait for the first one, which may extract features meanwhile; one that dies ends all at once."""


@dataclass(frozen=True)
class Processes:
    """The processes that train a model, as one of them sees them. Each has to make the same calls in the same order.

    Attributes:
        rank: number of this one, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def joined(cls) -> Processes:
        """Return the processes of the group that torch has begun, or this one alone."""
        if not dist.is_initialized():
            return ALONE
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Return whether this process is the first one, which writes and speaks."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """Return the rows of this process, of so many."""
        start = rows * self.rank // self.size
        end = rows * (self.rank + 1) // self.size
        return slice(start, end)

    def counts(self, rows: int) -> list[int]:
        """Return how many of these rows each process has."""
        ends = [rows * rank // self.size for rank in range(self.size + 1)]
        return [end - start for start, end in pairwise(ends)]

    def agreed(self, value: Value) -> Value:
        """Return the value of the first process, for which the others wait."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def averaging_gradients(self, module: nn.Module) -> Any:
        """Return the module, whose backward pass leaves in every process the mean of the gradients of all of them."""
        if self.size == 1:
            return module
        # Another group, so that these sums and the gathers of the backward pass never share a group.
        group = dist.new_group(timeout=PATIENCE)
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return DistributedDataParallel(
                module,
                process_group=group,
                broadcast_buffers=False,  # newer releases have another name for it, and warn
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
            )


ALONE = Processes()


def gather(rows: Tensor, counts: Sequence[int], *, alike: bool) -> Tensor:
    """Return the rows [sum of b, ...] of all processes, process by process; the gradient comes back to each.

    Args:
        rows: of this process [b, ...]; those of other processes have the same shape behind the first axis.
        counts: b of every process.
        alike: every process computes the same from the result, so that its gradients are equal, and not each a part of
            the whole.
    """
    return _Gather.apply(rows, counts, alike)  # pyright: ignore[reportReturnType]


class _Gather(torch.autograd.Function):
    """Rows of all processes; see `gather`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], alike: bool) -> Tensor:
        ctx.counts = counts
        ctx.alike = alike
        longest = max(counts)
        missing_rows = [0, longest - len(rows)]
        padding = [0, 0] * (rows.ndim - 1) + missing_rows  # torch counts axes from the last
        padded = nn.functional.pad(rows, padding).contiguous()
        gathered = rows.new_empty(len(counts) * longest, *rows.shape[1:])
        dist.all_gather_into_tensor(gathered, padded)
        parts = []
        for part, count in zip(gathered.split(longest), counts, strict=True):
            parts.append(part[:count])
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        parts = gradients[0].split(ctx.counts)
        rank = dist.get_rank()
        if ctx.alike:
            return parts[rank] * len(parts), None, None
        padded = nn.utils.rnn.pad_sequence(list(parts), batch_first=True)  # [processes, most rows, ...]
        gradient = torch.empty_like(padded[0])
        dist.reduce_scatter_tensor(gradient, padded.flatten(0, 1))
        return gradient[: ctx.counts[rank]], None, None


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


@dataclass
class Division:
    """The division of the rows of a call among the processes, while this one computes its own.

    Attributes:
        processes: that share the rows.
        counts: rows of every process; empty while each computes all of them.
        seed: of the random numbers of the next call.
    """

    processes: Processes
    counts: list[int] = field(default_factory=list)
    seed: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Division:
        """Return itself: a copy of a model is divided among the same processes, and draws after it."""
        return self

    def seed_step(self, *place: int) -> None:
        """Let random numbers of a process depend on the place of the step in the training."""
        state = np.random.SeedSequence(place).generate_state(1, np.uint64)[0]
        self.seed = int(state >> 1)


class SharedModel(nn.Module):
    """A model as methods and validation call it: every call gives all rows, of which each process computes its own.

    The methods that `Matcher.by_rows` names are divided, all else is the model's. With one process and no chunks a call
    is that of the model.

    Args:
        model: on its device. Its BatchNorm takes the statistics of the rows of all processes from now on.
        processes: those that train it.
        chunk: rows that an encoder computes at a time in training; 0 for all of them.

    Raises:
        UsageError: chunks are asked for, and a layer of the model looks at the whole batch.
    """

    def __init__(self, model: AnyMatcher, processes: Processes = ALONE, chunk: int = 0) -> None:
        super().__init__()
        self.model = model
        self.division = Division(processes)
        self.chunk = chunk
        self.training = model.training
        self.divides_scores = not model.by_rows.keys() <= ENCODERS.keys()
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        if chunk and norms:
            raise UsageError(
                f"encode_chunk = {chunk}, but {type(model).__name__} normalises over the whole batch, which chunks "
                "would change; give --set encode_chunk=0"
            )
        if processes.size > 1:
            for norm in norms:
                norm.register_forward_pre_hook(partial(_gather_all_rows, self.division))
                norm.register_forward_hook(partial(_take_own_rows, self.division))

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the model; its methods of `by_rows` are divided."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            model: Any = super().__getattr__("model")
        if name in model.by_rows:
            return partial(self._divided, name)
        return getattr(model, name)

    def _divided(self, name: str, *arguments: Any) -> Any:
        """Compute the rows of this process of a method of the model, and gather those of the others."""
        function = getattr(self.model, name)
        places = self.model.by_rows[name]
        division = self.division
        processes = division.processes
        encodes = name in ENCODERS
        first = arguments[places[0]]
        rows = first.rows if isinstance(first, OwnImages) else len(tensors_of(first)[0])
        chunk = self.chunk if encodes and self.model.training else 0
        if processes.size == 1 or rows < processes.size:  # without a row for each, all of them compute all
            return in_chunks(function, arguments, places, rows, chunk)
        share = processes.share(rows)
        counts = processes.counts(rows)
        if not isinstance(first, OwnImages):
            arguments = _at(arguments, places, share)
        device = next(self.parameters()).device
        devices = [device] if device.type == CUDA else []
        # Random numbers of this process alone; behind it they go on as they did before, alike in all processes.
        with torch.random.fork_rng(devices):
            torch.manual_seed((division.seed * processes.size + processes.rank) % 2**63)
            division.seed += 1
            division.counts = counts
            try:
                result = in_chunks(function, arguments, places, share.stop - share.start, chunk)
            finally:
                division.counts = []
        # Of encodings of which each process scores a part, it also knows a part of the gradient only.
        alike = not encodes or not self.divides_scores
        return change_tensors(result, lambda tensor: gather(tensor, counts, alike=alike))


def _gather_all_rows(division: Division, norm: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """Give BatchNorm the rows of all processes, while they are divided in training."""
    if not norm.training or not division.counts:
        return None
    (rows,) = inputs
    vectors = len(rows) // division.counts[division.processes.rank]  # of an image, for example its regions
    return gather(rows, [vectors * count for count in division.counts], alike=False)


def _take_own_rows(division: Division, norm: nn.Module, inputs: tuple[Tensor, ...], whole: Tensor) -> Tensor | None:
    """Take the own rows from the output of BatchNorm for all rows."""
    if not norm.training or not division.counts:
        return None
    vectors = len(whole) // sum(division.counts)
    return whole.split([vectors * count for count in division.counts])[division.processes.rank]


def in_chunks(
    function: Callable,
    arguments: Sequence[Any],
    places: Sequence[int],
    rows: int,
    chunk: int,
) -> Any:
    """Return the result of a function, computed chunk by chunk; activations of chunks are not kept.

    Args:
        function: gives row k of the result for row k of some arguments.
        arguments: of the function.
        places: of the arguments that have these rows.
        rows: how many there are.
        chunk: rows of a chunk; 0 for all of them at once.
    """
    if not 0 < chunk < rows:
        return function(*arguments)
    results = []
    for start in range(0, rows, chunk):
        part = _at(arguments, places, slice(start, min(start + chunk, rows)))
        if torch.is_grad_enabled():
            results.append(checkpoint(function, *part, use_reentrant=False))
        else:
            results.append(function(*part))
    tensors = zip(*map(tensors_of, results), strict=True)
    joined = map(torch.cat, tensors)
    return change_tensors(results[0], lambda _: next(joined))


def _at(arguments: Sequence[Any], places: Sequence[int], rows: slice) -> tuple[Any, ...]:
    """Return the arguments, of those at some places these rows alone."""
    divided = list(arguments)
    for place in places:
        divided[place] = arguments[place][rows]
    return tuple(divided)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in a tensor or a dataclass of such, in order."""
    if isinstance(value, Tensor):
        return [value]
    tensors = []
    if is_dataclass(value):
        for part in fields(value):
            tensors += tensors_of(getattr(value, part.name))
    return tensors


_SECONDS_TO_TELL = 5.0
"""Seconds in which the first process may print an error that all of them met."""
_SECONDS_TO_WAIT = 10.0
"""Seconds after which a process says for whom it waits."""
_LOST_CONNECTION = ("connection closed by peer", "connection reset by peer", "broken pipe", "connection refused")


def run_in_first_process(command: Callable[[], object]) -> None:
    """Run a command in the first process, while the others wait for its trainings and take part in them.

    Args:
        command: of the user.

    Raises:
        UnavailableError: another process has ended.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    rank = int(os.environ["RANK"])
    size = os.environ["WORLD_SIZE"]
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    processes = _wait(_join_processes, f"process {rank + 1} of {size} waits for the others at {address}")
    try:
        if processes.leads:
            try:
                command()
            finally:
                if dist.is_initialized():  # else it has left the others in the middle of a training
                    processes.agreed(None)
        else:
            while True:
                task = _wait(lambda: processes.agreed(None))
                if task is None:
                    break
                function, argument = task
                function(argument)
    except (RuntimeError, ItrpipeError) as error:
        if not processes.leads:
            time.sleep(_SECONDS_TO_TELL)
        message = str(error).lower()
        if isinstance(error, RuntimeError) and any(sign in message for sign in _LOST_CONNECTION):
            raise UnavailableError(
                f"process {processes.rank + 1} of {processes.size}: another process of this training has ended, and "
                "says why if it could; the same command goes on where it stopped"
            ) from None
        if processes.leads or not isinstance(error, ItrpipeError):
            raise
        raise type(error)(f"process {processes.rank + 1} of {processes.size}: {error}") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()  # at the end of the process its threads would be in the way


def _join_processes() -> Processes:
    """Begin the group of the processes that a launcher has started."""
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # Without what processes wrote, such as their addresses, that the launcher has started again since. On
        # several machines these do not count alike how often that was; stages/README.md says what helps there.
        store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    return Processes.joined()


def _end_with(launcher: int) -> None:
    """Interrupt this process when torchrun is gone, which can no longer end it when another one dies."""
    while os.getppid() == launcher:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait(call: Callable[[], Any], message: str = "") -> Any:
    """Return the result of a call of torch that may take days; beside it this thread hears signals.

    Args:
        call: runs in a thread of its own; its error is raised here.
        message: is printed where it takes long; empty where nobody has to know.
    """
    result = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # is raised where the result is waited for
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return result.result(_SECONDS_TO_WAIT if message else None)
    except TimeoutError:
        if not result.done():
            print(message, file=sys.stderr, flush=True)
        return result.result()


@contextmanager
def others_run(function: Callable[[Any], object], argument: Any) -> Iterator[None]:
    """Let all other processes run a function while the first one runs a block.

    Where the block fails, the first one leaves their group, by which the others see that it is gone.

    Args:
        function, argument: are pickled.
    """
    processes = Processes.joined()
    processes.agreed((function, argument))
    try:
        yield
    except BaseException:
        if processes.size > 1:
            dist.destroy_process_group()
        raise
