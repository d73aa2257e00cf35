"""Evaluate a trained model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.asked import whole_file
from itrpipe.cli.embeddings import GivenOptions
from itrpipe.cli.options import DecisionsOption, LanguageModelOption, Number, Split, Texts


@dataclass
class Evaluate(GivenOptions):
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

    --model st:ID takes a model of sentence-transformers that embeds images and texts, oc:ID one of open_clip, by hub
    id or folder: it embeds the dataset once, and later commands know it by the last part of its id, or by --name.

    Example: itrpipe evaluate --method aoq --backbone vsrn
    """

    ensemble_with: Annotated[Texts, Option(help="Average with this model; repeatable.", metavar="MODEL")] = None
    split: Annotated[Split | None, Option(help="test, val or train.")] = None
    rerank: Annotated[Number, Option(help="ssamt: score only K candidates of a query in full.", metavar="K")] = None
    eccv: Annotated[
        bool, Option("--eccv", help="coco: also with the matches of ECCV Caption and CxC (itrpipe[eccv]).")
    ] = False
    discriminate: Annotated[Texts, Option(help="Sentences that should score lower; repeatable.", metavar="BY")] = None
    language_model: LanguageModelOption = None
    benchmark: Annotated[Texts, Option(help="Repeatable; see above.", metavar="NAME=FOLDER")] = None
    protocols: Annotated[Texts, Option("--protocol", help="full, coco-1k, coco-5k; repeatable.", metavar="NAME")] = None
    decisions: DecisionsOption = None

    def run(self) -> Path:
        definition = self.defined(self.split or "test")
        benchmarks = []
        for each in self.benchmark or ():
            name, equals, folder = each.partition("=")
            benchmarks.append(f"{name}{equals}{whole_file(folder)}")
        overrides = self.overrides(
            *("ensemble_with", "split", "rerank", "eccv", "discriminate", "language_model", "protocols", "decisions"),
            benchmark=benchmarks or None,
        )
        return self.run_stage("evaluate", overrides, definition=definition)
