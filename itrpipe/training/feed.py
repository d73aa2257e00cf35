"""Batches on the device, copied there while it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

from itrpipe.methods.base import Batch


class Placed(NamedTuple):
    """A batch on its way to the device.

    Attributes:
        batch: on the device, once `copied` has happened.
        copied: event of a GPU; None where the batch is there.
    """

    batch: Batch
    copied: torch.cuda.Event | None


class Feed:
    """Copies batches to a device from a background thread.

    A GPU has a stream for copies alone, which run beside the kernels of the step before; nothing waits for them but the
    kernels that read them. A batch is kept until these have run: its memory would otherwise be taken for the next copy.

    Args:
        device: where batches go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._in_use: deque[tuple[torch.cuda.Event, Batch]] = deque()

    def place(self, make: Callable[[], Batch]) -> Placed:
        """Makes a batch and begins to copy it; for the background thread."""
        if self._copies is None:
            return Placed(make().to(self._device), None)
        with torch.cuda.stream(self._copies):  # parts of the batch may be made on the device
            placed = make().to(self._device)
        return Placed(placed, _recorded(self._copies))

    def take(self, placed: Placed) -> Batch:
        """The batch, for a step that begins now."""
        if placed.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(placed.copied)
        return placed.batch

    def done(self, placed: Placed) -> None:
        """Lets the batch go when all that was launched so far has run."""
        if placed.copied is None:
            return
        self._in_use.append((_recorded(torch.cuda.current_stream(self._device)), placed.batch))
        while self._in_use and self._in_use[0][0].query():
            self._in_use.popleft()


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event
