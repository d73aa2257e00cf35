"""What asks trained models: evaluate, explain, report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text as Coloured
from typer import Option

from itrpipe.cli.asked import Asked, default_conf, device_of, run_stage, train_settings
from itrpipe.cli.datasets import whole_file
from itrpipe.cli.help import command, option
from itrpipe.cli.named import home_of
from itrpipe.cli.options import (
    AskingOptions,
    DecisionsOption,
    GivenOptions,
    JsonOption,
    LanguageModelOption,
    MethodOption,
    Number,
    PlanOptions,
    Split,
    Text,
    Texts,
    overrides_of,
)
from itrpipe.datasets.definition import DatasetDefinition, check_name
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.pipeline.planning import pinned_step
from itrpipe.progress import Reporter
from itrpipe.stages.base import Artifact, Need, load_stage
from itrpipe.stages.report import MARKDOWN
from itrpipe.storage.artifact import Manifest, check_artifact, folders_in, is_finished
from itrpipe.storage.disk import require_writable, write_text
from itrpipe.storage.integrity import checked
from itrpipe.training.settings import canonical_backbone

if TYPE_CHECKING:
    from itrpipe.analysis.words import CorrectedSentence, WordReader


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


_TONES = ("", "black on #fbe8d6", "black on #f9d3ad", "black on #f6bd84", "bold black on #f2a65a")
"""From a word that belongs to the image to one that does not: one hue, from light to dark."""


@dataclass
class ExplainOptions(AskingOptions):
    """Which model explains."""

    method: MethodOption = "tags-dc"


@command()
def explain(
    given: ExplainOptions,
    image: str = Option(..., "--image", metavar="ID|FILE", help="Image of the dataset, or a photograph."),
    caption: str = Option(..., "--caption", help="Any sentence."),
    as_json: JsonOption = False,
) -> None:
    """Show which words of a caption do not belong to an image, and what belongs there.

    Words are coloured by the probability that they do not match the image; those above one half carry their number and
    are replaced in the corrected sentence. The match is the probability that the whole sentence belongs to the image.
    This takes a model that learned to discriminate and correct words: tags-dc. An image is named by its id or file; a
    photograph that is no part of the dataset is read by the extractor of the dataset's features.

    Example: itrpipe explain --image test-000000 --caption "a cat on a red roof"
    """
    from itrpipe.analysis.words import trains_word_heads

    asked = given.asked("train", as_json=as_json)
    step = asked.plan("train", given.method)
    if not trains_word_heads(train_settings(step).model_dump()):
        raise UsageError(
            f"{asked.label} does not learn which words are wrong: its loss has no weight_discrimination above 0; "
            "explain a run of --method tags-dc"
        )
    if not asked.made("explain"):
        return
    found = _explanation(Artifact.of(step.location.folder), image, caption, device_of(step))
    if as_json:
        Reporter().say_json({"dataset": given.dataset, **found})
    else:
        _show(found, asked.reporter)


def _explanation(trained: Artifact, image: str, caption: str, device: str) -> dict[str, Any]:
    """What a model says of a caption beside an image, ready for JSON.

    `score` and `corrected_score` are the probabilities that the caption, and the corrected one, match the image. What
    is corrected is None of a model that was not trained to correct words.
    """
    import numpy as np

    from itrpipe.analysis.words import WordReader, match_probability
    from itrpipe.datasets.prepared import given_split
    from itrpipe.search.photos import find_image
    from itrpipe.training.data import open_split
    from itrpipe.training.saved import load_model

    saved, label = load_model(trained.folder), trained.manifest.label
    shown = find_image(trained.folder, image, device)
    pair = given_split([caption], [shown.image_id], shown.split, "--caption")
    reader = WordReader(saved, pair, device)
    captions, longest = reader.captions, reader.max_tokens
    if captions.lengths[0] > longest or captions.words[0].max() + 1 < len(captions.spans[0]):
        raise UsageError(f"--caption has more than the {longest} tokens that {label} reads; shorten it")
    row = np.zeros(1, dtype=np.int64)
    images = reader.embed(open_split(pair, shown.features, saved.tokens, saved.settings).images(row))
    read = reader.read(images, row, row, captions.tokens)
    (found,) = reader.corrected(row, captions.tokens, read)
    again = reader.read(images, row, row, found.corrected_tokens[None])
    return {
        "run": label,
        "image_id": shown.image_id,
        "split": shown.split,
        "caption": caption,
        "score": found.score,
        "words": [*_words(reader, found)],
        "corrected": found.corrected.text if reader.corrects else None,
        "corrected_score": match_probability(float(again.scores[0])) if reader.corrects else None,
    }


def _words(reader: WordReader, found: CorrectedSentence) -> Iterator[dict[str, Any]]:
    """The words of a caption: where they stand, how likely they are wrong, whether the model knows them."""
    (tokens,), (owners,) = reader.captions.tokens, reader.captions.words
    unknown = set(owners[tokens == reader.unknown_id].tolist())
    for number, chance in enumerate(found.mismatch.tolist()):
        flagged = bool(found.flagged[number])
        (start, end), corrected = found.sentence.spans[number], slice(*found.corrected.spans[number])
        yield {
            "text": found.sentence.text[start:end],
            "start": start,
            "end": end,
            "mismatch": chance,
            "flagged": flagged,
            "known": number not in unknown,
            "correction": found.corrected.text[corrected] if flagged and reader.corrects else None,
        }


def _show(found: Mapping[str, Any], reporter: Reporter) -> None:
    words, match = found["words"], f"  match      {found['score']:.2f}"
    reporter.say(f"{found['image_id']} ({found['split']}), {found['run']}", style="bold")
    reporter.console.print(Coloured("  caption    ").append_text(coloured(found["caption"], words)))
    if not any(word["flagged"] for word in words):
        reporter.say("  corrected  nothing: no word is more likely wrong than right")
    elif found["corrected_score"] is not None:
        reporter.say(f"  corrected  {found['corrected']}")
        match += f", corrected {found['corrected_score']:.2f}"
    reporter.say(match)
    if unknown := [word["text"] for word in words if not word["known"]]:
        reporter.say(f"  unknown    {', '.join(unknown)}: not among the words that the model knows", style="yellow")


def coloured(caption: str, words: list[dict[str, Any]]) -> Coloured:
    """A caption whose words are coloured by their probability of a mismatch, with the number behind flagged ones."""
    text, done = Coloured(), 0
    for word in words:
        text.append(caption[done : word["start"]])
        text.append(word["text"], style=_TONES[min(len(_TONES) - 1, int(word["mismatch"] * len(_TONES)))])
        text.append(f" ({word['mismatch']:.2f})" if word["flagged"] else "")
        done = word["end"]
    return text.append(caption[done:])


@command()
def report(
    given: PlanOptions,
    backbone: Text = Option(None, "--backbone", "-b", help="Compare models of this backbone only."),
    compare: tuple[str, str] | None = Option(
        None, "--compare", metavar="A B", help="Only B against A: names of models, or METHOD.BACKBONE[.sN]."
    ),
    into: Path | None = Option(None, "--into", metavar="FILE", help="Markdown file whose table of results is renewed."),
) -> None:
    """Write one HTML page over all evaluated runs of a dataset, or over two models.

    --compare shows which queries one of the two models answers better, and in which settings they differ.

    --into puts the table of results between the lines <!-- itrpipe report DATASET --> and
    <!-- end of itrpipe report -->; with --backbone, the first is <!-- itrpipe report DATASET BACKBONE -->.

    Example: itrpipe report --dataset scenes
    """
    if compare is not None and (backbone is not None or into is not None):
        raise UsageError("--compare has two models; leave out --backbone and --into")
    homes = {home_of(given.data, each) for each in compare or ()}
    if "dataset" not in given.given and len(homes) == 1:
        given.dataset = homes.pop() or given.dataset
    asked = Asked(*given.where, overrides_of(given.settings, {}), dry_run=given.dry_run)
    backbone = backbone and canonical_backbone(backbone)
    lines = f"{given.dataset} {backbone}" if backbone else given.dataset
    if into is not None:
        _with_tables(into, lines, "")
        require_writable(into, "--into")
    known = asked.planner.definition
    evaluations = _evaluations(given.data, given.dataset, known, backbone)
    compared: dict[str, Any] = {}
    if compare is not None:
        both = [_called(given.data, each, evaluations, known) for each in compare]
        shared = set.intersection(*({_test_set(each) for each in one.values()} for one in both))
        chosen = next((split for split in ("test", "val", "train") if split in {each for _, each in shared}), None)
        if chosen is None:
            raise UsageError(f"--compare: {compare[0]} and {compare[1]} share no test set; evaluate both on one split")
        shared = {each for each in shared if each[1] == chosen}
        first, second = ({folder: each for folder, each in one.items() if _test_set(each) in shared} for one in both)
        if first.keys() & second.keys():
            raise UsageError(f"--compare: {compare[0]} and {compare[1]} are the same training; name another model")
        evaluations, compared = [*{**first, **second}.values()], {"compare": sorted(first)}
    trained = {each.name for manifest in evaluations for each in manifest.inputs.values() if each.stage == "train"}
    names = sorted(each for each in known.named_trainings().items() if each[0] in trained)
    need = Need("report", default_conf(known, "report"), {"names": names, **compared})
    steps = [pinned_step(asked.root, manifest) for manifest in evaluations]
    asked.steps = [asked.planner.plan(need, inputs={step.location.name: step for step in steps})]
    asked.planner.refuse_unused_overrides()
    folder = asked.run()
    if asked.dry_run:
        return
    load_stage("report").show(folder, asked.reporter)
    if into is not None:
        write_text(into, _with_tables(into, lines, checked(folder / MARKDOWN).read_text(encoding="utf-8")))
        asked.reporter.say(f"table: {into}")


def _evaluations(root: Path, dataset: str, definition: DatasetDefinition, backbone: str | None) -> list[Manifest]:
    """Return every finished evaluation of a dataset, or those of one backbone.

    Of embeddings with a name only those of the files that the name stands for now.
    """
    folders = folders_in(root / check_name(dataset) / "evaluate")
    found = [check_artifact(folder) for folder in folders if is_finished(folder)]
    found = [each for each in found if _is_as_named(each, definition)]
    chosen = [each for each in found if backbone in (None, each.settings["backbone"])]
    if not chosen:
        known = ", ".join(sorted({each.settings["backbone"] for each in found}))
        of = f"of {backbone}, only of {known}" if known else "yet"
        option = f"--backbone {backbone} " if known else ""
        raise MissingInputError(
            f"dataset {dataset!r} has no evaluation {of}; run `itrpipe evaluate {option}--dataset {dataset}`"
        )
    return chosen


def _test_set(evaluation: Manifest) -> tuple[str, str]:
    """Return the prepared dataset and the split that were evaluated."""
    return evaluation.inputs["prepare"].name, evaluation.settings["split"]


def _is_as_named(evaluation: Manifest, definition: DatasetDefinition) -> bool:
    """Return whether embeddings were evaluated that their name stands for now; before, it was that of other files."""
    backbone, split = evaluation.settings["backbone"], evaluation.settings["split"]
    known = definition.embeddings.get(backbone, {}).get(split)
    return known is None or backbone == GIVEN or known.artifact == evaluation.inputs["train"].name


def _called(root: Path, name: str, evaluations: list[Manifest], definition: DatasetDefinition) -> dict[str, Manifest]:
    """Evaluations of a model by folder: by its own name, by METHOD.BACKBONE of any seed, or by that of a folder.

    Embeddings from files have names of their own, with `given-` before them or without. The mean of several models is
    named by its label alone, and what was re-ranked only where it was not evaluated without.
    """
    found = {}
    for each in evaluations:
        folder = pinned_step(root, each).location.name
        names = {each.label, folder}
        if not each.settings.get("ensemble_with"):
            names |= definition.names_of(each.inputs["train"].name)
            backbone = each.settings["backbone"]
            names |= {backbone, backbone.removeprefix(f"{GIVEN}-")} if is_given(backbone) else set()
            names |= {own.partition("@")[0] for own in names}  # all seeds of a training elsewhere
        if name in names or re.fullmatch(rf"{re.escape(name)}\.s\d+", each.label):
            found[folder] = each
    found = {folder: each for folder, each in found.items() if not each.settings.get("rerank")} or found
    if not found:
        option = f"`itrpipe evaluate --model {name}`" if name in definition.models else "`itrpipe evaluate` with it"
        names = definition.named_trainings()
        known = ", ".join(sorted({names.get(each.inputs["train"].name, each.label) for each in evaluations}))
        raise MissingInputError(f"--compare: {name!r} is not evaluated, only {known}; run {option}")
    return found


def _with_tables(path: Path, asked: str, tables: str) -> str:
    """A document with these tables in the place of those that it has of a dataset, or of one backbone on it."""
    from itrpipe.report.page import BEGIN, END, inserted

    if not path.is_file():
        raise MissingInputError(f"--into {path} is not there; name a Markdown file")
    try:
        found = inserted(path.read_text(encoding="utf-8"), asked, tables)
    except UnicodeDecodeError as error:
        raise DataError(f"--into {path} is not UTF-8 at byte {error.start}; name a Markdown file") from None
    if found is None:
        lines = f"{BEGIN.format(asked=asked)} and {END}"
        raise DataError(f"--into {path} does not say where the table belongs; write two lines into it: {lines}")
    return found
