"""Benchmarks of hard negatives by a trained model: features of their images, and scores of their pairs.

Images that the dataset does not have are read by the extractors that made the features which the model was trained on.

Shapes: P pairs, N images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.analysis.discrimination import ParseTexts, SentenceJudge
from itrpipe.datasets.benchmarks import Benchmark, Box, Pair
from itrpipe.datasets.image_check import check_images
from itrpipe.datasets.prepared import Split
from itrpipe.engine.run import Made
from itrpipe.errors import DataError
from itrpipe.evaluation.benchmarks import ScoredPairs
from itrpipe.features.declaration import feature_settings, passes_of
from itrpipe.features.extraction import Extraction, ImageFiles, extractions, join_features, notes_of
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.storage.artifact import SCENES_FILE, read_manifest
from itrpipe.storage.disk import make_folder, require_space

Make = Callable[..., Made]
"""`Job.made`: makes the parts of a map, in a folder of this name."""


@dataclass(frozen=True)
class Examined:
    """Pairs with the features of their images.

    Attributes:
        pairs: P of them.
        image_ids: of each, as the features have it.
        features: hold these images.
    """

    pairs: Sequence[Pair]
    image_ids: Sequence[str]
    features: FeatureFile


def pairs_of_scenes(prepare: Path, image_ids: Sequence[str]) -> list[Pair]:
    """Hard negatives that the embedded dataset makes of its captions.

    Args:
        prepare: artifact of the dataset.
        image_ids: whose captions are edited.

    Raises:
        DataError: the scenes are damaged.
    """
    from itrpipe.scenes.build import read_described
    from itrpipe.scenes.hard_negatives import hard_negatives

    described = read_described(prepare / SCENES_FILE)
    own = [described[image_id] for image_id in image_ids]
    found = hard_negatives([each.scene for each in own], [each.captions for each in own])
    return [
        Pair(f"{each.image_id}/{each.category}", each.image_id, each.caption, each.negative, each.category)
        for each in found
    ]


def with_features(benchmark: Benchmark, extract: Path, device: str, make: Make, work: Path, name: str) -> Examined:
    """Extracts the images of a benchmark as those of the dataset were; every image, or part of one, once.

    Args:
        benchmark: as read.
        extract: artifact of the dataset's features, which were not imported.
        device: `auto`, `cpu` or `cuda`.
        make: makes the parts of maps.
        work: folder for the joined features.
        name: of the benchmark.

    Raises:
        DataError: an image cannot be read, or an extractor finds nothing in it; or the extractors are not as they were.
    """
    shown: dict[tuple[str, Box | None], int] = {}
    rows = [shown.setdefault((pair.file, pair.box), len(shown)) for pair in benchmark.pairs]
    ids = [str(row) for row in range(len(shown))]
    images = _image_files(benchmark, list(shown), make, name)
    manifest = read_manifest(extract)
    settings = feature_settings(manifest.settings).model_validate(manifest.settings)
    passes = extractions(passes_of(manifest.conf, settings), images, device=device)
    _refuse_other_extractors(extract, manifest.messages, notes_of(passes))
    path = work / name / FEATURES
    make_folder(path.parent)
    require_space(path, sum(own.spec.bytes_needed(len(ids)) for own in passes.values()), path.name)
    _join(path, ids, passes, make, name, images)
    return Examined(benchmark.pairs, [ids[row] for row in rows], FeatureFile.open(path))


def judged(
    examined: Examined,
    trained: Path,
    device: str,
    block: int,
    parse: ParseTexts | None,
    advance: Callable[[int], Any],
    warn: Callable[[str], None],
) -> ScoredPairs:
    """Scores pairs of a benchmark.

    Args:
        examined: the pairs.
        trained: artifact of the model.
        device: `cpu` or `cuda`.
        block: captions per forward pass.
        parse: makes scene graphs, for models that read phrases.
        advance: called with the number of captions and negatives done.
        warn: is told how many of these are longer than the model reads.
    """
    pairs, ids = examined.pairs, pa.array(examined.image_ids, pa.string())
    captions = pa.table({"image_id": ids, "text": [pair.caption for pair in pairs]})
    negatives = pa.table({"image_id": ids, "text": [pair.negative for pair in pairs]})
    split = Split("test", pa.table({"image_id": ids.unique()}), captions)
    judge = SentenceJudge.over(trained, split, examined.features, device, block, parse)
    found = judge.compare(negatives, np.arange(len(pairs)), advance, warn)
    files = np.unique([pair.file for pair in pairs], return_inverse=True)[1]
    categories, groups = (np.array([getattr(pair, name) for pair in pairs]) for name in ("category", "group"))
    return ScoredPairs(found.caption_scores, found.scores, files, categories, groups)


def pair_table(benchmarks: Mapping[str, tuple[Sequence[Pair], ScoredPairs]]) -> pa.Table:
    """A row for every pair: what it is, both scores, and whether the caption has the higher one."""
    tables = []
    for name, (pairs, scored) in benchmarks.items():
        texts = ("id", "file", "category", "group", "caption", "negative")
        columns: dict[str, Any] = {"benchmark": pa.array([name] * len(pairs), pa.string())}
        columns |= {each: pa.array([getattr(pair, each) for pair in pairs], pa.string()) for each in texts}
        columns["box"] = pa.array([pair.box and list(pair.box) for pair in pairs], pa.list_(pa.int32()))
        columns |= {"score": scored.scores, "negative_score": scored.negative_scores, "right": scored.right}
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _image_files(benchmark: Benchmark, shown: Sequence[tuple[str, Box | None]], make: Make, name: str) -> ImageFiles:
    """The images, each looked at before any is extracted.

    Raises:
        DataError: one cannot be used.
    """
    files = [file for file, _ in shown]
    facts, problems = check_images(benchmark.root, files, lambda work: make(work, f"benchmarks/{name}/checked"))
    if problems:
        file, reason = next(iter(problems.items()))
        raise DataError(
            f"benchmark {name}: {len(problems):,} of {len(set(files)):,} images cannot be used "
            f"({benchmark.root / file} {reason}); restore them"
        )
    sizes = [
        (facts[file].height, facts[file].width) if box is None else (box[3] - box[1], box[2] - box[0])
        for file, box in shown
    ]
    whole = [box or (0, 0, size[1], size[0]) for (_, box), size in zip(shown, sizes, strict=True)]
    boxes = None if all(box is None for _, box in shown) else np.array(whole, dtype=np.int64)
    return ImageFiles(benchmark.root.absolute(), files, np.array(sizes, dtype=np.int64), boxes=boxes)


def _refuse_other_extractors(extract: Path, before: Sequence[str], notes: Sequence[str]) -> None:
    if other := [note for note in notes if note not in before]:
        raise DataError(
            f"{extract} was not made by the extractor as it is now ({other[0]}), so that the images of a benchmark "
            "would be read by another one; extract the dataset again, or leave --benchmark out"
        )


def _join(
    path: Path, ids: Sequence[str], passes: Mapping[str, Extraction], make: Make, name: str, images: ImageFiles
) -> None:
    parts = [part for each, work in passes.items() for part in make(work, f"benchmarks/{name}/{each}").paths]
    failed = join_features(path, ids, parts, "+".join(passes))
    if failed:
        row = min(failed)
        raise DataError(
            f"benchmark {name}: {len(failed):,} of {len(ids):,} images have no features "
            f"({images.root / images.files[row]}: {failed[row]}); evaluate with other features, or without this "
            "benchmark"
        )
