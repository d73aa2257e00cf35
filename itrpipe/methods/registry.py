"""The methods that there are."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from itrpipe.methods.declaration import MethodSettings
from itrpipe.registry import Registry

_METHODS: Registry[MethodSettings] = Registry("itrpipe.methods", "method", Path(__file__).parent)


def methods() -> dict[str, type[MethodSettings]]:
    """Method name -> its settings class."""
    return _METHODS.classes


def method_module(name: str) -> ModuleType:
    """The method itself, which needs torch: its `build` makes it."""
    return _METHODS.module(name)
