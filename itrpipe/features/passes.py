"""One feature file from several extractors, each of which goes over the images once, or from one importer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.errors import DataError, UsageError
from itrpipe.features.declaration import FeatureSettings
from itrpipe.features.extraction import Extraction, ImageFiles
from itrpipe.features.extractors.base import Extractor
from itrpipe.features.importing import Import
from itrpipe.features.registry import extractor_module
from itrpipe.features.store import FeatureSpec, write_features
from itrpipe.storage.parts import ArrayFile


def divide(specs: Mapping[str, FeatureSpec]) -> dict[str, FeatureSpec]:
    """Decides what each of several extractors contributes: a group of datasets comes from the first that has it.

    Raises:
        UsageError: an extractor would contribute nothing.
    """
    taken: set[str] = set()
    parts: dict[str, FeatureSpec] = {}
    for name, spec in specs.items():
        groups = spec.groups() - taken
        if not groups:
            raise UsageError(
                f"{'+'.join(specs)}: {name} has {' and '.join(sorted(spec.groups()))} only, which another one gives "
                "already; leave it out or name it first"
            )
        taken |= groups
        parts[name] = spec.only(groups)
    return parts


def extractions(parts: Mapping[str, FeatureSettings], images: ImageFiles, **options: Any) -> dict[str, Extraction]:
    """Opens extractors; the `spec` of each holds the datasets that no extractor before it has.

    Args:
        parts: of `itrpipe.features.registry.passes_of`.
        images: what they read.
        options: of `Extraction`.

    Raises:
        UsageError: an extractor would contribute nothing.
    """
    works = {name: Extraction(name, images, partial(_build, part), **options) for name, part in parts.items()}
    for name, spec in divide({name: work.spec for name, work in works.items()}).items():
        works[name].spec = spec
    return works


def _build(settings: FeatureSettings, device: str | torch.device) -> Extractor:
    return extractor_module(settings.kind).build(settings, device)


def notes_of(works: Mapping[str, Extraction | Import]) -> list[str]:
    """What a user should know of the extractors or of the import, each with its name."""
    return [f"{name}: {note}" for name, work in works.items() for note in work.notes]


def merge(parts: Mapping[str, FeatureSpec]) -> FeatureSpec:
    """The datasets of a file that holds all parts of `divide`."""
    regions = next((spec for spec in parts.values() if spec.regions), FeatureSpec(0, 0))
    pixels = next((spec.pixels for spec in parts.values() if spec.pixels[0]), (0, 0))
    return replace(regions, global_dim=max(spec.global_dim for spec in parts.values()), pixels=pixels)


def join_features(
    path: Path,
    ids: Sequence[str],
    passes: Mapping[str, tuple[FeatureSpec, Sequence[Path]]],
    extractor: str,
    on_joined: Callable[[int], None] = lambda count: None,
) -> dict[int, str]:
    """Writes one feature file from the parts of one or several extractors.

    Args:
        path: the file; what an interrupted run has left there is replaced.
        ids: N, of all images.
        passes: name of an extractor -> what it contributes, and its parts.
        extractor: name of all of them, kept in the file.
        on_joined: called with numbers of rows.

    Returns:
        Row -> why its image has no features; these have no row in the file.

    Raises:
        DataError: no image has features.
        DiskFullError: the disk cannot hold the file.
    """
    parts = [ArrayFile(path) for _, paths in passes.values() for path in paths]
    failed = {int(row): why for part in parts for row, why in part.facts.items()}
    if len(failed) == len(ids):
        raise DataError(f"none of the {len(ids):,} images could be used; the first {failed[0]}")
    usable = np.setdiff1d(np.arange(len(ids)), np.fromiter(failed, dtype=np.int64))
    place = np.full(len(ids), -1, dtype=np.int64)
    place[usable] = np.arange(len(usable))
    spec = merge({name: own for name, (own, _) in passes.items()})

    def pieces() -> Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
        for part in (part for part in parts if part.shapes):
            rows = place[part.read("rows")]
            places = {name: part.stored(name) for name in part.shapes if name != "rows"}
            arrays = {name: np.memmap(at.path, at.dtype, "r", at.offset, at.shape) for name, at in places.items()}
            known = rows >= 0  # another extractor may have refused the image
            if known.all():
                yield rows, arrays
            else:
                yield rows[known], {name: values[known] for name, values in arrays.items()}
            on_joined(len(rows))

    write_features(path, [name for row, name in enumerate(ids) if row not in failed], spec, extractor, pieces())
    return failed
