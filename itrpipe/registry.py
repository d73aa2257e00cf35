"""What is found by its name: a folder each, with a declaration, read without torch, and what needs torch beside it."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from itrpipe.config import Settings, usable
from itrpipe.errors import UsageError

DECLARATION = "declaration"
Declared = TypeVar("Declared", bound=Settings)


class Registry(Generic[Declared]):
    """The folders of a package that declare something, and what plug-ins declare.

    Args:
        package: dotted name.
        leaf: module of every folder that needs torch.
        group: of plug-ins; empty where there are none.
        makes: function of that module.
    """

    def __init__(self, package: str, leaf: str, group: str = "", makes: str = "build") -> None:
        self._package = package
        self._leaf = leaf
        self._group = group
        self._makes = makes

    @functools.cached_property
    def classes(self) -> dict[str, type[Declared]]:
        """Name -> settings class: `tags-dc`, of the folder `tags_dc`, is configured by `TagsDc`.

        Raises:
            UsageError: a declaration has no such class.
        """
        room = Path(str(importlib.import_module(self._package).__file__)).parent
        folders = sorted(path.parent.name for path in room.glob(f"*/{DECLARATION}.py"))
        classes = {}
        for folder in folders:
            module = importlib.import_module(f"{self._package}.{folder}.{DECLARATION}")
            name = "".join(part.capitalize() for part in folder.split("_"))
            if not hasattr(module, name):
                raise UsageError(f"{module.__file__} has no class {name}, as the folder's name asks for; rename it")
            classes[folder.replace("_", "-")] = getattr(module, name)
        return classes | {name: each.declared for name, each in usable(self._group).items()}

    def module(self, name: str) -> ModuleType:
        """What needs torch, of a known name.

        Raises:
            UsageError: it lacks the function that makes it.
        """
        brought = usable(self._group).get(name)
        folder = name.replace("-", "_")
        module = brought.leaf if brought else importlib.import_module(f"{self._package}.{folder}.{self._leaf}")
        if not hasattr(module, self._makes):
            raise UsageError(f"{module.__file__} defines no {self._makes}(), which makes {name!r}; define one")
        return module

    def package(self, name: str) -> str:
        """Name and version of the package that brings it; empty for itrpipe."""
        brought = usable(self._group).get(name)
        return brought.package if brought else ""
