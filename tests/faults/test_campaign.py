"""A short campaign of faults; `make faults` runs all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="faults are tried on Linux only")
def test_some_faults_of_every_kind_lose_nothing_and_change_nothing() -> None:
    """In a process of its own, which forks children and has no other threads."""
    command = [sys.executable, "-m", "tests.faults", "--short", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
