"""The methods that there are."""

from __future__ import annotations

from types import ModuleType

from itrpipe import plugins
from itrpipe.methods.declaration import MethodSettings
from itrpipe.registry import Registry

_METHODS: Registry[MethodSettings] = Registry("itrpipe.methods", "method", plugins.METHODS)


def methods() -> dict[str, type[MethodSettings]]:
    """Method name -> its settings class."""
    return _METHODS.classes


def method_package(name: str) -> str:
    """Name and version of the package that brings a method; empty for itrpipe."""
    return _METHODS.package(name)


def method_module(name: str) -> ModuleType:
    """The method itself, which needs torch: its `build` makes it."""
    return _METHODS.module(name)
