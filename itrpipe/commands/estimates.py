"""What a plan will cost, from what its steps cost before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, UnavailableError
from itrpipe.plan.pipeline import RESUMED
from itrpipe.plan.steps import Step
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.stages.base import load_stage
from itrpipe.storage.artifact import Manifest, folders_in, is_finished, read_manifest

EPOCHS, MAX_UPDATES = "epochs", "max_updates"
DATA = ("prepare", "extract", "parse")
"""Inputs that an earlier artifact must have had too, where both read them: other data take another time."""


@dataclass(frozen=True)
class Cost:
    """What one step is expected to take.

    Attributes:
        step: that is to run.
        seconds: that an earlier artifact took, of a training in proportion to its epochs; None where there is none.
        note: what `seconds` is, for people.
    """

    step: Step
    seconds: float | None = None
    note: str = ""


def estimate(root: Path, dataset: str, steps: Iterable[Step]) -> list[Cost]:
    """Costs of steps from the newest earlier artifacts that were made of the same data with the same settings.

    Settings that do not decide how long a stage takes, such as the seed, may differ, see `itrpipe.stages.base`, and so
    may the epochs of a training, whose cost is that of all its epochs. What was resumed does not count: its manifest
    knows the time of the last run only.

    Args:
        root: the data folder.
        dataset: its name.
        steps: that are to run.
    """
    manifests: dict[str, list[tuple[str, Manifest]]] = {}
    folders = [folder for stage in folders_in(root / dataset) for folder in folders_in(stage)]
    for folder in filter(is_finished, folders):
        manifest = _readable(folder)
        if manifest and RESUMED not in manifest.messages:
            manifests.setdefault(manifest.stage, []).append((folder.name, manifest))
    return [_cost(step, manifests.get(step.need.stage, [])) for step in steps]


def print_costs(costs: Iterable[Cost], reporter: Reporter) -> None:
    """One line for each step, and the sum of what is known."""
    from itrpipe.evaluation.tables import duration

    rows = [(f"{cost.step.location.stage}/{cost.step.location.name}", cost) for cost in costs]
    known = [cost.seconds for _, cost in rows if cost.seconds is not None]
    if not known:
        if rows:
            reporter.say("estimated cost: unknown, nothing of this kind was made of these data before", style="bold")
        return
    reporter.say("estimated cost", style="bold")
    width = max(len(name) for name, _ in rows)
    for name, cost in rows:
        time = "unknown" if cost.seconds is None else f"{cost.seconds:.0f} s"
        reporter.say(f"    {name:<{width}} {time:>9}  {cost.note}".rstrip())
    unknown = len(rows) - len(known)
    most = any(getattr(cost.step.settings, "patience", 0) for _, cost in rows)  # which may end a training early
    parts = [f"{'at most ' if most else ''}{duration(sum(known))}"]
    parts += [f"{quantity(unknown, 'step')} of unknown cost"] if unknown else []
    reporter.say(f"    sum: {' and '.join(parts)}")


def _cost(step: Step, manifests: Iterable[tuple[str, Manifest]]) -> Cost:
    settings = step.settings.model_dump(mode="json")
    untimed = load_stage(step.need.stage).untimed
    by_epochs = EPOCHS in settings and not settings.get(MAX_UPDATES)
    conf = None if EPOCHS in settings else step.need.conf  # of a training the method is a setting
    fitting = [each for each in manifests if conf in (None, each[1].conf) and _of_same_data(each[1], step)]
    for scaled in (False, True) if by_epochs else (False,):
        without = untimed | {EPOCHS} if scaled else untimed
        alike = [each for each in fitting if _without(each[1].settings, without) == _without(settings, without)]
        if alike:
            name, manifest = max(alike, key=lambda each: each[1].finished)
            return _scaled(step, name, manifest, settings[EPOCHS] if by_epochs else None)
    return Cost(step)


def _scaled(step: Step, name: str, manifest: Manifest, epochs: int | None) -> Cost:
    """What an earlier artifact took, scaled to the epochs of a training."""
    seconds, note = manifest.timings["total"], f"as {step.location.stage}/{name} took"
    if epochs is None:
        return Cost(step, seconds, note)
    # Fewer than its settings say where validation was flat; none where nothing was trained.
    trained = manifest.metrics.get(EPOCHS) or manifest.settings[EPOCHS]
    if trained == epochs:
        return Cost(step, seconds, note)
    note += f" with {trained:g} epoch{'s' if trained != 1 else ''}, scaled to {epochs}"
    return Cost(step, seconds * epochs / trained, note)


def _of_same_data(earlier: Manifest, step: Step) -> bool:
    both = [name for name in DATA if name in earlier.inputs and name in step.inputs]
    return all(earlier.inputs[name].fingerprint == step.inputs[name].location.fingerprint for name in both)


def _without(settings: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def _readable(folder: Path) -> Manifest | None:
    """The manifest of a finished artifact; a damaged one, which `itrpipe status` tells, says nothing about costs."""
    try:
        return read_manifest(folder)
    except (DataError, UnavailableError):
        return None
