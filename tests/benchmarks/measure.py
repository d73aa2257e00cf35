"""Paired timing: what is measured and its limit run in turn, so that a noisy machine slows both alike."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def paired(
    ours: Callable[[], object],
    limit: Callable[[], object],
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Median seconds of `ours` and of `limit` over alternating rounds, after one warm-up of each."""
    ours()
    limit()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, kept in zip((ours, limit), seconds, strict=True):
            start = clock()
            function()
            kept.append(clock() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def show(what: str, ours: float, limit: float, limit_name: str, amount: str) -> None:
    """Prints one line: the share of the limit that is reached, and the absolute figure for orientation."""
    print(f"\n  {what}: {limit / ours:6.1%} of {limit_name} ({amount})")


def apart(file: str, *arguments: object, launcher: tuple[str, ...] = (), **environment: str) -> list[Any]:
    """What a file prints as a program of its own: a line of JSON for every thing that it measures."""
    command = [sys.executable, *launcher, file, *map(str, arguments)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "env": os.environ | environment}
    return [json.loads(line) for line in subprocess.run(command, **options).stdout.splitlines() if line.strip()]


def most_memory() -> int:
    """Most bytes that this program had resident; getrusage counts what its parent had, too."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
