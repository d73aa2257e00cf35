"""The backbones that there are."""

from __future__ import annotations

from types import ModuleType

from itrpipe import plugins
from itrpipe.models.declaration import BackboneSettings
from itrpipe.registry import Registry

_BACKBONES: Registry[BackboneSettings] = Registry("itrpipe.models", "network", plugins.BACKBONES)


def backbones() -> dict[str, type[BackboneSettings]]:
    """Backbone name -> its settings class."""
    return _BACKBONES.classes


def backbone_family(name: str) -> str:
    """The backbone that a name is a variant of: `scan` for `scan-i2t`, itself for `scan` and what is not known."""
    return next((known for known in backbones() if name.startswith(f"{known}-")), name)


def backbone_package(name: str) -> str:
    """Name and version of the package that brings a backbone, or one that this is a variant of; empty for itrpipe."""
    return _BACKBONES.package(backbone_family(name))


def network_module(name: str) -> ModuleType:
    """The network of a backbone, or of a variant of one, which needs torch: its `build` makes it."""
    return _BACKBONES.module(backbone_family(name))
