"""A process that has imported everything once and forks a child for every command, and what can go wrong in a child.

A fresh interpreter with torch takes seconds; a fork takes milliseconds, so that hundreds of commands can be killed.
Linux only. Nothing here may start a thread before a fork.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import gc
import importlib
import io
import itertools
import os
import pkgutil
import select
import shlex
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

LIMIT = 60.0
"""Seconds after which a command counts as one that does not end."""
STEPS = ("replace", "rename", "fsync", "unlink", "remove", "rmdir", "mkdir", "truncate", "ftruncate", "link", "symlink")
"""Functions of `os` that change what is on the disk; pathlib and shutil look them up there when they are called."""
Fault = Callable[[], None]


def modules() -> list[str]:
    """All modules of itrpipe but weights, the detector that brings in triton, and mteb's, which brings in threads."""
    import itrpipe

    names = [module.name for module in pkgutil.walk_packages(itrpipe.__path__, "itrpipe.")]
    left_out = ("__main__", "extractors.butd", "itrpipe.mteb")
    return [name for name in names if not any(each in name for each in left_out)]


def warm() -> None:
    """Imports what commands import, and makes blocks so small that a few images fill several."""
    for name in modules():
        importlib.import_module(name)
    for name in ("faiss", "HanTa.HanoverTagger", "matplotlib.font_manager", "rich.progress", "nltk"):
        with suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    make_parts_small()
    tasks = Path("/proc/self/task").glob("*/comm")
    # Arrow brings in an allocator whose thread a fork stops and starts again.
    others = [path.read_text().strip() for path in tasks if path.parent.name != str(os.getpid())]
    if lost := [name for name in others if not name.startswith("jemalloc")]:
        raise SystemExit(f"a fork would lose the threads {', '.join(lost)}")
    gc.collect()
    gc.freeze()


def make_parts_small() -> None:
    """Lets a few images and captions fill several parts."""
    from itrpipe.datasets import image_check
    from itrpipe.features import extraction
    from itrpipe.features.extractors.scenes.extractor import ScenesExtractor
    from itrpipe.features.extractors.vision import extractor as vision
    from itrpipe.features.importers import base
    from itrpipe.scene_graph import build as parsing
    from itrpipe.scenes import build

    extraction.BATCHES_PER_PART, base.IMAGES_PER_PART = 1, 4
    ScenesExtractor.batch = vision.GridExtractor.batch = 4
    image_check._IMAGES = build._SCENES = 4
    parsing.CHUNK = 16


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Attributes:
        code: exit status, negative for a signal, None where it did not end.
        output: standard output and error, in the order of their writing.
        seconds: until it ended.
    """

    command: str
    code: int | None
    output: str
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The lines that tell an error."""
        return [line for line in self.output.splitlines() if line.lower().startswith("error:")]

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.output

    def __str__(self) -> str:
        return f"`{self.command[:60]}…` ended with {self.code}: …{self.output.strip()[-400:]}"


class Child:
    """A running command, in a session of its own.

    Args:
        arguments: of `itrpipe`.
        folder: where it runs.
        faults: called in the child before the command begins.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, *faults: Fault) -> None:
        self._command, self._begun = shlex.join(["itrpipe", *arguments]), time.monotonic()
        self._log = os.memfd_create("output")
        self.pid = os.fork()
        if not self.pid:
            become(arguments, folder, self._log, faults)
        self._handle = os.pidfd_open(self.pid)

    def ended(self, seconds: float) -> bool:
        """Whether it has ended after so long at most."""
        return bool(select.select([self._handle], [], [], max(0.0, seconds))[0])

    def kill(self, *, group: bool = True) -> None:
        """`kill -9` of the command, and of the processes that it started unless they are to notice themselves."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)

    def wait(self, limit: float = LIMIT, *, sweep: bool = True) -> Outcome:
        """What it did; killed where it does not end, with what it left running unless that is to end by itself."""
        ended = self.ended(limit)
        seconds = time.monotonic() - self._begun
        if not ended:
            self.kill()
        _, status = os.waitpid(self.pid, 0)
        if sweep:
            self.kill()
        os.close(self._handle)
        with os.fdopen(self._log, "rb") as log:
            log.seek(0)
            output = log.read().decode(errors="replace")
        return Outcome(self._command, os.waitstatus_to_exitcode(status) if ended else None, output, seconds)


def run(arguments: Sequence[str], folder: Path, *faults: Fault) -> Outcome:
    """Runs a command to its end."""
    return Child(arguments, folder, *faults).wait()


def become(arguments: Sequence[str], folder: Path, log: int, faults: Sequence[Fault]) -> NoReturn:
    """Makes this process, a forked one, a command whose output goes to `log`."""
    code: Any = 1
    try:
        with suppress(OSError):
            os.setsid()
        os.chdir(folder)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(file, number)
        sys.stdin = os.fdopen(0, closefd=False)
        utf8: Any = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False, "buffering": 1}
        sys.stdout, sys.stderr = (os.fdopen(number, "w", **utf8) for number in (1, 2))
        sys.argv = ["itrpipe", *arguments]
        sys.modules["__main__"] = types.ModuleType("__main__")  # spawned processes import no campaign
        for fault in faults:
            fault()
        from itrpipe.__main__ import run as run_process

        run_process()
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


# What can go wrong in a child


def unread() -> None:
    """Standard output and error are a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    for file in (1, 2):
        os.dup2(writer, file)


def bound_by_permissions() -> None:
    """Gives up root's right to read and write everything."""
    no_capabilities = (ctypes.c_uint32 * 6)()
    version_and_self = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if ctypes.CDLL(None, use_errno=True).capset(version_and_self, no_capabilities):
        raise OSError(ctypes.get_errno(), "capset")


def watching_steps(root: Path, seen: Callable[[int, str, bool], None]) -> Fault:
    """Calls `seen(number, name, done)` before and after every step that changes what lies below `root`."""

    def install() -> None:
        numbers = itertools.count()
        for name in STEPS:
            setattr(os, name, _watched(name, getattr(os, name), root, numbers, seen))

    return install


def _watched(name: str, real: Callable, root: Path, numbers: Any, seen: Callable) -> Callable:
    def step(first: Any, *rest: Any, **named: Any) -> Any:
        path = _path_of(first, named.get("dir_fd"))
        if not path.startswith(str(root)):
            return real(first, *rest, **named)
        number, what = next(numbers), f"{name} {path[len(str(root)) + 1 :]}"
        seen(number, what, False)
        try:
            return real(first, *rest, **named)
        finally:
            seen(number, what, True)

    return step


def _path_of(first: Any, folder: int | None) -> str:
    if isinstance(first, int):
        return os.readlink(f"/proc/self/fd/{first}")
    name = os.fsdecode(first)
    base = os.getcwd() if folder is None else os.readlink(f"/proc/self/fd/{folder}")
    return os.path.normpath(os.path.join(base, name))


def recording_steps(root: Path, into: Path) -> Fault:
    """Writes the name of every step into a file."""

    def seen(number: int, what: str, done: bool) -> None:
        if not done:
            os.write(log, f"{what}\n".encode())

    log = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return watching_steps(root, seen)


def dying(root: Path, when: Callable[[int, str, bool], bool]) -> Fault:
    """`kill -9` before or after the step for which `when(number, name, done)` is true."""

    def seen(number: int, what: str, done: bool) -> None:
        if when(number, what, done):
            os.kill(os.getpid(), signal.SIGKILL)

    return watching_steps(root, seen)


def failing(path: Path, code: int, *, writing: bool = False) -> Fault:
    """Opening a path, or what lies below it, fails with an error of the operating system."""

    def guarded(real: Callable, writes: Callable[..., bool]) -> Callable:
        def call(file: Any = ".", *rest: Any, **named: Any) -> Any:
            full = "" if isinstance(file, int) or "dir_fd" in named else os.path.abspath(os.fsdecode(file))
            if (full == str(path) or full.startswith(f"{path}/")) and (writes(*rest, **named) or not writing):
                raise OSError(code, os.strerror(code), full)
            return real(file, *rest, **named)

        return call

    def install() -> None:
        change = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        builtins.open = io.open = guarded(io.open, lambda mode="r", *_, **__: bool(set(mode) & set("wax+")))
        os.open = guarded(os.open, lambda flags, *_, **__: bool(flags & change))
        os.scandir = guarded(os.scandir, lambda *_, **__: False)
        if code in (errno.ESTALE, errno.EIO):
            os.stat = guarded(os.stat, lambda *_, **__: False)

    return install


def without_locks(code: int) -> Fault:
    """File systems without locks."""

    def flock(*given: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    def install() -> None:
        fcntl.flock = fcntl.lockf = flock

    return install
