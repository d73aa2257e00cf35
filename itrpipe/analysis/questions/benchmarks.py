"""How many hard negatives of benchmarks score below the captions that are true of the image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.datasets.benchmarks import SUITES, Named, named, read_benchmark
from itrpipe.errors import DataError
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.storage.artifact import BENCHMARKS
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.analysis.benchmarks import Examined
    from itrpipe.features.embeddings import SplitScores

_COUNTS = ("pairs", "images", "categories")
_FOLDER = "benchmark_features"
_MEASURES_OF_SCENES = ("pairs",)


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


def _cells(found: Mapping[str, Any]) -> Cells:
    return {
        (_TITLES.get(name, name), f"{category}{title} ({own['pairs']:,} pairs)"): Number.of(own[measure])
        for name, whole in found.items()
        for category, own in {"all": whole, **whole["categories"]}.items()
        for measure, title in _MEASURES.items()
        if measure in own
    }


SHOWN = (
    Measured(
        "Hard negatives of benchmarks",
        BENCHMARKS,
        _cells,
        "In percent, how many negatives score below their caption with its image; ties count as wrong, and chance is "
        "50 %. Winoground: with both images the right caption scores higher (text), with both captions the right "
        "image (image), and both (group); chance is 25, 25 and 16.7 %.",
        turned=True,
    ),
)


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models, where benchmarks are named."""
    return evaluation.is_single and bool(evaluation.settings.benchmark)


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes benchmarks.json and benchmark_pairs.parquet.

    Raises:
        MissingInputError: what the model was trained on was removed since.
        DataError: an image of a benchmark cannot be used.
        UsageError: the model reads scene graphs and there are none of sentences.
    """
    import pyarrow.parquet as pq

    from itrpipe.analysis.benchmarks import judged, pair_table
    from itrpipe.evaluation.benchmarks import benchmark_figures

    settings, parse = evaluation.settings, evaluation.sentence_parser()
    found: dict[str, Any] = {}
    scored: dict[str, Any] = {}
    for each in map(named, settings.benchmark):
        examined = _examined(evaluation, each, split)
        both = 2 * len(examined.pairs)
        with evaluation.reporter.task(f"scoring {each.name}", both, "captions and negatives") as task:
            where = evaluation.trained, evaluation.place, evaluation.block
            pairs = judged(examined, *where, parse, task.advance, evaluation.warn)
        measures = SUITES[each.name].measures if each.folder else _MEASURES_OF_SCENES
        found[each.name] = benchmark_figures(pairs, measures, settings.bootstrap_samples, settings.interval_level)
        scored[each.name] = (examined.pairs, pairs)
        evaluation.metrics[f"{each.name} benchmark"] = ", ".join(_summary(found[each.name]))
    write_json(evaluation.folder / BENCHMARKS, found)
    pq.write_table(pair_table(scored), evaluation.folder / "benchmark_pairs.parquet", compression="zstd")


def _examined(evaluation: Evaluation, benchmark: Named, split: SplitScores) -> Examined:
    from itrpipe.analysis.benchmarks import Examined, pairs_of_scenes, with_features
    from itrpipe.features.store import FEATURES, FeatureFile

    extract = evaluation.existing("extract")
    if benchmark.folder:
        read = read_benchmark(benchmark)
        return with_features(
            read, extract, evaluation.device, evaluation.made, evaluation.work / _FOLDER, benchmark.name
        )
    pairs = pairs_of_scenes(evaluation.existing("prepare"), split.image_ids.tolist())
    if not pairs:
        raise DataError(
            f"{evaluation.prepare}: no caption of the split {evaluation.settings.split} can be edited; prepare more "
            "images, or leave --benchmark scenes out"
        )
    return Examined(pairs, [pair.file for pair in pairs], FeatureFile.open(extract / FEATURES))


def _summary(found: dict[str, Any]) -> list[str]:
    """`71.2 %`; of several measures each with its name."""
    measures = [name for name in found if name not in _COUNTS]
    names = ["" if name == "accuracy" else f"{name} " for name in measures]
    return [f"{title}{found[name]['value']:.1f} %" for title, name in zip(names, measures, strict=True)]


def _line(found: dict[str, Any]) -> str:
    intervals = [f"{found[name]['low']:.1f} to {found[name]['high']:.1f}" for name in found if name not in _COUNTS]
    return ", ".join(f"{value} ({interval})" for value, interval in zip(_summary(found), intervals, strict=True))
