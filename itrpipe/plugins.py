"""Plug-ins: methods, backbones and extractors of installed packages, found by their entry points.

A package names the class of a declaration under the name that users type:

    [project.entry-points."itrpipe.methods"]
    margin = "margin_loss.declaration:Margin"

The code that needs torch is a module next to the declaration: `method`, `network` or `extractor`. A file `train.toml`
there, `extract.toml` for an extractor, holds its configurations, in the form of `stages/4_train.toml`. The problem of a
package that cannot be used is shown when a name of it is used, and by `itrpipe list` and `itrpipe doctor`; everything
else works.
"""

import contextlib
import importlib
import os
import signal
import time
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from itrpipe.errors import DataError, ItrpipeError, UsageError
from itrpipe.printable import printable

METHODS = "itrpipe.methods"
BACKBONES = "itrpipe.backbones"
EXTRACTORS = "itrpipe.extractors"
STAGES = {METHODS: "train", BACKBONES: "train", EXTRACTORS: "extract"}
IMPORT_SECONDS = 30.0
"""Time that the import of a declaration may take."""
_IMPORTED = 77
"""Exit code that no package ends a process with by chance."""
Owners = MutableMapping[tuple[str, str, str], Path]
"""Stage, section and name of a table -> the file that declares it."""
_OURS = {METHODS: "methods", BACKBONES: "models", EXTRACTORS: "features/extractors"}


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package.

    Attributes:
        group: `METHODS`, `BACKBONES` or `EXTRACTORS`.
        name: that users type.
        package: the distribution, with its version.
        problem: why it cannot be used; empty if it can.
        declared: the class of the declaration.
        module: dotted name of that class's module.
        file: of its configurations, next to that module; None if there is none.
        tables: of that file.
    """

    group: str
    name: str
    package: str
    problem: str = ""
    declared: Any = None
    module: str = ""
    file: Path | None = None
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def beside(self, leaf: str) -> ModuleType:
        """Import a module next to the declaration, which needs torch.

        Args:
            leaf: last part of its name.

        Raises:
            UsageError: it cannot be imported.
        """
        package = self.module.rpartition(".")[0]
        with _errors_of(self.package):
            return importlib.import_module(f"{package}.{leaf}")


def find_plugins(owners: Owners) -> list[Plugin]:
    """Return the plug-ins of all installed packages, by group and name, also those that cannot be used.

    Args:
        owners: of the tables that are declared; those of plug-ins are added.
    """
    plugins = []
    installed = entry_points()  # looks through every package
    for group in STAGES:
        for entry in sorted(installed.select(group=group), key=lambda entry: entry.name):
            package = "a package without a name"
            if entry.dist:
                package = f"{entry.dist.name} {entry.dist.version}"
            try:
                with _errors_of(package):
                    plugin = _open_plugin(group, package, entry, owners)
            except ItrpipeError as error:
                plugin = Plugin(group, entry.name, package, str(error))
            plugins.append(plugin)
    return plugins


@contextlib.contextmanager
def _errors_of(package: str) -> Iterator[None]:
    """Turn every error of another package's code, also one that ends a program, into a `UsageError`.

    Raises:
        UsageError: the code raised something.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        message = str(error)
        if not isinstance(error, ItrpipeError):
            message = f"{type(error).__name__}: {message}"
        line = printable(" ".join(message.split()))
        raise UsageError(f"{line} ({package} brings it)") from error


def _open_plugin(group: str, package: str, entry: EntryPoint, owners: Owners) -> Plugin:
    """Import the declaration of a plug-in, and read its configurations.

    Raises:
        UsageError: its name is that of our own, it is no class of settings, or it brings no configurations.
        DataError: its file has a table that belongs to no configuration or backbone, or that is declared already.
    """
    if (Path(__file__).parent / _OURS[group] / entry.name.replace("-", "_")).is_dir():
        raise UsageError("itrpipe has one of this name itself")
    _try_import(entry)
    declared = entry.load()
    if not (isinstance(declared, type) and issubclass(declared, BaseModel)):
        raise UsageError(f"{entry.value} is no class of settings")
    stage = STAGES[group]
    file = Path(str(importlib.import_module(entry.module).__file__)).with_name(f"{stage}.toml")
    plugin = Plugin(group, entry.name, package, declared=declared, module=entry.module)
    if file.is_file():
        tables = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        for section, named in tables.items():
            holds_tables = section in ("conf", "defaults") and isinstance(named, Mapping)
            if not holds_tables or not all(isinstance(table, Mapping) for table in named.values()):
                raise DataError(f"{file}: {section} is no table [conf.<name>] or [defaults.<backbone>]; remove it")
            for name in named:
                owner = owners.setdefault((stage, section, name), file)
                if owner != file:
                    raise DataError(f"{file}: [{section}.{name}] is declared in {owner} already; choose another name")
        return replace(plugin, file=file, tables=tables)
    if group == BACKBONES:  # methods declare what it is trained with
        return plugin
    raise UsageError(f"its configurations are missing: there is no {file}; the package has to bring it as package data")


def _try_import(entry: EntryPoint) -> None:
    """Import a declaration in a process of its own, since it may end or interrupt the process, or hold it up.

    Errors that it raises are shown when it is imported in this process.

    Raises:
        UsageError: it ends, interrupts or holds up the process.
    """
    child = os.fork()
    if not child:
        code = _IMPORTED
        try:
            entry.load()
        except KeyboardInterrupt:
            code = 1
        finally:
            os._exit(code)
    until = time.monotonic() + IMPORT_SECONDS
    ended = status = 0
    while not ended:
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended and time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise UsageError(f"{entry.value} is not imported after {IMPORT_SECONDS:g} seconds")
        time.sleep(0.005)
    if os.waitstatus_to_exitcode(status) != _IMPORTED:
        raise UsageError(f"{entry.value} ends or interrupts the process that imports it")
