"""`itrpipe advise`: whether a second training is worth it, told by the first training alone."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from itrpipe.commands.named import seed_option
from itrpipe.commands.trained import data_option, make_missing, train_settings, trained_run
from itrpipe.datasets.definition import DatasetDefinition, check_name, load_definition
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.second_round import Advice, recommend
from itrpipe.evaluation.tables import Number, Row, Table, as_lines, duration
from itrpipe.plan.planning import Override, Planner
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import Manifest, folders_in, is_finished, read_manifest
from itrpipe.training.settings import Model, TrainSettings, is_start_of, no_first_training

_DIRECTIONS = {"texts_for_images": "captions for images", "images_for_texts": "images for captions"}
_ROWS = {
    "rank": ("candidates ahead of it", 0, ""),
    "score": ("its score", 3, ""),
    "beaten": ("beats the pair", 1, " %"),
    "active": ("comes within the margin", 1, " %"),
    "false": ("is a correct match", 1, " %"),
    "estimated_false": ("the same by FNE's estimate", 1, " %"),
    "gradient": ("softmax: negatives", 1, " %"),
    "mined_gradient": ("of these, one mined", 1, " %"),
}
_NAMING = ("backbone", "seed", "features", "device", "workers", "engine", "address")
"""Options that the command of the advice names, and those that change no result."""


def advise(
    root: Path,
    dataset: str,
    method: str,
    overrides: list[Override],
    *,
    no_deps: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what to do after a first training, the command, and what tells so; trains the first training first.

    Args:
        root: the data folder.
        dataset: dataset name.
        method: configuration of `train`, of a first training.
        overrides: values given by the user.
        no_deps: fail when the model is not trained.
        dry_run: print the plan and what it will cost, and advise nothing.
        verbose: print every figure.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: the model has no embeddings, or has learned from more than the negatives of its batches.
        MissingInputError: the dataset was removed.
    """
    reporter = Reporter(SafeConsole(stderr=as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", method))
    planner.refuse_unused_overrides()
    settings = train_settings(step)
    if reason := no_first_training(settings.model_dump()):
        raise UsageError(f"{step.location.label}: {reason}{_instead(planner, settings)}")
    if not make_missing(
        f"advise on {step.location.label}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run
    ):
        return
    from itrpipe.analysis.second_round import diagnose

    trained = trained_run(step)
    found = diagnose(trained.folder)
    definition = load_definition(root, dataset)  # which knows what was just trained
    named = definition.named_trainings().get(trained.folder.name, "")
    usual = definition.models[named].seed if named else 0
    advice = recommend(found, named, _start(root, trained.manifest), usual)
    seconds = trained.manifest.timings.get("processor")
    if as_json:
        told = {name: value for name, value in asdict(advice).items() if name != "rule"}
        told["action"] = advice.rule.action
        Reporter().say_json({"advice": told, "processor_seconds": seconds, **found})
        return
    reporter.say(f"{dataset}: is a second training worth it after {trained.label}?", style="bold")
    reporter.say(advice.sentences[0], style="bold green")
    more = not named and any(item.key not in _NAMING for item in overrides)
    data, rest = data_option(root), ", and the other settings of this first training" if more else ""
    done = _after(definition, dataset, named, advice, settings.seed)
    leads = "to mine all the same" if advice.rule.action == "by-heart" else "next"
    reporter.say(f"{leads}: {done}{data}" if done else f"{leads}: {advice.command}{data}{rest}")
    for line in lines(found, advice, seconds, verbose=verbose):
        reporter.say(line)
    for sentence in filter(None, (*advice.sentences[1:], advice.evidence)):
        reporter.say(sentence)
    if advice.control:
        reporter.say(f"to compare with: {advice.control}{data}{rest}")


def lines(found: Mapping[str, Any], advice: Advice, seconds: float | None, *, verbose: bool) -> Iterator[str]:
    """What the advice was told by, a line for each row of its tables.

    Args:
        found: what `itrpipe.analysis.second_round.diagnose` returned.
        advice: about it; of a model that has collapsed negatives tell nothing.
        seconds: of processors that the first training took; None where that was not recorded.
        verbose: all of it.
    """
    model, fit, validation = (found[name] for name in ("model", "fit", "validation"))
    sides, size = found["directions"], model["batch_size"]
    if advice.rule.action != "collapsed":
        own = {name: next(each for each in side["batches"] if each["size"] == size) for name, side in sides.items()}
        hardest = {name: side["hardest"] for name, side in sides.items()}
        false = "false" if model["truth"] else "estimated_false"
        rows = [
            ("hardest of a batch", own, "beaten"),
            ("hardest of the dataset", hardest, "beaten"),
            ("correct matches" if model["truth"] else "correct matches (FNE)", hardest, false),
        ]
        shown = [Row(title, [Number.of(each[key], unit=" %") for each in own.values()]) for title, own, key in rows]
        title = "Pairs beaten by their hardest negative, and correct matches among these"
        yield from ("", *as_lines(Table(title, [*_DIRECTIONS.values()], shown, head="")), "")
    if not verbose:
        return
    yield (
        f"{model['images']:,} images, {model['captions']:,} captions; batches of {size:,} pairs, "
        f"{model['schedule']['epochs']} epochs" + (f", {duration(seconds)} of processor time" if seconds else "")
    )
    yield (
        f"validation RSum: {validation['best']:.1f} after epoch {validation['best_epoch']:g}, "
        f"{validation['fell']:.1f} lower at the end; on {fit['images']:,} training images {fit['train']:.1f}"
    )
    for name, title in _DIRECTIONS.items() if advice.rule.action != "collapsed" else ():
        side = sides[name]
        columns = {f"batch {each['size']:,}{'*' * (each['size'] == size)}": each for each in side["batches"]}
        columns |= {"dataset": side["hardest"], f"its top {side['top']['size']}": side["top"]}
        cells = {key: [each.get(key) for each in columns.values()] for key in _ROWS}
        table = [
            Row(title, [Number.of(value, digits=digits, unit=unit) for value in cells[key]])
            for key, (title, digits, unit) in _ROWS.items()
            if any(value is not None for value in cells[key])
        ]
        yield from ("", *as_lines(Table(f"Hardest of {side['candidates']:,} {title}", [*columns], table, head="")))
    yield "* the batch of the training; the others are computed from its embeddings"


def _instead(planner: Planner, settings: TrainSettings) -> str:
    """What to type to ask about a named first training of the same backbone and features; empty where there is none.

    The model that negatives were mined with comes first, and of others the one that has most settings in common.
    """
    asked, named = settings.model_dump(mode="json"), planner.definition.named_trainings()
    same = {name: asked[name] for name in ("backbone", "features")}
    mined, common = settings.loss.mined(), {}
    for name, trained in _finished(planner.root, planner.dataset, "train").items():
        own = trained.settings
        if name in named and same.items() <= own.items() and not no_first_training(own):
            model = named[name]
            alike = sum(own.get(key) == value for key, value in asked.items())
            common[model] = max(common.get(model, (False, 0)), (mined is not None and model == mined.teacher, alike))
    return f", such as `itrpipe advise --model {max(common, key=common.__getitem__)}`" if common else ""


def _after(definition: DatasetDefinition, dataset: str, named: str, advice: Advice, seed: int) -> str:
    """What to type where the training that is advised was done already under the name that is proposed; else empty.

    A model with mined negatives is compared with the first training; any other is the one to ask about.
    """
    other = f"{named}-{advice.rule.end}"
    model = definition.models.get(other) if named else None
    if model is None or not model.trained.get(Model.defined_by(model, seed).label):
        return ""
    if advice.rule.mines:
        return shlex.join(["itrpipe", "report", "--dataset", dataset, "--compare", named, other])
    return shlex.join(["itrpipe", "advise", "--model", other, *seed_option(seed, model)])


def _start(root: Path, tuned: Manifest) -> float | None:
    """RSum on validation of the pretrained model that a training began from, where that was looked at."""
    for other in _finished(root, tuned.dataset, "train").values():
        if is_start_of(other.settings, tuned.settings) and _read(other) == _read(tuned):
            return other.metrics.get("validation_rsum")
    return None


def _finished(root: Path, dataset: str, stage: str) -> dict[str, Manifest]:
    """What is finished of a stage, by its folder; a damaged one, which `itrpipe status` tells, says nothing."""
    found = {}
    for folder in filter(is_finished, folders_in(root / dataset / stage)):
        with contextlib.suppress(DataError):
            found[folder.name] = read_manifest(folder)
    return found


def _read(trained: Manifest) -> dict[str, str]:
    return {name: trained.inputs[name].fingerprint for name in ("prepare", "extract") if name in trained.inputs}
