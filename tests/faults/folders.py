"""Folders and files that cannot be read or written now: told in one line, and never taken for damaged."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults.chain import BY_NAME, DATA, Chain, identities, rebuilt, say
from tests.faults.disks import mounted
from tests.faults.server import Fault, bound_by_permissions, failing, run, without_locks
from tests.faults.trials import Findings, Trial

UNAVAILABLE, MISSING, NO = 8, 3, 1
_PREPARE, _EXTRACT, _TRAIN = "scenes/prepare/scenes-*", "scenes/extract/scenes-*", "scenes/train/triplet.vsepp-*"
_CLOSED = ("", "scenes", "scenes/extract", "scenes/train", _EXTRACT, f"{_EXTRACT}/manifest.json")
_CLOSED += (f"{_EXTRACT}/features.h5", f"{_PREPARE}/captions.parquet", f"{_TRAIN}/manifest.json")
_CLOSED += (f"{_TRAIN}/embeddings.h5", f"{_TRAIN}/history.parquet", "scenes/dataset.json", "scenes/sources.json")
_FAILING = {
    "scenes": ("ESTALE", "EACCES"),
    "scenes/train": ("EIO", "EACCES"),
    _TRAIN: ("ESTALE", "EIO"),
    f"{_TRAIN}/manifest.json": ("ESTALE", "EIO", "ETIMEDOUT", "EACCES"),
    f"{_EXTRACT}/features.h5": ("EIO", "EACCES"),
    f"{_PREPARE}/captions.parquet": ("ESTALE", "ETIMEDOUT"),
}
# Steps that are run from where the chain begins them, and commands on a folder in which all is made.
_STEPS = ("train-aoq", "evaluate-aoq", "report", "export", "search")
_COMMANDS = (
    ("status",),
    ("status", "--verify"),
    ("doctor",),
    ("train", "--backbone=vsepp", "--dry-run"),
    ("run", "{recipe}", "--dry-run"),
    ("gc", "--damaged", "--verify", "--yes"),
    ("gc", "--damaged", "--yes"),
)


@dataclass(frozen=True)
class Condition:
    """Something that keeps files from being read or written.

    Attributes:
        name: in words.
        around: brings it about in a data folder while a block runs.
        fault: likewise, in the child.
    """

    name: str
    around: Callable[[Path], AbstractContextManager] = lambda data: nullcontext()
    fault: Callable[[Path], Fault] | None = None


def conditions() -> list[Condition]:
    """All of them."""
    closed = {f"mode 0 of {place or 'the data folder'}": (place, 0o777) for place in _CLOSED}
    found = [
        Condition(name, around=partial(_modes, pattern=pattern, without=bits))
        for name, (pattern, bits) in {"nothing writable": ("**", 0o222), **closed}.items()
    ]
    found.append(Condition("a read-only mount", around=lambda data: mounted(data, "-o", "bind,ro", str(data))))
    found += [
        Condition(f"{name} of {place}", fault=partial(_fails, place, name))
        for place, names in _FAILING.items()
        for name in names
    ]
    for code in (errno.ENOLCK, errno.ENOSYS):
        found.append(Condition(f"{errno.errorcode[code]} of locks", fault=lambda _, code=code: without_locks(code)))
    return [*found, Condition("EROFS of everything written", fault=partial(_fails, "", "EROFS", writing=True))]


@contextmanager
def _modes(data: Path, pattern: str, without: int) -> Iterator[None]:
    """Some files and folders without these permissions."""
    paths = {"": [data], "**": [data, *data.rglob("*")]}.get(pattern) or list(data.glob(pattern))
    before = {path: path.stat().st_mode for path in paths}
    for path in reversed(paths):
        path.chmod(before[path] & ~without)
    yield
    for path in filter(Path.exists, paths):
        path.chmod(before[path])


def _fails(place: str, name: str, data: Path, *, writing: bool = False) -> Fault:
    (path,) = data.glob(place) if place else (data,)
    return failing(path, getattr(errno, name), writing=writing)


def trials(chain: Chain) -> list[Trial]:
    """Every condition with every command: of steps from where the chain begins them, and on all that it makes."""
    commands = [*((name,) for name in _STEPS if BY_NAME[name] in chain.steps), *_COMMANDS]
    return [
        Trial("folders", f"{each.name}: {' '.join(words)}", partial(_try, chain=chain, condition=each, words=words))
        for each in conditions()
        for words in commands
    ]


def _try(
    folder: Path,
    draw: random.Random,
    found: Findings,
    *,
    chain: Chain,
    condition: Condition,
    words: tuple[str, ...],
) -> None:
    found.tried += 1
    step = BY_NAME[words[0]] if words[0] in _STEPS else None
    arguments = chain.arguments(step) if step else [text.format(**chain.places) for text in words]
    chain.start(step or BY_NAME["export"], folder)
    before, data = identities(folder), folder / DATA
    with condition.around(data):
        faults = [condition.fault(data)] if condition.fault else []
        outcome = run(arguments, folder, *faults, bound_by_permissions)
    if outcome.traceback or (outcome.code != 0 and (words, outcome.code) != (("doctor",), NO)):
        found.refused(outcome, (UNAVAILABLE, MISSING))
    gone = rebuilt(before, folder)
    for name in gone:
        found.note("lost", f"{name} was whole: {say(outcome)}")
    if step is not None and not gone:
        codes = (0, 2) if outcome.code == 0 and step.name == "export" else (0,)
        found.succeeded(outcome := run(arguments, folder, bound_by_permissions), codes)
        chain.compare(folder, step, found, say(outcome))
