"""The processes that train one model together: what each of them has is gathered, and gradients are averaged.

Every process computes the loss of the whole batch, from encodings that all of them have made a share of. So the mean of
their gradients is the gradient of one process, if the gradient of what was gathered is summed over the processes: each
then holds what all of them know about its own share.

Of a step of N processes with B pairs, embeddings of width D and P parameters, each process receives
(N - 1)/N · B · 2 D · 4 bytes of embeddings and 2 (N - 1)/N · P · 4 bytes of gradients, in single precision. Models that
score pair by pair gather regions and words instead of embeddings, and their gradients, which are as large again.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Value = TypeVar("Value")
PATIENCE = datetime.timedelta(days=30)
"""How long processes wait for the first one, which may extract features meanwhile; one that dies ends all at once."""
_BUCKET = 1 << 24
"""Numbers of gradients that are averaged at a time."""


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

    def __deepcopy__(self, memo: dict[int, Any]) -> World:
        """A copy of a model is trained by the same processes."""
        return self

    @property
    def leads(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def own(self, rows: int) -> slice:
        """The rows of this process, of so many."""
        return self._share(self.rank, rows)

    def _share(self, rank: int, rows: int) -> slice:
        return slice(rows * rank // self.size, rows * (rank + 1) // self.size)

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

    def gathered(self, own: Sequence[Tensor], rows: int, *, alike: bool) -> list[Tensor]:
        """All rows [B, ...] of several tensors.

        Args:
            own: the rows of this process [b, ...]; those of other processes may be wider or narrower behind the first
                axis, and narrower ones are filled with zeros.
            rows: B.
            alike: every process computes the same from the result, so that its gradients are equal, and not each a part
                of the whole.
        """
        wide = self._widest([each.shape[1:] for each in own])
        padded = [_padded(each, shape) for each, shape in zip(own, wide, strict=True)]
        shares = [self._share(rank, rows) for rank in range(self.size)]
        counts = [share.stop - share.start for share in shares]
        return [_Gather.apply(each, self, counts, alike) for each in padded]  # pyright: ignore[reportReturnType]

    def gathered_as_they_come(self, own: Tensor) -> tuple[Tensor, slice]:
        """All rows of a tensor of which each process has as many as it has, and where those of this one stand.

        Each process computes a part of the whole from them.
        """
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = len(own)
        dist.all_reduce(counts, group=self.told)
        whole = _Gather.apply(own, self, counts.tolist(), False)
        return whole, _place(self.rank, counts.tolist())  # pyright: ignore[reportReturnType]

    def _widest(self, shapes: Sequence[torch.Size]) -> list[tuple[int, ...]]:
        own = torch.tensor([extent for shape in shapes for extent in shape], dtype=torch.int64)
        dist.all_reduce(own, dist.ReduceOp.MAX, group=self.told)
        extents = iter(own.tolist())
        return [tuple(next(extents) for _ in shape) for shape in shapes]

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces the gradients of all processes by their mean, some megabytes at a time."""
        if self.size == 1:
            return
        known = [each for each in parameters if each.requires_grad]
        used = torch.tensor([each.grad is not None for each in known], dtype=torch.uint8)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self.told)
        for each, anywhere in zip(known, used.tolist(), strict=True):
            if anywhere and each.grad is None:
                each.grad = torch.zeros_like(each)
        gradients = [each.grad for each in known if each.grad is not None]
        for bucket in _buckets(gradients):
            flat = torch.cat([each.flatten() for each in bucket])
            dist.all_reduce(flat)
            flat /= self.size
            for gradient, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))

    @contextmanager
    def own_random_numbers(self, seed: int, device: torch.device) -> Iterator[None]:
        """Random numbers of this process alone; behind it they go on as they did before, alike in all processes."""
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed((seed * self.size + self.rank) % 2**63)
            yield


ALONE = World()


@cache
def _joined() -> World:
    return World(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=PATIENCE))


class _Gather(torch.autograd.Function):
    """Rows of all processes; see `World.gathered`."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, world: World, counts: list[int], alike: bool) -> Tensor:
        ctx.size, ctx.place, ctx.alike = world.size, _place(world.rank, counts), alike
        sent = own.new_zeros(max(counts), *own.shape[1:])
        sent[: len(own)] = own
        held = [torch.empty_like(sent) for _ in counts]
        dist.all_gather(held, sent)
        return torch.cat([each[:rows] for each, rows in zip(held, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        if ctx.alike:
            return gradient[ctx.place] * ctx.size, None, None, None
        whole = gradient.contiguous().clone()
        dist.all_reduce(whole)
        return whole[ctx.place], None, None, None


def _place(rank: int, counts: Sequence[int]) -> slice:
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])


def _padded(rows: Tensor, shape: Sequence[int]) -> Tensor:
    missing = [wide - narrow for wide, narrow in zip(shape, rows.shape[1:], strict=True)]
    if not any(missing):
        return rows
    return nn.functional.pad(rows, [extent for each in reversed(missing) for extent in (0, each)])


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for each in tensors:
        bucket.append(each)
        if sum(held.numel() for held in bucket) >= _BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
