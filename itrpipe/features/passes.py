"""One feature file from several extractors, each of which goes over the images once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from itrpipe.engine.files import ArrayFile
from itrpipe.errors import DataError, UsageError
from itrpipe.features.store import FeatureSpec, FeatureWriter, create_features


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
    parts = {name: [ArrayFile(each) for each in paths] for name, (_, paths) in passes.items()}
    failed = {int(row): why for each in parts.values() for part in each for row, why in part.facts.items()}
    if len(failed) == len(ids):
        raise DataError(f"none of the {len(ids):,} images could be used; the first {failed[0]}")
    usable = np.setdiff1d(np.arange(len(ids)), np.fromiter(failed, dtype=np.int64))
    place = np.full(len(ids), -1, dtype=np.int64)
    place[usable] = np.arange(len(usable))
    spec = merge({name: own for name, (own, _) in passes.items()})
    create_features(path, [name for row, name in enumerate(ids) if row not in failed], spec, extractor)
    with FeatureWriter(path) as writer:
        for part in (part for each in parts.values() for part in each if part.shapes):
            arrays = part.all()
            slots = place[arrays.pop("rows")]
            known = slots >= 0  # another extractor may have refused the image
            if known.any():
                writer.write(slots[known], {name: values[known] for name, values in arrays.items()})
            on_joined(len(slots))
    return failed
