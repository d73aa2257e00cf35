"""Extractors over image files: the map of each, and what each contributes to the file that joins them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from itrpipe.features.declaration import FeatureSettings
from itrpipe.features.extraction import Extraction, ImageFiles
from itrpipe.features.extractors.base import Extractor
from itrpipe.features.passes import divide
from itrpipe.features.registry import extractor_module
from itrpipe.features.store import FeatureSpec


class Pass(NamedTuple):
    """One of several extractors.

    Attributes:
        work: the map over the images.
        spec: the datasets that it writes: those that no extractor before it has.
    """

    work: Extraction
    spec: FeatureSpec


def extraction_passes(parts: Mapping[str, FeatureSettings], images: ImageFiles, **options: Any) -> dict[str, Pass]:
    """Opens extractors.

    Args:
        parts: of `itrpipe.features.registry.passes_of`.
        images: what they read.
        options: of `Extraction`.

    Raises:
        UsageError: an extractor would contribute nothing.
    """
    works = {name: Extraction(name, images, partial(_build, part), **options) for name, part in parts.items()}
    specs = divide({name: work.extractor.spec for name, work in works.items()})
    for name, work in works.items():
        work.datasets = frozenset(specs[name].shapes())
    return {name: Pass(work, specs[name]) for name, work in works.items()}


def notes_of(passes: Mapping[str, Pass]) -> list[str]:
    """What a user should know of the extractors, each with its name."""
    return [f"{name}: {note}" for name, (work, _) in passes.items() for note in work.extractor.notes]


def _build(settings: FeatureSettings, device: str | torch.device) -> Extractor:
    return extractor_module(settings.kind).build(settings, device)
