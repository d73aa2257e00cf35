"""Divides what a model computes row by row: among the processes that train it, and into chunks that fit in memory.

A model says which of its methods give row k of the result for row k of some arguments (`Matcher.by_rows`). Spread, it
lets each process compute its share of these rows and gathers the result, so that whoever calls it, a method or the
validation, sees whole batches as if there were one process.

Encoders may also go over their rows in chunks, of which only the result is kept: the gradient of the loss by the
encodings is taken first, and the chunks are computed again one by one to carry it on. A step then takes the memory of
one chunk and of the encodings, for about a third more time.

Source of the latter: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from itrpipe.errors import UsageError
from itrpipe.models.base import ENCODERS, ImageBatch, Matcher
from itrpipe.training.world import ALONE, World

AnyMatcher = Matcher[Any, Any]


@dataclass(frozen=True)
class OwnImages(ImageBatch):
    """The images of a batch that this process encodes, where it has not read the others.

    Attributes:
        rows: B, of the whole batch.
    """

    rows: int = 0


_DIVIDED: dict[type[nn.Module], Any] = {}
"""Class of modules that divide their rows -> that of modules that do not."""


class Spread:
    """How the rows of a model are divided.

    Args:
        world: the processes.
        chunk: rows of an encoder at a time in training; 0 for all of them.

    Attributes:
        undivided: whether every process computes all rows now.
    """

    def __init__(self, world: World, chunk: int) -> None:
        self.world, self.chunk = world, chunk
        self.undivided, self._inside = False, False
        self._seeds: Iterator[int] = count()

    def __deepcopy__(self, memo: dict[int, Any]) -> Spread:
        """A copy of a model is divided alike."""
        return self

    def begin_step(self, *place: int) -> None:
        """Lets random numbers of a process depend on the place of the step in the training."""
        self._seeds = count(int(np.random.SeedSequence(place).generate_state(1, np.uint64)[0] >> 1))

    def end(self, model: AnyMatcher) -> None:
        """Lets a model compute everything itself again."""
        for module in model.modules():
            if type(module) in _DIVIDED:
                module.__class__ = _DIVIDED[type(module)]

    def compute(self, model: AnyMatcher, name: str, function: Callable, arguments: Sequence[Any]) -> Any:
        """The result of a method of a model, all rows of it.

        Args:
            model: whose method it is.
            name: of the method.
            function: the method, as the model defines it.
            arguments: of the method.
        """
        if self._inside:  # a method of the model calls another one, of which it has its own rows
            return function(*arguments)
        places = model.by_rows[name]
        held = arguments[places[0]]
        rows = held.rows if isinstance(held, OwnImages) else row_count(held)
        chunk = self.chunk if name in ENCODERS and model.training else 0

        def inside(*own: Any) -> Any:
            with self._within():
                return function(*own)

        if self.world.size == 1:
            return _in_chunks(inside, arguments, places, rows, chunk)
        if rows < self.world.size:  # there is not a row for each: all of them compute all
            self.undivided = True
            try:
                return inside(*arguments)
            finally:
                self.undivided = False
        own = self.world.own(rows)
        device = next(model.parameters()).device
        with self.world.own_random_numbers(next(self._seeds), device):
            taken = arguments if isinstance(held, OwnImages) else _at(arguments, places, own)
            found = _in_chunks(inside, taken, places, own.stop - own.start, chunk)
        alike = name not in ENCODERS or model.by_rows.keys() <= set(ENCODERS)
        return with_tensors(found, iter(self.world.gathered(tensors_of(found), rows, alike=alike)))

    @contextmanager
    def _within(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before


def spread(model: AnyMatcher, world: World = ALONE, chunk: int = 0) -> Spread:
    """Lets a model divide what it computes; with one process and no chunks it stays as it is.

    Args:
        model: is changed, on its device; BatchNorm then takes the statistics of the rows of all processes.
        world: the processes that train it.
        chunk: see `Spread`.

    Raises:
        UsageError: chunks are asked for, and a layer of the model looks at the whole batch.
    """
    plan = Spread(world, chunk)
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

    made = type(f"Spread{kind.__name__}", (kind,), {name: divided(name) for name in kind.by_rows})
    _DIVIDED[made] = kind
    return made


@cache
def _gathering(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """BatchNorm over the rows of all processes; of torch's own there is one for GPUs only."""

    class Gathering(kind):  # pyright: ignore[reportGeneralTypeIssues]
        """The same layer; in training it sees the rows of all processes."""

        plan: Spread

        def forward(self, rows: Tensor) -> Tensor:
            if not self.training or self.plan.undivided:
                return super().forward(rows)
            whole, own = self.plan.world.gathered_as_they_come(rows)
            return super().forward(whole)[own]

    Gathering.__name__ = f"Gathering{kind.__name__}"
    _DIVIDED[Gathering] = kind
    return Gathering


def _in_chunks(function: Callable, arguments: Sequence[Any], places: Sequence[int], rows: int, chunk: int) -> Any:
    """The result of a function of so many rows, chunk by chunk; of chunks, activations are not kept."""
    if not 0 < chunk < rows:
        return function(*arguments)
    parts = []
    for start in range(0, rows, chunk):
        own = _at(arguments, places, slice(start, min(start + chunk, rows)))
        parts.append(checkpoint(function, *own, use_reentrant=False) if torch.is_grad_enabled() else function(*own))
    joined = (torch.cat(each) for each in zip(*map(tensors_of, parts), strict=True))
    return with_tensors(parts[0], joined)


def _at(arguments: Sequence[Any], places: Sequence[int], rows: slice) -> list[Any]:
    return [take(each, rows) if place in places else each for place, each in enumerate(arguments)]


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a tensor or a dataclass of such, in order."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value) and not isinstance(value, type):
        return [each for field in fields(value) for each in tensors_of(getattr(value, field.name))]
    return []


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with other tensors, in the order of `tensors_of`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: with_tensors(getattr(value, field.name), tensors) for field in fields(value)}
        return replace(value, **held)
    return value


def take(value: Any, rows: slice) -> Any:
    """Some rows of a tensor or a dataclass of tensors."""
    return with_tensors(value, iter([each[rows] for each in tensors_of(value)]))


def row_count(value: Any) -> int:
    """Rows of the first tensor."""
    return len(tensors_of(value)[0])
