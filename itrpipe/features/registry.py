"""The extractors and importers that there are."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pydantic import create_model

from itrpipe import plugins
from itrpipe.config import Settings
from itrpipe.errors import UsageError
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


def feature_settings(values: Mapping[str, Any]) -> type[Settings]:
    """The settings of the configuration's kind; for several, `a+b`, the settings of each under its name.

    Raises:
        UsageError: there is no such kind.
    """
    if "kind" in values:
        return _settings_of(values["kind"])
    parts = {name: table for name, table in values.items() if isinstance(table, Mapping) and "kind" in table}
    fields: dict[str, Any] = {name: (_settings_of(table["kind"]), ...) for name, table in parts.items()}
    return create_model("Combined", __base__=Settings, **fields)


def _settings_of(kind: Any) -> type[Settings]:
    known = extractors() | importers()
    found = known.get(str(kind).replace("_", "-"))
    if found is None:
        raise UsageError(f"extract: kind = {kind!r} is none of {', '.join(known)}; leave it out")
    return found


def extractor_package(kind: str) -> str:
    """Name and version of the package that brings an extractor; empty for itrpipe."""
    return _EXTRACTORS.package(kind)


def extractor_module(kind: str) -> ModuleType:
    """The extractor itself, which needs torch: its `build` makes it."""
    return _EXTRACTORS.module(kind)


def importer_module(kind: str) -> ModuleType:
    """The importer itself: its `layout` and `open_source`."""
    return _IMPORTERS.module(kind)


def passes_of(name: str, settings: Settings) -> dict[str, FeatureSettings]:
    """The settings of every extractor of a configuration; a single one goes by `name`."""
    if isinstance(settings, FeatureSettings):
        return {name: settings}
    return {part: getattr(settings, part) for part in type(settings).model_fields}
