"""Benchmarks by the names that users give them: `sugarcrepe=FOLDER`, or `scenes`, which the dataset makes itself."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from itrpipe.config import did_you_mean
from itrpipe.datasets.benchmarks.base import Benchmark
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.errors import MissingInputError
from itrpipe.storage.sources import DigestCache

_NO_READERS = ("__init__", "base", "named")
EMBEDDED_VERSION = "edits 1"
"""Of the sentences that the embedded dataset makes; raised when equal scenes get others."""


class Named(NamedTuple):
    """A benchmark.

    Attributes:
        name: of a reader, or `scenes`.
        folder: that is read; empty for `scenes`.
    """

    name: str
    folder: str

    @property
    def as_given(self) -> str:
        """`NAME=FOLDER`, or the name alone."""
        return f"{self.name}={self.folder}" if self.folder else self.name


@functools.cache
def readers() -> tuple[str, ...]:
    """Names of the readers."""
    stems = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return tuple(sorted(stem for stem in stems if stem not in _NO_READERS))


def reader(name: str) -> ModuleType:
    """The reader of this name; see `itrpipe.datasets.benchmarks`."""
    return import_module(f"{__package__}.{name}")


def named(text: str) -> Named:
    """Takes `NAME=FOLDER` apart.

    Raises:
        ValueError: there is no such benchmark, it lacks its folder, or has one that nothing reads.
    """
    name, _, folder = text.partition("=")
    known = (*readers(), EMBEDDED)
    if name not in known:
        raise ValueError(f"there is no benchmark {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")
    if name == EMBEDDED and folder:
        raise ValueError(f"{text!r}: the embedded dataset makes this benchmark itself; give {EMBEDDED} alone")
    if name != EMBEDDED and not folder:
        raise ValueError(f"{name!r} is read from files; give {name}=FOLDER")
    return Named(name, folder)


def benchmark_names(texts: Iterable[str]) -> tuple[str, ...]:
    """The same benchmarks in the order of their names.

    Raises:
        ValueError: see `named`; or one is given twice.
    """
    found: dict[str, str] = {}
    for each in map(named, texts):
        if each.name in found:
            raise ValueError(f"{each.as_given!r} names {each.name} a second time; evaluate with one at a time")
        found[each.name] = each.as_given
    return tuple(found[name] for name in sorted(found))


def whole_path(text: str) -> str:
    """`NAME=FOLDER` with the whole path of the folder: later commands may run in another one."""
    name, equals, folder = text.partition("=")
    return f"{name}={os.path.abspath(os.path.expanduser(folder))}" if equals and folder else text


def read_benchmark(benchmark: Named) -> Benchmark:
    """Reads a benchmark of files.

    Raises:
        MissingInputError: its folder, one of its files or an image is not there.
        DataError: a file is malformed, or a path leaves the folder.
    """
    folder = Path(benchmark.folder).expanduser()
    if not folder.is_dir():
        raise MissingInputError(f"--benchmark {benchmark.as_given}: {folder} is no folder; name the one with its files")
    return reader(benchmark.name).read(folder)


def digests(texts: Iterable[str], cache: DigestCache) -> dict[str, str]:
    """Digests of the captions and images of benchmarks, whose place does not count.

    Raises:
        MissingInputError, DataError: see `read_benchmark`.
    """
    found: dict[str, str] = {}
    for each in map(named, texts):
        if not each.folder:
            found[f"benchmark {each.name}"] = EMBEDDED_VERSION
            continue
        read = read_benchmark(each)
        pairs = hashlib.sha256("\n".join(map(repr, read.pairs)).encode()).hexdigest()
        files = [read.root / file for file in dict.fromkeys(pair.file for pair in read.pairs)]
        found[f"benchmark {each.name}"] = pairs
        found[f"benchmark {each.name} images"] = cache.combined(files, read.root, f"hashing {each.name}")
    return found
