"""The batches of an epoch, and how they come to the device: `epoch_batches` cuts them, `feed` makes them ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch

from itrpipe.engine.work import CUDA
from itrpipe.models.base import Tensors

ItemT = TypeVar("ItemT")
BatchT = TypeVar("BatchT", bound=Tensors)
_ORDER = 1
"""Last seed of an epoch's order, which differs from those of its steps; NumPy ignores trailing zeros."""


def epoch_batches(
    num_captions: int,
    batch_size: int,
    seed: int,
    epoch: int,
    sizes: np.ndarray | None = None,
    order: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Cut every caption once, in an order that only `seed` and `epoch` determine, into batches.

    The last batch may be short; if a single caption were left for it, it joins the batch before, because one
    pair alone has no negative and no batch statistics.

    Args:
        num_captions: T.
        batch_size: captions of a batch, or, where `sizes` are given, how much their sizes may add up to.
        seed, epoch: of the order.
        sizes: [T] size of each caption with its image, in tokens and regions.
        order: [T] caption rows; None for a random order.
    """
    if order is None:
        order = np.random.default_rng([seed, epoch, 0, _ORDER]).permutation(num_captions)
    if sizes is None:
        starts = list(range(0, num_captions, batch_size))
    else:
        total_sizes = np.cumsum(sizes[order], dtype=np.int64)
        starts = []
        start = 0
        size_before = 0
        while start < num_captions:
            starts.append(start)
            first_too_many = int(np.searchsorted(total_sizes, size_before + batch_size, side="right"))
            start = max(start + 2, first_too_many)  # a pair alone has no negative
            size_before = total_sizes[min(start, num_captions) - 1]
    if num_captions - starts[-1] == 1 and len(starts) > 1:
        starts.pop()
    return np.split(order, starts[1:])


def blocks(count: int, size: int) -> Iterator[np.ndarray]:
    """Yield the row numbers 0..count-1 in consecutive blocks."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def feed(
    make: Callable[[ItemT], BatchT],
    items: Iterable[ItemT],
    depth: int,
    device: torch.device,
    readers: int = 1,
) -> Generator[BatchT, None, None]:
    """Make batches in background threads, copy them to a device, and yield them in order.

    Threads suffice because making a batch is slicing of arrays, which releases the interpreter lock. A GPU has a
    stream for copies alone, which run beside the kernels of the step before; nothing waits for them but the kernels
    that read them. A batch is kept until these have run: its memory would otherwise be taken for the next copy.

    Args:
        make: makes the batch of an item.
        items: in order.
        depth: how many batches may lie ready or be in the making, at least 1.
        device: where batches go.
        readers: how many are in the making at a time.
    """
    copies = torch.cuda.Stream(device) if device.type == CUDA else None

    def copy_batch(item: ItemT) -> tuple[BatchT, Any]:
        """Return the batch of an item on its way to the device, and the event of a GPU after which it is there."""
        with torch.cuda.stream(copies):  # parts of the batch may be made on the device; of none it does nothing
            batch = make(item).to(device)
        copied = None
        if copies is not None:
            copied = copies.record_event()
        return batch, copied

    pool = ThreadPoolExecutor(readers, thread_name_prefix="batches")
    waiting = iter(items)
    ahead: deque[Future[tuple[BatchT, Any]]] = deque()
    in_use: deque[tuple[Any, BatchT]] = deque()
    try:
        for item in islice(waiting, depth):
            ahead.append(pool.submit(copy_batch, item))
        while ahead:
            batch, copied = ahead.popleft().result()
            for item in islice(waiting, 1):
                ahead.append(pool.submit(copy_batch, item))
            if copied is None:
                yield batch
                continue
            stream = torch.cuda.current_stream(device)
            stream.wait_event(copied)
            yield batch
            in_use.append((torch.cuda.current_stream(device).record_event(), batch))
            while in_use:
                kernels_ended, _ = in_use[0]
                if not kernels_ended.query():
                    break
                in_use.popleft()
    finally:
        # A thread that Python's end meets inside torch would abort the process.
        pool.shutdown(cancel_futures=True)
