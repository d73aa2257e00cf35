"""Evaluate a trained model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.embeddings import GivenOptions
from itrpipe.cli.options import DecisionsOption, JudgesOption, LanguageModelOption, Number, Split, Texts
from itrpipe.cli.request import absolute_path
from itrpipe.datasets.judgements import JUDGEMENTS
from itrpipe.progress import Reporter, SafeConsole


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

    --decisions FILE also counts what people found to fit as right. --judge captions says how many of the wrong answers
    are right after all, and recall with these; both together are more exact. --benchmark flickr8k-judgements=FOLDER
    compares judges with people; where nothing else is given, without any model.

    --embeddings ranks with vectors that any model has made of the split: .npy, Parquet or HDF5. Their ids are those of
    --dataset; where none is named, these files and --owners are all that is needed.

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
    judges: JudgesOption = None

    def run(self) -> Path | None:
        benchmark = self.benchmark or []
        if self.given == {"judges", "benchmark"} | self.given & {"device"} and len(benchmark) == 1:
            name, _, folder = benchmark[0].partition("=")
            if name == JUDGEMENTS and folder:
                self._compare_judges(folder)
                return None
        definition = self.defined(self.split or "test")
        benchmarks = []
        for each in self.benchmark or ():
            name, equals, folder = each.partition("=")
            benchmarks.append(f"{name}{equals}{absolute_path(folder)}")
        overrides = self.overrides(
            *("ensemble_with", "split", "rerank", "eccv", "discriminate", "language_model", "protocols", "decisions"),
            judges=self.judges,
            benchmark=benchmarks or None,
        )
        return self.run_stage("evaluate", overrides, definition=definition)

    def _compare_judges(self, folder: str) -> None:
        """Print how far judges agree with people, since nothing is asked of a model."""
        from itrpipe.analysis.questions.judgements import SHOWN, compare_judges
        from itrpipe.evaluation.tables import as_lines

        reporter = Reporter(SafeConsole())
        figures = compare_judges(folder, self.judges or (), self.device or "auto", reporter)
        table = SHOWN[0].table([("", [figures])])
        reporter.say_lines("\n".join(as_lines(table) if table else []))
