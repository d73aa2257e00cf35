"""Locks: one process makes an artifact or changes a file, several make parts, and whoever waits is told for whom."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from itrpipe.errors import LockedError, UnavailableError, UsageError
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.storage.artifact import BEGINNING, PARTIAL, Location, open_partial, recover_sealed
from itrpipe.storage.disk import make_folder, on_disk

HOURS = "ITRPIPE_LOCK_HOURS"
DEFAULT_HOURS = 72.0
"""Hours that a process waits for another one; a training that reads the result of another may wait for days."""


@contextlib.contextmanager
def locked(
    location: Location, on_wait: Callable[[Path], None] | None = None, part: str = "", *, for_parts: bool = False
) -> Iterator[None]:
    """Hold the lock of an artifact, waiting for another process if need be.

    Whoever makes a part holds the lock of the whole while it begins: so a part never begins while the whole is made,
    finished or removed, and the whole waits for no part but says that it is being made.

    A `.partial` folder in which nothing was made is removed in the end, as after a download that failed.

    Args:
        location: the artifact.
        on_wait: called once with the lock's path when another process holds it; when it raises, so does this.
        part: name of the part that this process makes while others make other parts; empty for the whole artifact.
        for_parts: wait for those who make parts, too: they are about to end.

    Raises:
        LockedError: another process has the lock and `on_wait` is None, or all of it is to be made while another makes
            a part, or it took longer than `ITRPIPE_LOCK_HOURS`.
        UnavailableError: the folder is not writable, or its file system gives no locks.
    """
    make_folder(location.lock().parent)
    with contextlib.ExitStack() as locks:
        locks.callback(_remove_unbegun, location)  # last of all, when the locks are free again
        whole = locks.enter_context(_acquired(location.lock(), on_wait))
        if part:
            part_lock = location.lock(part)
            while True:
                try:
                    locks.enter_context(_acquired(part_lock, None))
                    break
                except LockedError:
                    whole.release()  # its maker could wait for it
                with _acquired(part_lock, on_wait):
                    pass
                whole = locks.enter_context(_acquired(location.lock(), on_wait))
            recover_sealed(location)
            if not location.folder.exists():
                open_partial(location)
            whole.release()
        else:
            for path in _part_locks(location.folder):
                locks.enter_context(_acquired(path, on_wait if for_parts else None))
        yield


@contextlib.contextmanager
def changing(path: Path) -> Iterator[None]:
    """Hold the lock of a file that several processes read, change and write, waiting for another one if need be.

    Raises:
        LockedError: another process has held it for longer than `ITRPIPE_LOCK_HOURS`.
        UnavailableError: the folder is not writable, or its file system gives no locks.
    """

    def say_waiting(lock: Path) -> None:
        Reporter(SafeConsole(stderr=True)).say(f"{path}: {holder(lock)} is changing it; waiting for {lock}")

    with on_disk(path), _acquired(path.with_name(f".{path.name}.lock"), say_waiting, quiet_seconds=1.0):
        yield


def holder(path: Path) -> str:
    """Return the process that a lock file names: `process 12 on host a since 2026-01-01 10:00 (itrpipe train)`."""
    try:
        owner = json.loads(path.read_bytes())
        return f"process {owner['pid']} on {owner['host']} since {owner['since']} ({owner['command']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"  # that has not written yet who it is


@contextlib.contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Hold the locks of an artifact or `.partial` folder if no process has one; yield whether they are held."""
    folder = folder.with_name(folder.name.removesuffix(PARTIAL))
    with contextlib.ExitStack() as locks:
        try:
            for path in [folder.with_name(f".{folder.name}.lock"), *_part_locks(folder)]:
                locks.enter_context(_acquired(path, None))
            free = True
        except (LockedError, UnavailableError):
            locks.close()
            free = False
        yield free


@contextlib.contextmanager
def _acquired(path: Path, on_wait: Callable[[Path], None] | None, quiet_seconds: float = 0) -> Iterator[FileLock]:
    """Hold a lock of the operating system; a file of that name alone, copied from elsewhere, locks nothing.

    Args:
        path: the file.
        on_wait: see `locked`.
        quiet_seconds: time after which `on_wait` is called.
    """
    lock = FileLock(path, fallback_to_soft=False)
    try:
        with on_disk(path):
            try:
                lock.acquire(timeout=quiet_seconds)
            except Timeout:
                if on_wait is None:
                    raise
                on_wait(path)
                lock.acquire(timeout=3600 * patience())
    except Timeout:
        raise LockedError(
            f"what {path} locks is being written by {holder(path)}; wait for it, or end that process, and run the same "
            f"command again ({HOURS} says how many hours it waits)"
        ) from None
    try:
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M"),
            "command": shlex.join(["itrpipe", *sys.argv[1:]]),
        }
        # A full disk is for the work itself to tell; the lock holds without a name in it.
        with contextlib.suppress(OSError):
            path.write_text(json.dumps(owner), encoding="utf-8")
        yield lock
    finally:
        lock.release()


def is_locked(partial: Path) -> bool:
    """Return whether a process is working on a `.partial` folder right now; in a read-only folder none can be."""
    if not os.access(partial.parent, os.W_OK):
        return False
    with unused(partial) as free:
        return not free


def _part_locks(folder: Path) -> list[Path]:
    return sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.lock"))


def _remove_unbegun(location: Location) -> None:
    """Remove the `.partial` folder of a run that ended before it made anything, unless another process is at work."""

    def refuse(error: OSError) -> None:
        raise error

    if not location.partial.exists():
        return
    # The user is to hear of the error that ended the run, so a folder that cannot be removed or read is left alone.
    with unused(location.folder) as free, contextlib.suppress(OSError):
        folders = os.walk(location.partial, onerror=refuse)
        if free and all(BEGINNING.issuperset(names) for _, _, names in folders):
            shutil.rmtree(location.partial)


def patience() -> float:
    """Return the hours that a process waits for another one.

    Raises:
        UsageError: `ITRPIPE_LOCK_HOURS` is no number of hours.
    """
    text = os.environ.get(HOURS, "")
    try:
        hours = float(text or DEFAULT_HOURS)
    except ValueError:
        hours = -1.0
    if not 0 <= hours < float("inf"):
        raise UsageError(f"{HOURS}={text!r} is no number of hours; unset it or give one, such as {DEFAULT_HOURS:g}")
    return hours
