"""The backbones that there are."""

from __future__ import annotations

import functools
from types import ModuleType

from itrpipe import plugins
from itrpipe.config import load_declaration, unknown, why_unusable
from itrpipe.errors import UsageError
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


@functools.cache
def backbone_names() -> tuple[str, ...]:
    """Return every backbone, and the variants of them that have a table in the declaration."""
    known = tuple(backbones())
    return (*known, *(name for name in load_declaration("train").defaults if backbone_family(name) != name))


def canonical_backbone(name: str) -> str:
    """Return the canonical name of a backbone that is written as people write it: `vse++` is `vsepp`."""
    return name.lower().replace("+", "p")


def settings_of(backbone: str) -> type[BackboneSettings]:
    """Return the settings class of a backbone.

    Raises:
        UsageError: there is no such backbone.
    """
    name = canonical_backbone(backbone)
    found = backbones().get(backbone_family(name))
    if found is None:
        raise UsageError(why_unusable(name) or unknown("backbone", name, sorted(backbone_names())))
    return found
