"""What is found by its name: a folder each, with a declaration, read without torch, and what needs torch beside it."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from itrpipe import plugins
from itrpipe.config import Settings

DECLARATION = "declaration"
Declared = TypeVar("Declared", bound=Settings)


class Registry(Generic[Declared]):
    """The folders of a package that declare something, and what plug-ins declare.

    Args:
        package: dotted name.
        leaf: module of every folder that needs torch.
        group: of plug-ins; empty where there are none.
    """

    def __init__(self, package: str, leaf: str, group: str = "") -> None:
        self._package, self._leaf, self._group = package, leaf, group

    @functools.cached_property
    def classes(self) -> dict[str, type[Declared]]:
        """Name -> settings class: `tags-dc`, of the folder `tags_dc`, is configured by `TagsDc`."""
        room = Path(str(importlib.import_module(self._package).__file__)).parent
        folders = sorted(path.parent.name for path in room.glob(f"*/{DECLARATION}.py"))
        ours = {folder.replace("_", "-"): self._class(folder) for folder in folders}
        return ours | {name: each.declared for name, each in plugins.usable(self._group).items()}

    def module(self, name: str) -> ModuleType:
        """What needs torch, of a known name."""
        brought = plugins.usable(self._group).get(name)
        return brought.leaf if brought else importlib.import_module(f"{self._package}.{_folder(name)}.{self._leaf}")

    def package(self, name: str) -> str:
        """Name and version of the package that brings it; empty for itrpipe."""
        brought = plugins.usable(self._group).get(name)
        return brought.package if brought else ""

    def _class(self, folder: str) -> type[Declared]:
        declaration = importlib.import_module(f"{self._package}.{folder}.{DECLARATION}")
        return getattr(declaration, "".join(part.capitalize() for part in folder.split("_")))


def _folder(name: str) -> str:
    return name.replace("-", "_")
