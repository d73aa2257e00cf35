"""Registries of methods, backbones, extractors and importers: a folder each, with a declaration that needs no torch."""

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from itrpipe.config import Settings, usable
from itrpipe.errors import UsageError

DECLARATION = "declaration"
Declared = TypeVar("Declared", bound=Settings)


@dataclass
class Registry(Generic[Declared]):
    """The folders of a package that declare something, and what plug-ins declare.

    Args:
        room: dotted name of the package.
        leaf: module of every folder that needs torch.
        group: of plug-ins; empty where there are none.
        makes: function of that module.
    """

    room: str
    leaf: str
    group: str = ""
    makes: str = "build"

    @functools.cached_property
    def classes(self) -> dict[str, type[Declared]]:
        """Return name -> settings class: `tags-dc`, of the folder `tags_dc`, is configured by `TagsDc`.

        Raises:
            UsageError: a declaration has no such class.
        """
        place = Path(str(importlib.import_module(self.room).__file__)).parent
        folders = sorted(path.parent.name for path in place.glob(f"*/{DECLARATION}.py"))
        classes = {}
        for folder in folders:
            module = importlib.import_module(f"{self.room}.{folder}.{DECLARATION}")
            name = folder.title().replace("_", "")
            if not hasattr(module, name):
                raise UsageError(f"{module.__file__} has no class {name}, as the folder's name asks for; rename it")
            classes[folder.replace("_", "-")] = getattr(module, name)
        for name, plugin in usable(self.group).items():
            classes[name] = plugin.declared
        return classes

    def module(self, name: str) -> ModuleType:
        """Import the module that needs torch, of a known name.

        Raises:
            UsageError: it lacks the function that makes it.
        """
        plugin = usable(self.group).get(name)
        if plugin:
            module = plugin.beside(self.leaf)
        else:
            folder = name.replace("-", "_")
            module = importlib.import_module(f"{self.room}.{folder}.{self.leaf}")
        if not hasattr(module, self.makes):
            raise UsageError(f"{module.__file__} defines no {self.makes}(), which makes {name!r}; define one")
        return module

    def package(self, name: str) -> str:
        """Return name and version of the package that brings it; empty for itrpipe."""
        plugin = usable(self.group).get(name)
        return plugin.package if plugin else ""
