"""Keeps what lies in the working folder from becoming code or configuration: it may come from anybody.

The command `itrpipe` imports nothing from there, and Python is told so for the processes that it starts. Some libraries
look there all the same, when they are imported or started; these are, in the root folder of the machine.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

CURIOUS = frozenset({"torch", "matplotlib"})
"""Packages that look into the working folder when they are imported.

Of torch it is a library of CUDA, libcusparseLt, which looks there for libcuda.so.1: its RUNPATH ends in a colon. And
matplotlib prefers a matplotlibrc there to any other.
"""


def isolate() -> None:
    """Begins the isolation of this process and of those that it will start; a second call changes nothing."""
    os.environ["PYTHONSAFEPATH"] = "1"
    if not any(isinstance(finder, _CuriousFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CuriousFinder())


@contextlib.contextmanager
def away() -> Iterator[None]:
    """Runs a block in the root folder, where nobody but the owner of the machine leaves files.

    Meanwhile no other thread may use relative paths.
    """
    try:
        back = os.getcwd()
    except FileNotFoundError:  # the working folder has been removed, so there is nothing in it
        yield
        return
    os.chdir(os.sep)
    try:
        yield
    finally:
        os.chdir(back)


class _CuriousFinder(importlib.abc.MetaPathFinder):
    """Finds the packages of `CURIOUS` as ever, and lets them be imported from the root folder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in CURIOUS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AwayLoader(spec.loader)
        return spec


class _AwayLoader(importlib.abc.Loader):
    """A loader that runs the module in the root folder; in all else it is the one that it wraps."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps the loader that it would have without us; resources of the package are read through it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with away():
            self._loader.exec_module(module)
