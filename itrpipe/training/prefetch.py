"""Batches are made in a background thread while the device computes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prefetcher(Generic[Item, Result]):
    """Applies a function to items ahead of the consumer.

    A thread suffices because making a batch is slicing of arrays, which releases the interpreter lock.

    Args:
        function: makes one result.
        items: what to apply it to, in order.
        depth: how many results may lie ready.

    Attributes:
        waited_seconds: how long the consumer has waited so far.
    """

    def __init__(self, function: Callable[[Item], Result], items: Iterable[Item], depth: int) -> None:
        self.waited_seconds = 0.0
        self._function, self._items = function, items
        self._ready: queue.Queue = queue.Queue(maxsize=max(1, depth))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def __iter__(self) -> Iterator[Result]:
        self._thread.start()
        try:
            while True:
                start = time.perf_counter()
                kind, value = self._ready.get()
                self.waited_seconds += time.perf_counter() - start
                if kind == "error":
                    raise value
                if kind == "end":
                    return
                yield value
        finally:
            self._stopped.set()
            self._thread.join()  # a thread that Python's end meets inside torch aborts the process

    def _produce(self) -> None:
        try:
            for item in self._items:
                if not self._put("result", self._function(item)):
                    return
            self._put("end", None)
        except BaseException as error:
            self._put("error", error)
            if not isinstance(error, Exception):
                raise

    def _put(self, kind: str, value: object) -> bool:
        """Hands a result over; False when the consumer has gone."""
        while not self._stopped.is_set():
            try:
                self._ready.put((kind, value), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
