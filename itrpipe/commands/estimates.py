"""What a plan will cost, from what its steps cost before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from itrpipe.artifacts.artifact import Manifest, check_artifact, is_finished, list_artifacts, read_manifest
from itrpipe.errors import DataError, UnavailableError
from itrpipe.plan.pipeline import RESUMED
from itrpipe.plan.steps import Step
from itrpipe.progress import Reporter
from itrpipe.stages.base import Input, Job, load_stage

ALIKE = ("method", "backbone", "features", "split")
"""Settings in which an earlier artifact must agree, where both have them: others hardly change the time of a stage."""
SEED, EPOCHS, MAX_UPDATES = "seed", "epochs", "max_updates"
_OTHER, _OTHER_EPOCHS, _SAME = range(3)
DATA = ("prepare", "extract", "parse")
"""Inputs that an earlier artifact must have had too, where both read them: other data take another time."""
MOST_MEASURED = 8
"""Steps of a plan that are measured, so that also a plan of hundreds is there in a minute or two."""


@dataclass(frozen=True)
class Cost:
    """What one step is expected to take.

    Attributes:
        step: that is to run.
        seconds: of an earlier artifact, of a training in proportion to its epochs; else measured; None where there is
            neither.
        earlier: its name.
        unlike: in what it differs, seed aside; empty where in nothing.
        scaled: what its time was scaled to; empty where it was not.
        measured: what the stage itself measured, or why it did not; empty where there is nothing to tell.
        warnings: of the stage, before it runs.
    """

    step: Step
    seconds: float | None = None
    earlier: str = ""
    unlike: str = ""
    scaled: str = ""
    measured: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What `seconds` is, for people."""
        unlike, scaled = (f" with {self.unlike}" if self.unlike else ""), (f", {self.scaled}" if self.scaled else "")
        return f"as {self.step.location.stage}/{self.earlier} took{unlike}{scaled}" if self.earlier else ""


def estimate(root: Path, dataset: str, steps: Iterable[Step]) -> list[Cost]:
    """Costs of steps from earlier artifacts of the same stage and configuration, of any seed.

    Where there is none, the stage may measure the cost on this machine, see `itrpipe.stages.base`; likewise where the
    earlier ones differ in settings that decide how long it takes.

    A training whose configuration never ran takes those of another one with the same method and backbone. Its cost is
    that of all its epochs, also where those before were ended early.

    Only those made of the same prepared images and captions count, and of several first one that differs in nothing but
    its seed, then in its epochs, then the newest. What was resumed does not count: its manifest knows the time of the
    last run only.

    Args:
        root: the data folder.
        dataset: its name.
        steps: that are to run.
    """
    manifests: dict[str, list[tuple[str, Manifest]]] = {}
    for folder in list_artifacts(root, dataset):
        manifest = _readable(folder) if is_finished(folder) else None
        if manifest and RESUMED not in manifest.messages:
            manifests.setdefault(manifest.stage, []).append((folder.name, manifest))
    costs = [_own_cost(step) or _cost(step, manifests.get(step.need.stage, [])) for step in steps]
    return _with_measured(costs)


def _with_measured(costs: Iterable[Cost]) -> list[Cost]:
    """Measures what is unknown, once of steps that differ in nothing that decides how long they take.

    Of others the stage is only asked what it would warn of.
    """
    known: dict[str, tuple[float | None, str, tuple[str, ...]]] = {}

    def measured(cost: Cost) -> Cost:
        stage = load_stage(cost.step.need.stage)
        if (measure := getattr(stage, "measured", None)) is None:
            return cost
        if (key := _key(cost.step)) not in known:
            full = sum(seconds is not None for seconds, *_ in known.values()) >= MOST_MEASURED
            seconds, told, job = cost.seconds, "", _planned_job(cost.step)
            if full:
                told = f"not measured: {MOST_MEASURED} others were"
            elif seconds is None:
                seconds, told = measure(job)
            else:
                stage.foreseen(job)
            known[key] = seconds, told, tuple(job.messages)
        seconds, told, warnings = known[key]
        return replace(cost, warnings=warnings, **({} if cost.earlier else {"seconds": seconds, "measured": told}))

    return [measured(cost) for cost in costs]


def _key(step: Step) -> str:
    """The same of steps that take equally long."""
    read = {name: step.inputs[name].location.fingerprint for name in DATA if name in step.inputs}
    timed = _without(step.settings.model_dump(mode="json"), *_untimed(step))
    missing = sorted(name for name, each in step.inputs.items() if each.state != "up to date")
    return json.dumps([step.need.stage, timed, read, missing], sort_keys=True)


def print_costs(costs: Iterable[Cost], reporter: Reporter) -> None:
    """One line for each step, the sum of what is known, and what the steps would warn of."""
    costs = list(costs)
    _print_seconds(costs, reporter)
    for warning in dict.fromkeys(warning for cost in costs for warning in cost.warnings):
        reporter.say(f"  warning: {warning}", style="yellow")


def _print_seconds(costs: Sequence[Cost], reporter: Reporter) -> None:
    from itrpipe.reporting.tables import duration

    if not costs:
        return
    known = [cost.seconds for cost in costs if cost.seconds is not None]
    if not known:
        reason = min((cost.measured for cost in costs if cost.measured), key=len, default="")
        steps = "" if len(costs) == 1 else f" of {len(costs):,} steps"
        unknown = f"estimated cost{steps}: unknown, nothing of this kind was made of these data before"
        unknown += f"; {reason}" if reason else ""
        reporter.say(unknown, style="bold")
        return
    reporter.say("estimated cost", style="bold")
    width = max(len(f"{cost.step.location.stage}/{cost.step.location.name}") for cost in costs)
    for cost in costs:
        location = cost.step.location
        time = "unknown" if cost.seconds is None else f"{cost.seconds:.0f} s"
        note = cost.note or cost.measured
        reporter.say(f"    {location.stage + '/' + location.name:<{width}} {time:>9}  {note}".rstrip())
    unknown = len(costs) - len(known)
    most = any(getattr(cost.step.settings, "patience", 0) for cost in costs)  # which may end a training early
    parts = [f"{'at most ' if most else ''}{duration(sum(known))}"]
    parts += [f"{unknown} step{'s' if unknown > 1 else ''} of unknown cost"] if unknown else []
    reporter.say(f"    sum: {' and '.join(parts)}")


def _cost(step: Step, manifests: Iterable[tuple[str, Manifest]]) -> Cost:
    settings = step.settings.model_dump(mode="json")
    fitting = [found for found in manifests if _agree(found[1].settings, settings) and _of_same_data(found[1], step)]
    alike = [found for found in fitting if found[1].conf == step.need.conf]
    if not alike and EPOCHS in settings:  # the ablations of a method cost about what it costs itself
        alike = fitting
    if not alike:
        return Cost(step)
    untimed = _untimed(step)
    name, manifest = max(alike, key=lambda found: (_likeness(found[1].settings, settings, untimed), found[1].finished))
    seconds, likeness = manifest.timings["total"], _likeness(manifest.settings, settings, untimed)
    if likeness == _OTHER and hasattr(load_stage(step.need.stage), "measured"):
        return Cost(step)
    unlike, scaled = ["other settings"] if likeness == _OTHER else [], ""
    if _epochs_decide(manifest.settings, settings):
        # Fewer than its settings say where validation was flat; none where nothing was trained.
        trained = manifest.metrics.get(EPOCHS) or manifest.settings[EPOCHS]
        if trained != settings[EPOCHS]:
            seconds *= settings[EPOCHS] / trained
            unlike.insert(0, f"{trained:g} epoch{'s' if trained > 1 else ''}")
            scaled = f"scaled to {settings[EPOCHS]}"
    return Cost(step, seconds, name, " and ".join(unlike), scaled)


def _own_cost(step: Step) -> Cost | None:
    """What the stage itself says of a step, where it knows better than earlier artifacts."""
    own = getattr(load_stage(step.need.stage), "cost", None)
    if own is None:
        return None
    seconds, what_for = own(_planned_job(step))
    return Cost(step, seconds, measured=what_for)


def _planned_job(step: Step) -> Job:
    """A step as its stage sees it before it runs."""
    finished = {
        name: folder for name, each in step.inputs.items() if each.state == "up to date" and (folder := each.finished)
    }
    inputs = {name: Input(folder, check_artifact(folder)) for name, folder in finished.items()}
    awaited = {name: each.settings for name, each in step.inputs.items() if name not in finished}
    location = step.location
    names = location.dataset, step.need.conf
    planned = (step.settings, step.execution, inputs, step.definition, location.partial, Reporter(), step.sources)
    return Job(*names, *planned, awaited=awaited)


def _untimed(step: Step) -> frozenset[str]:
    """Settings of a step that do not decide how long it takes."""
    return getattr(load_stage(step.need.stage), "UNTIMED", frozenset((SEED,)))


def _likeness(earlier: Mapping[str, Any], planned: Mapping[str, Any], untimed: Iterable[str]) -> int:
    """How much two artifacts have in common but for what does not decide how long they take; more is better."""
    earlier, planned = _without(earlier, *untimed), _without(planned, *untimed)
    if earlier == planned:
        return _SAME
    scaled = _epochs_decide(earlier, planned) and _without(earlier, EPOCHS) == _without(planned, EPOCHS)
    return _OTHER_EPOCHS if scaled else _OTHER


def _epochs_decide(*trainings: Mapping[str, Any]) -> bool:
    """Whether these are trainings that end with their epochs and not with a number of updates."""
    return all(EPOCHS in each and not each.get(MAX_UPDATES) for each in trainings)


def _agree(earlier: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    return all(earlier[name] == planned[name] for name in ALIKE if name in earlier and name in planned)


def _of_same_data(earlier: Manifest, step: Step) -> bool:
    both = [name for name in DATA if name in earlier.inputs and name in step.inputs]
    return all(earlier.inputs[name].fingerprint == step.inputs[name].location.fingerprint for name in both)


def _without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def _readable(folder: Path) -> Manifest | None:
    """The manifest of a finished artifact; a damaged one, which `itrpipe status` tells, says nothing about costs."""
    try:
        return read_manifest(folder)
    except (DataError, UnavailableError):
        return None
