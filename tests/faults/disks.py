"""Disks that are really full: a command stops with one line and, when there is room, goes on to the same end."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.faults.chain import Chain, identities, rebuilt, say
from tests.faults.kills import Place, places
from tests.faults.server import run
from tests.faults.trials import Findings, Trial

FULL = 5
LEVELS = 8
"""As many times a command meets the full disk, with a little more room each time."""
PAGE = 4096


def trials(chain: Chain, folder: Path) -> list[Trial]:
    """One trial for every command that writes; none where nothing can be mounted."""
    probe = folder / "probe"
    probe.mkdir()
    try:
        with mounted(probe, "-t", "tmpfs", "-o", "size=64k", "tmpfs"):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"disk: left out, a small file system cannot be mounted here: {error}", flush=True)
        return []
    return [
        Trial("disk", str(place), partial(_try, place=place)) for place in places(chain) if place.step.name != "search"
    ]


@contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[None]:
    """Mounts something while a block runs."""
    subprocess.run(["mount", *arguments, str(place)], check=True, capture_output=True)
    try:
        yield
    finally:
        # Lazily: a library that failed in the middle of a write may still hold its file.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _size(folder: Path) -> int:
    """Pages that a folder takes, roughly."""
    return sum(-(-path.lstat().st_size // PAGE) + 1 for path in folder.rglob("*"))


def _try(folder: Path, draw: random.Random, found: Findings, *, place: Place) -> None:
    place.begin(folder / "before")
    pages = _size(folder / "before")
    # Twice what it makes: unfinished work lies there beside it.
    room = 2 * max(_size(place.chain.after(place.step.goal)) - pages, 4) + 60
    disk = folder / "disk"
    disk.mkdir()
    with mounted(disk, "-t", "tmpfs", "-o", f"size={(pages + room + 64) * PAGE}", "tmpfs"):
        _fill_and_free(disk, room, found, place)


def _fill_and_free(disk: Path, room: int, found: Findings, place: Place) -> None:
    work, ballast = disk / "work", disk / "ballast"
    place.begin(work)
    before = identities(work)
    full = os.statvfs(disk).f_bavail
    ballast.write_bytes(bytes(full * PAGE))
    for level in range(LEVELS):
        free = room * level // (2 * LEVELS)
        os.truncate(ballast, max(0, full - free) * PAGE)
        outcome = run(place.arguments, work)
        found.tried += 1
        if outcome.code == 0 or not found.refused(outcome, (FULL,), "/"):
            break
        for name in rebuilt(before, work):
            found.note("lost", f"{name} {say(outcome)}")
    ballast.unlink()
    place.finish(work, before, found)
