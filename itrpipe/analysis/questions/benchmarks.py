"""Accuracy on benchmarks: how many hard negatives score below the captions that are true of the image; ties are wrong.

Images that the dataset does not have are read by the extractors that made the features which the model was trained on,
or by the model itself.

Shapes: P pairs, E examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from itrpipe.analysis.questions.base import BESIDE, BLIND, EvaluatedModel, blind_number, trigrams_of
from itrpipe.datasets.benchmarks import SUITES, Benchmark, Pair, named, read_benchmark
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.datasets.image_check import check_images
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError
from itrpipe.evaluation.intervals import Figures, group_mean_interval, mean_figures
from itrpipe.evaluation.tables import Cells, Content, Key, Measured
from itrpipe.features.declaration import feature_settings, passes_of
from itrpipe.features.embeddings import SplitScores
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.storage.artifact import BENCHMARKS, SCENES_FILE, read_manifest
from itrpipe.storage.disk import make_folder, require_space
from itrpipe.storage.tables import rows_of, write_table
from itrpipe.synthesis.blind import FEWEST, Pairs, Trigrams, blind_accuracy, blind_points, refined

if TYPE_CHECKING:
    from itrpipe.features.extraction import ImageFiles
    from itrpipe.training.data import SplitImages

BENCHMARK_PAIRS = "benchmark_pairs.parquet"
_TIED = 1e-6
"""Scores that differ by less are those of the same tokens."""
_CANDIDATES = 4
"""Edits of an image and category from which one is chosen."""
_TITLES = {
    "aro": "ARO",
    "local": "own negatives",
    "scenes": "edited scenes",
    "sugarcrepe": "SugarCrepe",
    "winoground": "Winoground",
}
"""Benchmarks for people; others by their name."""
_MEASURES = {
    "accuracy": "",
    "macro": ", mean over groups",
    "text": ", text score",
    "image": ", image score",
    "group": ", group score",
}


def _rows(content: Content) -> Iterator[tuple[Key, str, Content]]:
    """Yield the name of each row, the measure in it, and the figures that have it."""
    for name, whole in content.items():
        title = _TITLES.get(name) or name
        summed = "all"
        if whole["guessed"]:
            summed = f"all but {', '.join(whole['guessed'])}"
        categories = {summed: whole, **whole["categories"]}
        for category, figures in categories.items():
            for measure, words in _MEASURES.items():
                if measure in figures:
                    heading = f"{category}{words} ({figures['pairs']:,} pairs)"
                    yield (title, heading), measure, figures


def _cells(content: Content) -> Cells:
    cells = {}
    for row, measure, figures in _rows(content):
        cells[row] = figures[measure]
    return cells


def _blind_cells(content: Content) -> Cells:
    """Return the accuracies of models without images, in the rows of accuracies."""
    cells = {}
    for row, measure, figures in _rows(content):
        if measure == "accuracy":
            cells[row] = blind_number(figures["blind"])
    return cells


SHOWN = (
    Measured(
        "Hard negatives of benchmarks",
        BENCHMARKS,
        _cells,
        "In percent, how many negatives score below their caption with its image; ties count as wrong, and chance is "
        f"50 %. {BESIDE} Winoground: with both images the right caption scores higher (text), with both captions the "
        "right image (image), and both (group); chance is 25, 25 and 16.7 %.",
        turned=True,
        beside=(BLIND, _blind_cells),
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure a single model on the named benchmarks; benchmark_pairs.parquet has the scores of every pair.

    Raises:
        MissingInputError: what the model was trained on was removed since.
        DataError: an image of a benchmark cannot be used.
        UsageError: the model reads scene graphs and there are none of sentences.
    """
    benchmarks = []
    for text in evaluation.settings.benchmark:
        benchmark = named(text)
        if benchmark.name in (*SUITES, EMBEDDED):
            benchmarks.append(benchmark)
    if not benchmarks:
        return None
    from itrpipe.analysis.sentences import compared, sentence_parser

    parse = sentence_parser(evaluation)
    sources = evaluation.sources()
    trigrams = trigrams_of(evaluation, split)
    figures = {}
    tables = []
    for benchmark in benchmarks:
        name = benchmark.name
        if benchmark.folder:
            content = read_benchmark(benchmark)
            measures = SUITES[name].measures
            pairs = content.pairs
            ids, pictures = pictures_of(content, name, evaluation)
            files = [pair.file for pair in pairs]
            _, images = np.unique(files, return_inverse=True)
        else:
            measures = ("pairs",)
            pairs = pairs_of_scenes(evaluation, split, trigrams)
            ids = [pair.file for pair in pairs]
            images = _rows_of(ids, split)
            whole = PreparedDataset.open(sources.prepare).split(evaluation.settings.split)
            scene_ids = pa.array(ids, pa.string()).unique()
            image_rows = rows_of(scene_ids, whole.images["image_id"])
            chosen = whole.images.take(pa.array(image_rows))
            pictures = sources.images(Split(whole.name, chosen, whole.captions))

        table = pa.Table.from_pylist([pair._asdict() for pair in pairs], _PAIRS)
        image_ids = pa.array(ids, pa.string())
        captions = pa.table({"image_id": image_ids, "text": table["caption"]})
        negatives = pa.table({"image_id": image_ids, "text": table["negative"]})
        shown_images = pa.table({"image_id": image_ids.unique()})
        shown = Split("test", shown_images, captions)
        rows = np.arange(len(pairs))
        negative_scores, scores = compared(evaluation, parse, shown, pictures, negatives, rows, name)

        categories = np.array(table["category"].to_pylist())
        groups = np.array(table["group"].to_pylist())
        caption_texts = table["caption"].to_pylist()
        negative_texts = table["negative"].to_pylist()
        texts = Pairs(caption_texts, negative_texts, images)
        blind = blind_points(texts, categories, trigrams)
        scored = ScoredPairs(scores, negative_scores, images, categories, groups, blind)
        is_tied = np.isclose(scores, negative_scores, rtol=0, atol=_TIED)
        if is_tied.any():
            evaluation.warn(
                f"{name}: {is_tied.sum():,} of {len(pairs):,} negatives score like their caption, as where both "
                "differ in case alone or behind the last token that the model reads; they count as wrong"
            )
        table = table.append_column("score", pa.array(scores))
        table = table.append_column("negative_score", pa.array(negative_scores))
        table = table.append_column("right", pa.array(scored.right))
        names = pa.array([name] * len(pairs), pa.string())
        tables.append(table.add_column(0, "benchmark", names))
        figures[name] = benchmark_figures(scored, measures, *evaluation.sampling)
        evaluation.job.metrics[f"{name} benchmark"] = _summary(figures[name])
    write_table(evaluation.folder / BENCHMARK_PAIRS, pa.concat_tables(tables))
    return figures


def _summary(figures: Content) -> str:
    """Return the measures of a benchmark for tables of artifacts: `61.2 %, macro 60.4 %`."""
    parts = []
    for measure in _MEASURES:
        if measure not in figures:
            continue
        percent = f"{figures[measure]['value']:.1f} %"
        if measure != "accuracy":
            percent = f"{measure} {percent}"
        parts.append(percent)
    return ", ".join(parts)


_PAIRS = pa.schema(
    {
        "id": pa.string(),
        "file": pa.string(),
        "category": pa.string(),
        "group": pa.string(),
        "caption": pa.string(),
        "negative": pa.string(),
        "box": pa.list_(pa.int32()),
    }
)


def pairs_of_scenes(
    evaluation: EvaluatedModel,
    split: SplitScores,
    trigrams: Trigrams,
) -> list[Pair]:
    """Return hard negatives of captions of a split of the embedded dataset, one of an image and category.

    They are refined against models without images, and of every category as many as of the rarest, but for `FEWEST`.

    Raises:
        DataError: the scenes are damaged, or no caption can be edited.
    """
    from itrpipe.scenes.build import read_described
    from itrpipe.scenes.hard_negatives import CATEGORIES, hard_negatives

    described = read_described(evaluation.existing("prepare") / SCENES_FILE)
    scenes = []
    captions_of_scenes = []
    for image_id in split.image_ids.tolist():
        scenes.append(described[image_id].scene)
        captions_of_scenes.append(described[image_id].captions)
    edits = hard_negatives(scenes, captions_of_scenes, _CANDIDATES)
    if not edits:
        raise DataError(
            f"{evaluation.prepare}: no caption of the split {evaluation.settings.split} can be edited; prepare more "
            "images, or leave --benchmark scenes out"
        )
    image_ids, captions, negatives, categories = zip(*edits, strict=True)
    images = _rows_of(image_ids, split)
    texts = Pairs(captions, negatives, images)
    rows_by_category = []
    for category in CATEGORIES:
        rows = np.flatnonzero(np.array(categories) == category)
        rows = rows[refined(texts.only(rows), trigrams)]
        _, first_of_image = np.unique(images[rows], return_index=True)
        rows = rows[first_of_image]
        rows = rows[refined(texts.only(rows), trigrams)]
        rows_by_category.append(rows)

    most = max(FEWEST, min(map(len, rows_by_category)))
    chosen = []
    for rows in rows_by_category:
        shuffled = np.random.default_rng(0).permutation(rows)
        chosen += shuffled[:most].tolist()
    pairs = []
    for row in sorted(chosen):
        image_id, caption, negative, category = edits[row]
        pairs.append(Pair(f"{image_id}/{category}", image_id, caption, negative, category))
    return pairs


def _rows_of(image_ids: Sequence[str], split: SplitScores) -> np.ndarray:
    """Return the rows of images in a split; int64."""
    ids = pa.array(image_ids, pa.string())
    return rows_of(ids, pa.array(split.image_ids, pa.string()))


def pictures_of(
    benchmark: Benchmark,
    name: str,
    evaluation: EvaluatedModel,
) -> tuple[list[str], SplitImages]:
    """Check the images of a benchmark and open them for the model; every image, or part of one, counts once.

    Args:
        benchmark: as read.
        name: name of the benchmark.
        evaluation: of the model.

    Returns:
        Id of each pair's image, and the images in the order in which the pairs name them.

    Raises:
        DataError: an image cannot be read, an extractor finds nothing in one, or the extractors are not as they were.
    """
    from itrpipe.features.extraction import ImageFiles

    ids = {}
    files = []
    for pair in benchmark.pairs:
        if (pair.file, pair.box) not in ids:
            ids[pair.file, pair.box] = str(len(ids))
            files.append(pair.file)
    facts, problems = check_images(
        benchmark.root,
        files,
        lambda work: evaluation.job.made(work, f"benchmarks/{name}/checked"),
    )
    if problems:
        file, reason = next(iter(problems.items()))
        raise DataError(
            f"benchmark {name}: {len(problems):,} of {len(set(files)):,} images cannot be used "
            f"({benchmark.root / file} {reason}); correct them"
        )
    boxes = []
    for file, box in ids:
        whole = 0, 0, facts[file].width, facts[file].height
        boxes.append(box or whole)
    boxes = np.array(boxes, dtype=np.int64)
    sizes = boxes[:, [3, 2]] - boxes[:, [1, 0]]
    if all(box is None for _, box in ids):
        boxes = None
    pictures: SplitImages = ImageFiles(benchmark.root.absolute(), files, sizes, boxes=boxes)
    extract = evaluation.sources().extract
    if extract is not None:
        pictures = _features_of(pictures, name, evaluation, extract)
    return [ids[pair.file, pair.box] for pair in benchmark.pairs], pictures


def _features_of(
    images: ImageFiles,
    name: str,
    evaluation: EvaluatedModel,
    extract: Path,
) -> FeatureFile:
    """Extract the images of a benchmark as those of the dataset were.

    Args:
        images: of the benchmark; their ids are their rows.
        name: name of the benchmark.
        evaluation: of the model.
        extract: features that the model was trained on.

    Raises:
        DataError: an extractor finds nothing in an image; or the extractors are not as they were.
    """
    from itrpipe.features.extraction import extractions, join_features, notes_of

    job = evaluation.job
    manifest = read_manifest(extract)
    settings = feature_settings(manifest.settings).model_validate(manifest.settings)
    recorded = passes_of(manifest.conf, settings)
    passes = extractions(recorded, images, device=job.execution.device)
    for note in notes_of(passes):
        if note in manifest.messages:
            continue
        raise DataError(
            f"{extract} was not made by the extractor as it is now ({note}), so that the images of a benchmark "
            "would be read by another one; extract the dataset again, or leave --benchmark out"
        )
    ids = [str(row) for row in range(len(images.files))]
    path = job.work / "benchmark_features" / name / FEATURES
    make_folder(path.parent)
    size = sum(work.spec.bytes_needed(len(ids)) for work in passes.values())
    require_space(path, size, path.name)
    parts = []
    for extractor, work in passes.items():
        parts += job.made(work, f"benchmarks/{name}/{extractor}").paths
    failed = join_features(path, ids, parts, "+".join(passes))
    if failed:
        row = min(failed)
        raise DataError(
            f"benchmark {name}: {len(failed):,} of {len(ids):,} images have no features "
            f"({images.root / images.files[row]}: {failed[row]}); evaluate with other features, or without this "
            "benchmark"
        )
    return FeatureFile.open(path)


class ScoredPairs(NamedTuple):
    """Captions and their hard negatives as a model scores them.

    Attributes:
        scores: float32 [P], of the image with the caption.
        negative_scores: float32 [P], of the image with the negative.
        images: int64 [P], row of the image file.
        categories, groups: text [P]; empty: none.
        blind: float64 [P, models], percent that models without the image get, see `itrpipe.synthesis.blind`.
    """

    scores: np.ndarray
    negative_scores: np.ndarray
    images: np.ndarray
    categories: np.ndarray
    groups: np.ndarray
    blind: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """Return which negatives score below their caption, bool [P]."""
        return self.scores > self.negative_scores

    def only(self, rows: np.ndarray) -> ScoredPairs:
        """Return some of them, by a mask."""
        return ScoredPairs(*(column[rows] for column in self))


def benchmark_figures(
    pairs: ScoredPairs,
    measures: Sequence[str],
    samples: int,
    level: float,
) -> dict[str, Any]:
    """Return the figures of a benchmark and of each of its categories, ready for JSON.

    Args:
        pairs: of one model; one at least.
        measures: names in `MEASURES`.
        samples: resampled test sets behind every interval.
        level: share of them inside an interval, 0..1.

    Returns:
        Number of `pairs` and of `images`; every measure, in percent: value, low, high; `blind`, see `blind_accuracy`;
        and under `categories` the same of each. Those that can be `guessed` without the image count in no sum.
    """

    def figures(part: ScoredPairs) -> dict[str, Any]:
        measured = {
            "pairs": len(part.scores),
            "images": len(np.unique(part.images)),
            "blind": blind_accuracy(part.blind, part.images, samples, level),
        }
        for measure in measures:
            measured |= MEASURES[measure](part, samples, level)
        return measured

    categories = {}
    guessed = []
    for name in np.unique(pairs.categories).tolist():
        if not name:
            continue
        categories[name] = figures(pairs.only(pairs.categories == name))
        if categories[name]["blind"]["guessed"]:
            guessed.append(name)
    is_fair = ~np.isin(pairs.categories, guessed)
    if not is_fair.any():
        guessed = []
        is_fair[:] = True
    whole = figures(pairs.only(is_fair))
    return whole | {"guessed": guessed, "categories": categories}


def accuracy(pairs: ScoredPairs, samples: int, level: float) -> Figures:
    """Return `accuracy`: percent of the negatives that score below their caption.

    Images are resampled with all their pairs.

    Source: SugarCrepe (Hsieh et al., 2023), section 4; the micro accuracy of ARO.
    """
    return mean_figures({"accuracy": 100.0 * pairs.right}, pairs.images, samples, level)


def macro(pairs: ScoredPairs, samples: int, level: float) -> Figures:
    """Return `macro`: mean of the accuracies of all groups, percent; nothing where no pair has a group.

    Images are resampled with all their pairs.

    Source: ARO (Yuksekgonul et al., ICLR 2023), Table 2: groups are relations, and pairs of attributes.
    """
    grouped = pairs.only(pairs.groups != "")
    if not len(grouped.scores):
        return {}
    percent = 100.0 * grouped.right
    interval = group_mean_interval(percent, grouped.images, grouped.groups, samples, level)
    return {"macro": interval._asdict()}


def examples(pairs: ScoredPairs, samples: int, level: float) -> Figures:
    """Return `text`, `image` and `group` scores of examples, percent; examples are resampled.

    A group has two pairs: image 0 with caption 0 and caption 1 as its negative, and image 1 the other way round. With
    s(c, i) the score of a caption and an image,

        text:  s(c0, i0) > s(c1, i0)  and  s(c1, i1) > s(c0, i1)
        image: s(c0, i0) > s(c0, i1)  and  s(c1, i1) > s(c1, i0)
        group: both

    Source: Winoground (Thrush et al., CVPR 2022), Eq. 1 to 3.
    """
    sides = np.argsort(pairs.groups, kind="stable").reshape(-1, 2)  # [E, 2]
    text = pairs.right[sides].all(axis=1)
    other_images = pairs.negative_scores[sides[:, ::-1]]
    image = (pairs.scores[sides] > other_images).all(axis=1)
    percent = {
        "text": np.where(text, 100.0, 0.0),
        "image": np.where(image, 100.0, 0.0),
        "group": np.where(text & image, 100.0, 0.0),
    }
    return mean_figures(percent, np.arange(len(sides)), samples, level)


MEASURES: dict[str, Callable[[ScoredPairs, int, float], Figures]] = {
    "pairs": accuracy,
    "macro": macro,
    "examples": examples,
}
