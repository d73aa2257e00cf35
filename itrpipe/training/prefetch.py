"""Batches are made in a background thread while the device computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prefetcher(Generic[Item, Result]):
    """Applies a function to items ahead of the consumer, who gets the results in order.

    A thread suffices because making a batch is slicing of arrays, which releases the interpreter lock.

    Args:
        function: makes one result.
        items: what to apply it to, in order.
        depth: how many results may lie ready or be in the making.

    Attributes:
        waited_seconds: how long the consumer has waited so far.
    """

    def __init__(self, function: Callable[[Item], Result], items: Iterable[Item], depth: int) -> None:
        self.waited_seconds = 0.0
        self._function, self._items, self._depth = function, items, max(1, depth)

    def __iter__(self) -> Iterator[Result]:
        pool, items = ThreadPoolExecutor(1, thread_name_prefix="batches"), iter(self._items)
        ahead = deque(pool.submit(self._function, item) for item in islice(items, self._depth))
        try:
            while ahead:
                start = time.perf_counter()
                result = ahead.popleft().result()
                self.waited_seconds += time.perf_counter() - start
                ahead.extend(pool.submit(self._function, item) for item in islice(items, 1))
                yield result
        finally:
            # A thread that Python's end meets inside torch would abort the process.
            pool.shutdown(cancel_futures=True)
