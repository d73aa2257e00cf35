"""What installed packages bring: methods, backbones and extractors of others, found by their entry points.

A package names the class of a declaration under the name that users type:

    [project.entry-points."itrpipe.methods"]
    margin = "margin_loss.declaration:Margin"

What needs torch is a module beside the declaration: `method`, `network` or `extractor`. A file `train.toml` beside it,
`extract.toml` for an extractor, holds its configurations, in the form of `stages/4_train.toml`. A package that cannot
be used is told about when something of it is asked for, and by `itrpipe doctor`; everything else works.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import tomllib
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from itrpipe.printable import printable

METHODS, BACKBONES, EXTRACTORS = "itrpipe.methods", "itrpipe.backbones", "itrpipe.extractors"
_LEAVES = {METHODS: "method", BACKBONES: "network", EXTRACTORS: "extractor"}
_STAGES = {METHODS: "train", BACKBONES: "train", EXTRACTORS: "extract"}
_OURS = {METHODS: "methods", BACKBONES: "models", EXTRACTORS: "features/extractors"}


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package.

    Attributes:
        group: `METHODS`, `BACKBONES` or `EXTRACTORS`.
        name: that users type.
        module: dotted name of the declaration's module.
        attribute: name of its class.
        package: the distribution, with its version.
    """

    group: str
    name: str
    module: str
    attribute: str
    package: str

    @property
    def declared(self) -> Any:
        """The class of the declaration. Whatever its package raises, this raises."""
        return getattr(importlib.import_module(self.module), self.attribute)

    @property
    def leaf(self) -> ModuleType:
        """What needs torch."""
        return importlib.import_module(f"{self.module.rpartition('.')[0]}.{_LEAVES[self.group]}")

    @property
    def tables(self) -> Path | None:
        """The file of its configurations, beside the declaration; None where there is none."""
        path = self._tables_path
        return path if path is not None and path.is_file() else None

    @property
    def lacks(self) -> str:
        """What is missing where a method or an extractor has no configuration; empty where nothing is.

        A backbone needs none: methods declare what it is trained with.
        """
        if self.group == BACKBONES or self.tables is not None:
            return ""
        path = self._tables_path or f"{_STAGES[self.group]}.toml"
        return f"its configurations are missing: there is no {path}; the package has to bring it as package data"

    @property
    def _tables_path(self) -> Path | None:
        spec = importlib.util.find_spec(self.module)
        return Path(spec.origin).with_name(f"{_STAGES[self.group]}.toml") if spec is not None and spec.origin else None


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """Those of all installed packages, by group and name."""
    found = []
    for group in _LEAVES:
        for entry in entry_points(group=group):
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package without a name"
            found.append(Plugin(group, entry.name, entry.module, entry.attr, package))
    return tuple(sorted(found, key=lambda each: (each.group, each.name)))


@functools.cache
def unusable() -> dict[tuple[str, str], str]:
    """Group and name -> why a plug-in cannot be used, and whose it is."""
    reasons = ((each, _reason(each)) for each in plugins())
    return {(each.group, each.name): f"{reason} ({each.package} brings it)" for each, reason in reasons if reason}


def why_unusable(name: str) -> str:
    """Why nothing of this name can be used, where an installed package brings something of it; else empty."""
    broken = (reason for (_, each), reason in unusable().items() if each == name)
    named = (each for each in plugins() if each.name == name and (each.group, name) not in unusable())
    lacking = (f"{each.lacks} ({each.package} brings it)" for each in named if each.lacks)
    return next(itertools.chain(broken, lacking), "")


def usable(group: str) -> dict[str, Plugin]:
    """Name -> plug-in, those of a group that can be used."""
    return {each.name: each for each in plugins() if each.group == group and (group, each.name) not in unusable()}


def tables(stage: str) -> dict[Path, dict[str, Any]]:
    """Files of usable plug-ins that declare something for a stage, and their tables."""
    groups = [group for group, each in _STAGES.items() if each == stage]
    files = {each.tables for group in groups for each in usable(group).values()}
    return {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(filter(None, files))}


def _reason(plugin: Plugin) -> str:
    room = Path(__file__).parent / _OURS[plugin.group]
    if (room / plugin.name.replace("-", "_")).is_dir():
        return "itrpipe has one of this name itself"
    try:
        declared = plugin.declared
        path = plugin.tables
        if path is not None:
            tomllib.loads(path.read_text(encoding="utf-8"))
    except Exception as error:  # a package of others may raise anything
        return printable(" ".join(f"{type(error).__name__}: {error}".split()))
    settings = isinstance(declared, type) and issubclass(declared, BaseModel)
    return "" if settings else f"{plugin.module}:{plugin.attribute} is no class of settings"
