"""Paired timing: what is measured and its limit run in turn, so that a noisy machine slows both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def paired(ours: Callable[[], object], limit: Callable[[], object], rounds: int = 5) -> tuple[float, float]:
    """Median seconds of `ours` and of `limit` over alternating rounds, after one warm-up of each."""
    ours()
    limit()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, kept in zip((ours, limit), seconds, strict=True):
            start = time.perf_counter()
            function()
            kept.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def show(what: str, ours: float, limit: float, limit_name: str, amount: str) -> None:
    """Prints one line: the share of the limit that is reached, and the absolute figure for orientation."""
    print(f"\n  {what}: {limit / ours:6.1%} of {limit_name} ({amount})")
