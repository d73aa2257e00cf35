"""Evaluate a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from itrpipe.cli.asked import run_stage
from itrpipe.cli.datasets import whole_file
from itrpipe.cli.help import command, option
from itrpipe.cli.options import (
    DecisionsOption,
    GivenOptions,
    LanguageModelOption,
    Number,
    Split,
    Texts,
)

if TYPE_CHECKING:
    pass


def _whole(benchmarks: list[str] | None) -> list[str] | None:
    """`NAME=FOLDER` by whole paths."""
    parts = (each.partition("=") for each in benchmarks or ())
    return [f"{name}{equals}{whole_file(folder)}" for name, equals, folder in parts] or None


@dataclass
class EvaluateOptions(GivenOptions):
    """What is measured."""

    ensemble_with: Texts = option(None, "--ensemble-with", "Average with this model; repeatable.", metavar="MODEL")
    split: Split | None = option(None, "--split", "test, val or train.")
    rerank: Number = option(None, "--rerank", "ssamt: score only K candidates of a query in full.", metavar="K")
    eccv: bool = option(False, "--eccv", "coco: also with the matches of ECCV Caption and CxC (itrpipe[eccv]).")
    discriminate: Texts = option(None, "--discriminate", "Sentences that should score lower; repeatable.", metavar="BY")
    language_model: LanguageModelOption = None
    benchmark: Texts = option(None, "--benchmark", "Repeatable; see above.", metavar="NAME=FOLDER", callback=_whole)
    protocols: Texts = option(None, "--protocol", "full, coco-1k, coco-5k; repeatable.", metavar="NAME")
    decisions: DecisionsOption = None


@command()
def evaluate(given: EvaluateOptions) -> None:
    """Measure a trained model, or the mean of several, on a split.

    A further model is named by its backbone and what else differs, for --ensemble-with: vsrn.s1 is seed 1, aoq.vsrn
    another method.

    Sentences are named by what writes them, for --discriminate: phrases.s1 by the model of seed 1, phrases.tags by one
    of another training, vse-c and graph-edits by rules. They are made of the captions of the evaluated split.

    --benchmark sugarcrepe=FOLDER reads the published files of a benchmark and the images next to them, as aro= and
    winoground= do, local=FOLDER a
    benchmark.csv, .json or .jsonl of your own with file, caption, negative and optionally category. --benchmark scenes
    edits the captions of the synthetic dataset, so that every negative is known to be false.

    --decisions FILE also counts what people found to fit as right. --embeddings ranks with vectors that any model has
    made of the split: .npy, Parquet or HDF5. Their ids are those of --dataset; where none is named, these files and
    --owners are all that is needed.

    Example: itrpipe evaluate --method aoq --backbone vsrn
    """
    definition = given.defined(given.split or "test")
    run_stage(*given.where, "evaluate", given.overrides(), definition=definition, **given.how)
