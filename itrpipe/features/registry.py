"""The extractors and importers that there are."""

from __future__ import annotations

from types import ModuleType

from itrpipe import plugins
from itrpipe.features.declaration import FeatureSettings
from itrpipe.registry import Registry

_EXTRACTORS: Registry[FeatureSettings] = Registry("itrpipe.features.extractors", "extractor", plugins.EXTRACTORS)
_IMPORTERS: Registry[FeatureSettings] = Registry("itrpipe.features.importers", "importer", makes="open_source")


def extractors() -> dict[str, type[FeatureSettings]]:
    """Extractor name -> its settings class."""
    return _EXTRACTORS.classes


def importers() -> dict[str, type[FeatureSettings]]:
    """Importer name -> its settings class."""
    return _IMPORTERS.classes


def extractor_package(kind: str) -> str:
    """Name and version of the package that brings an extractor; empty for itrpipe."""
    return _EXTRACTORS.package(kind)


def extractor_module(kind: str) -> ModuleType:
    """The extractor itself, which needs torch: its `build` makes it."""
    return _EXTRACTORS.module(kind)


def importer_module(kind: str) -> ModuleType:
    """The importer itself: its `recognises`, `files` and `open_source`."""
    return _IMPORTERS.module(kind)
