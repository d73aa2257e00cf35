"""What is found by its name: a folder each, with a declaration, read without torch, and what needs torch beside it."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from itrpipe.config import Settings

DECLARATION = "declaration"
Declared = TypeVar("Declared", bound=Settings)


class Registry(Generic[Declared]):
    """The folders of a package that declare something.

    Args:
        package: dotted name.
        leaf: module of every folder that needs torch.
        folder: of the package.
    """

    def __init__(self, package: str, leaf: str, folder: Path) -> None:
        self._package, self._leaf, self._folder = package, leaf, folder

    @functools.cached_property
    def classes(self) -> dict[str, type[Declared]]:
        """Name -> settings class: `tags-dc`, of the folder `tags_dc`, is configured by `TagsDc`."""
        folders = sorted(path.parent.name for path in self._folder.glob(f"*/{DECLARATION}.py"))
        return {folder.replace("_", "-"): self._class(folder) for folder in folders}

    def module(self, name: str) -> ModuleType:
        """What needs torch, of a known name."""
        return importlib.import_module(f"{self._package}.{name.replace('-', '_')}.{self._leaf}")

    def _class(self, folder: str) -> type[Declared]:
        declaration = importlib.import_module(f"{self._package}.{folder}.{DECLARATION}")
        return getattr(declaration, "".join(part.capitalize() for part in folder.split("_")))
