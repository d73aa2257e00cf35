"""Keeping small operations on one processor core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch's operations in the calling thread alone; also a decorator.

    Where other programs compete for the cores, an operation split over threads ends when the last thread got its
    turn. A product is worth that wait; thousands of operations on a few candidates are not.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
