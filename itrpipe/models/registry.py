"""The backbones that there are."""

from __future__ import annotations

from types import ModuleType

from itrpipe import plugins
from itrpipe.models.declaration import BackboneSettings
from itrpipe.registry import Registry

BACKBONES: Registry[BackboneSettings] = Registry("itrpipe.models", "network", plugins.BACKBONES)
"""Whose modules have `build`, which makes the network; see `network_module`."""


def backbones() -> dict[str, type[BackboneSettings]]:
    """Backbone name -> its settings class."""
    return BACKBONES.classes


def backbone_family(name: str) -> str:
    """The backbone that a name is a variant of: `scan` for `scan-i2t`, itself for `scan` and what is not known."""
    return next((known for known in backbones() if name.startswith(f"{known}-")), name)


def network_module(name: str) -> ModuleType:
    """The network of a backbone, or of a variant of one, which needs torch: its `build` makes it."""
    return BACKBONES.module(backbone_family(name))
