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
from itrpipe.datasets.definition import ModelDefinition, check_name
from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.second_round import ENDS, Advice, recommend
from itrpipe.plan.planning import Override, Planner
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import Manifest, folders_in, is_finished, read_manifest
from itrpipe.training.settings import Model, TrainSettings, is_start_of, no_first_training

_DIRECTIONS = {"texts_for_images": "captions for images", "images_for_texts": "images for captions"}
_ROWS = {
    "rank": ("candidates ahead of it", "{:,.0f}"),
    "score": ("its score, of the pair {positive:.3f}", "{:.3f}"),
    "beaten": ("beats the pair, %", "{:.1f}"),
    "active": ("within the margin of {margin:g}, %", "{:.1f}"),
    "false": ("correct matches, %", "{:.1f}"),
    "estimated_false": ("correct matches by FNE's estimate, %", "{:.1f}"),
    "gradient": ("negatives in the softmax, %", "{:.1f}"),
    "mined_gradient": ("a mined one among them, %", "{:.1f}"),
}
_KEY = (
    "Columns: the hardest negative of a batch of so many pairs, that of the whole training set, and the mean of the "
    "ten hardest. Candidates ahead of it: how many of all score higher. Beats the pair: scores above it, so that "
    "training has something to learn. Within the margin: scores above the pair less the margin. In the softmax: "
    "the share of its mass at temperature {temperature:.2g} that negatives hold, and how much of theirs the hardest of "
    "the dataset would hold beside them."
)
"""What the rows and columns are, for who reads them the first time."""
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
    as_json: bool = False,
) -> None:
    """Prints how hard the negatives of the first training were and others are, and what to do next; trains it first.

    Args:
        root: the data folder.
        dataset: dataset name.
        method: configuration of `train`, of a first training.
        overrides: values given by the user.
        no_deps: fail when the model is not trained.
        dry_run: print the plan and what it will cost, and advise nothing.
        as_json: print one JSON object to standard output, and everything else to standard error.

    Raises:
        UsageError: the model has no embeddings, or has learned from more than the negatives of its batches.
        MissingInputError: the dataset was removed.
    """
    reporter = Reporter(SafeConsole(stderr=as_json))
    planner = Planner(root, check_name(dataset), overrides, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", method))
    planner.refuse_unused_overrides()
    if reason := no_first_training(train_settings(step).model_dump()):
        raise UsageError(f"{step.location.label}: {reason}{_instead(planner, train_settings(step))}")
    if not make_missing(
        f"advise on {step.location.label}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run
    ):
        return
    from itrpipe.analysis.second_round import diagnose

    trained = trained_run(step)
    found = diagnose(trained.folder)
    named = planner.definition.named_trainings().get(trained.folder.name, "")
    usual = planner.definition.models[named].seed if named else 0
    advice = recommend(found, named, _start(root, trained.manifest), usual)
    seconds = trained.manifest.timings.get("processor")
    if as_json:
        Reporter().say_json({"advice": asdict(advice), "processor_seconds": seconds, **found})
        return
    reporter.say(f"{dataset}: is a second training worth it after {trained.label}?", style="bold")
    for line in lines(found, seconds) if advice.action != "collapsed" else ():
        reporter.say(line)
    more = not named and any(item.key not in _NAMING for item in overrides)
    after = _after(planner, named, advice, train_settings(step).seed)
    _say(advice, reporter, data_option(root), ", and the other settings of this first training" if more else "", after)


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


def lines(found: Mapping[str, Any], seconds: float | None) -> Iterator[str]:
    """The tables of what was found, a line for each row.

    Args:
        found: what `itrpipe.analysis.second_round.diagnose` returned.
        seconds: of processors that the first training took; None where that was not recorded.
    """
    from itrpipe.evaluation.tables import duration

    model, fit, validation = (found[name] for name in ("model", "fit", "validation"))
    cost = f", {duration(seconds)} of processor time" if seconds is not None else ""
    drawn = min(side.get("anchors", model["captions"]) for side in found["directions"].values())
    sample = f", of which {drawn:,} pairs are looked at" if drawn < model["captions"] else ""
    yield (
        f"  {model['images']:,} images, {model['captions']:,} captions{sample}; batches of {model['batch_size']:,} "
        f"pairs, {model['schedule']['epochs']} epochs{cost}"
    )
    for name, title in _DIRECTIONS.items():
        yield ""
        yield from _ladder(found["directions"][name], title, model)
    yield ""
    yield "  * the batch of the first training; the others are computed from its embeddings"
    yield f"  {_KEY.format(temperature=model['temperature'])}"
    gained = validation["gained"]
    rise = f"; {_change(gained)} over the last third of the epochs" if gained is not None else ""
    fell = f"; {validation['fell']:.1f} lower at the end" if validation.get("fell") else ""
    yield f"  validation RSum           {validation['best']:.1f} after epoch {validation['best_epoch']:g}{rise}{fell}"
    more = f"{abs(fit['gap']):.1f} {'more' if fit['gap'] >= 0 else 'less'} than on as many of validation"
    yield f"  RSum on training images   {fit['train']:.1f} on {fit['images']:,} of them, {more}"


def _change(gained: float) -> str:
    """How a measure changed, to one decimal."""
    if round(abs(gained), 1) == 0:
        return "unchanged"
    return f"{abs(gained):.1f} {'gained' if gained > 0 else 'lost'}"


def _after(planner: Planner, named: str, advice: Advice, seed: int) -> list[str]:
    """What to type where the training that is advised was done already under the name that is proposed; else nothing.

    A model that negatives were mined with is compared with the first training; any other is the one to ask about.
    """
    other, models = f"{named}-{ENDS[advice.action]}", planner.definition.models
    if not named or other not in models or not _trained(models[other], seed):
        return []
    if advice.action != "mine":
        return [shlex.join(["itrpipe", "advise", "--model", other, *seed_option(seed, models[other])])]
    evaluations = _finished(planner.root, planner.dataset, "evaluate").values()
    read = {each.name for evaluation in evaluations for each in evaluation.inputs.values()}
    unread = [name for name in (named, other) if _trained(models[name], seed) not in read]
    compared = ["itrpipe", "report", "--dataset", planner.dataset, "--compare", named, other]
    evaluating = (["itrpipe", "evaluate", "--model", name, *seed_option(seed, models[name])] for name in unread)
    return [shlex.join(each) for each in (*evaluating, compared)]


def _trained(model: ModelDefinition, seed: int) -> str:
    """Artifact of a model with this seed; empty where it is not trained."""
    return model.trained.get(Model.defined_by(model, seed).label, "")


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


def _ladder(side: Mapping[str, Any], title: str, model: Mapping[str, Any]) -> Iterator[str]:
    """Figures of batches of several sizes, of the hardest candidate and of the top ones, a column each."""
    own = model["batch_size"]
    columns = {f"batch {each['size']:,}{'*' if each['size'] == own else ''}": each for each in side["batches"]}
    columns |= {"dataset": side["hardest"], f"its top {side['top']['size']}": side["top"]}
    rows = [(f"hardest of {side['candidates']:,} {title}", list(columns))]
    for name, (heading, form) in _ROWS.items():
        values = [each.get(name) for each in columns.values()]
        if any(value is not None for value in values):
            rows.append(
                (
                    heading.format(positive=side["positive"], margin=model["margin"]),
                    [form.format(value) if value is not None else "–" for value in values],
                )
            )
    widths = [max(len(cells[number]) for _, cells in rows) for number in range(len(columns))]
    first = max(len(heading) for heading, _ in rows)
    for heading, cells in rows:
        numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"  {heading:<{first}}{numbers}"


def _say(advice: Advice, reporter: Reporter, data: str, more: str, after: list[str]) -> None:
    reporter.say("")
    for number, sentence in enumerate(advice.sentences):
        reporter.say(f"  {sentence}", style=None if number else "bold green")
    reporter.say(f"  {'done already' if after else advice.leads}: {advice.command}{data}{more}")
    for number, command in enumerate(after):
        reporter.say(f"  {'then' if number else 'next'}: {command}{data}")
    if advice.control:
        reporter.say(f"  to compare with: {advice.control}{data}{more}")
    if advice.evidence:
        reporter.say(f"  {advice.evidence}", style="yellow")
