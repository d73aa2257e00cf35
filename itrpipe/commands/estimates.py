"""What a plan will cost, from what its steps cost before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
DATA = "prepare"
"""Input that an earlier artifact must have had too, where both read it: other data take another time."""


@dataclass(frozen=True)
class Cost:
    """What one step is expected to take.

    Attributes:
        step: that is to run.
        seconds: of an earlier artifact, of a training in proportion to its epochs; None where there is none.
        earlier: its name.
        unlike: in what it differs, seed aside; empty where in nothing.
        scaled: what its time was scaled to; empty where it was not.
        measured: what the stage itself measured of a step of unknown cost; empty where nothing.
    """

    step: Step
    seconds: float | None = None
    earlier: str = ""
    unlike: str = ""
    scaled: str = ""
    measured: str = ""

    @property
    def note(self) -> str:
        """What `seconds` is, for people."""
        unlike, scaled = (f" with {self.unlike}" if self.unlike else ""), (f", {self.scaled}" if self.scaled else "")
        return f"as {self.step.location.stage}/{self.earlier} took{unlike}{scaled}" if self.earlier else ""


def estimate(root: Path, dataset: str, steps: Iterable[Step]) -> list[Cost]:
    """Costs of steps from earlier artifacts of the same stage and configuration, of any seed.

    Where there is none, the stage may measure a part of the cost on this machine, see `itrpipe.stages.base`.

    A training whose configuration never ran takes those of another one with the same method and backbone.

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
    return [cost if cost.seconds is not None else replace(cost, measured=_measured(cost.step)) for cost in costs]


def print_costs(costs: Iterable[Cost], reporter: Reporter) -> None:
    """One line for each step, and the sum of what is known."""
    from itrpipe.reporting.tables import duration

    costs = list(costs)
    if not costs:
        return
    known = [cost.seconds for cost in costs if cost.seconds is not None]
    if not known and not any(cost.measured for cost in costs):
        reporter.say("estimated cost: unknown, nothing of this kind was made of these data before", style="bold")
        return
    reporter.say("estimated cost", style="bold")
    width = max(len(f"{cost.step.location.stage}/{cost.step.location.name}") for cost in costs)
    for cost in costs:
        location = cost.step.location
        time = "unknown" if cost.seconds is None else f"{cost.seconds:.0f} s"
        note = cost.note or cost.measured
        reporter.say(f"    {location.stage + '/' + location.name:<{width}} {time:>9}  {note}".rstrip())
    if not known:
        return
    unknown = len(costs) - len(known)
    parts = [duration(sum(known))]
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
    name, manifest = max(alike, key=lambda found: (_likeness(found[1].settings, settings), found[1].finished))
    seconds, likeness = manifest.timings["total"], _likeness(manifest.settings, settings)
    unlike, scaled = ["other settings"] if likeness == _OTHER else [], ""
    if likeness != _SAME and _epochs_decide(manifest.settings, settings):
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


def _measured(step: Step) -> str:
    measured = getattr(load_stage(step.need.stage), "measured", None)
    return "" if measured is None else measured(_planned_job(step))


def _planned_job(step: Step) -> Job:
    """A step as its stage sees it before it runs."""
    finished = {
        name: folder for name, each in step.inputs.items() if each.state == "up to date" and (folder := each.finished)
    }
    inputs = {name: Input(folder, check_artifact(folder)) for name, folder in finished.items()}
    location = step.location
    names = location.dataset, step.need.conf
    planned = (step.settings, step.execution, inputs, step.definition, location.partial, Reporter(), step.sources)
    return Job(*names, *planned)


def _likeness(earlier: Mapping[str, Any], planned: Mapping[str, Any]) -> int:
    """How much two artifacts have in common but for their seed; more is better."""
    if _without(earlier, SEED) == _without(planned, SEED):
        return _SAME
    scaled = _epochs_decide(earlier, planned) and _without(earlier, SEED, EPOCHS) == _without(planned, SEED, EPOCHS)
    return _OTHER_EPOCHS if scaled else _OTHER


def _epochs_decide(*trainings: Mapping[str, Any]) -> bool:
    """Whether these are trainings that end with their epochs and not with a number of updates."""
    return all(EPOCHS in each and not each.get(MAX_UPDATES) for each in trainings)


def _agree(earlier: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    return all(earlier[name] == planned[name] for name in ALIKE if name in earlier and name in planned)


def _of_same_data(earlier: Manifest, step: Step) -> bool:
    if DATA not in earlier.inputs or DATA not in step.inputs:
        return True
    return earlier.inputs[DATA].fingerprint == step.inputs[DATA].location.fingerprint


def _without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def _readable(folder: Path) -> Manifest | None:
    """The manifest of a finished artifact; a damaged one, which `itrpipe status` tells, says nothing about costs."""
    try:
        return read_manifest(folder)
    except (DataError, UnavailableError):
        return None
