"""What a plan will cost, from what its steps cost before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.errors import DataError, UnavailableError
from itrpipe.evaluation.tables import duration
from itrpipe.pipeline.run import RESUMED
from itrpipe.pipeline.steps import Step
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.stages.base import load_stage
from itrpipe.storage.artifact import Manifest, folders_in, is_finished, read_manifest

EPOCHS, MAX_UPDATES = "epochs", "max_updates"
DATA = ("prepare", "extract", "parse")
"""Inputs that an earlier artifact must have had too, where both read them: other data take another time."""


class Cost(NamedTuple):
    """What one step is expected to take.

    Attributes:
        seconds: that an earlier artifact took, of a training in proportion to its epochs; None where there is none.
        note: what `seconds` is, for people.
    """

    seconds: float | None = None
    note: str = ""


def cost_of(step: Step, earlier: Mapping[str, Manifest]) -> Cost:
    """Cost of a step from the newest earlier artifact that was made of the same data with the same settings.

    Args:
        step: that is to run.
        earlier: artifacts of its stage by name, see `earlier_artifacts`.

    Settings that do not decide how long a stage takes, such as the seed, may differ, see `itrpipe.stages.base`, and so
    may the epochs of a training, whose cost is that of all its epochs.
    """
    settings = step.settings.model_dump(mode="json")
    untimed = load_stage(step.need.stage).untimed
    conf = None if EPOCHS in settings else step.need.conf  # of a training the method is a setting
    fitting = {name: each for name, each in earlier.items() if conf in (None, each.conf) and _of_same_data(each, step)}
    by_epochs = EPOCHS in settings and not settings.get(MAX_UPDATES)
    for unread in (untimed, untimed | {EPOCHS}) if by_epochs else (untimed,):
        alike = [
            name for name, each in fitting.items() if _without(each.settings, unread) == _without(settings, unread)
        ]
        if alike:
            newest = max(alike, key=lambda name: fitting[name].finished)
            return _scaled(newest, fitting[newest], settings[EPOCHS] if by_epochs else None)
    return Cost()


def say_costs(steps: Sequence[Step], reporter: Reporter) -> None:
    """Prints what steps will cost, a line each, and the sum of what is known."""
    earlier = {folder: earlier_artifacts(folder) for folder in {step.location.folder.parent for step in steps}}
    costs = {
        f"{step.location.stage}/{step.location.name}": cost_of(step, earlier[step.location.folder.parent])
        for step in steps
    }
    known = [cost.seconds for cost in costs.values() if cost.seconds is not None]
    if not steps:
        return
    if not known:
        reporter.say("estimated cost: unknown, nothing of this kind was made of these data before", style="bold")
        return
    reporter.say("estimated cost", style="bold")
    width = max(map(len, costs))
    for name, cost in costs.items():
        time = "unknown" if cost.seconds is None else f"{cost.seconds:.0f} s"
        reporter.say(f"    {name:<{width}} {time:>9}  {cost.note}".rstrip())
    most = any(getattr(step.settings, "patience", 0) for step in steps)  # which may end a training early
    unknown = len(costs) - len(known)
    more = f" and {quantity(unknown, 'step')} of unknown cost" if unknown else ""
    reporter.say(f"    sum: {'at most ' if most else ''}{duration(sum(known))}{more}")


def earlier_artifacts(folder: Path) -> dict[str, Manifest]:
    """Manifests by name of the finished artifacts of a stage's folder.

    A damaged one says nothing about costs, nor does one that was resumed, which knows the time of its last run only.
    """
    found = {}
    for each in filter(is_finished, folders_in(folder)):
        with suppress(DataError, UnavailableError):
            found[each.name] = read_manifest(each)
    return {name: manifest for name, manifest in found.items() if RESUMED not in manifest.messages}


def _scaled(name: str, earlier: Manifest, epochs: int | None) -> Cost:
    """What an earlier artifact took, scaled to the epochs of a training."""
    seconds, note = earlier.timings["total"], f"as {earlier.stage}/{name} took"
    if epochs is None:
        return Cost(seconds, note)
    # Fewer than its settings say where validation was flat; none where nothing was trained.
    trained = earlier.metrics.get(EPOCHS) or earlier.settings[EPOCHS]
    if trained == epochs:
        return Cost(seconds, note)
    plural = "s" if trained != 1 else ""
    return Cost(seconds * epochs / trained, f"{note} with {trained:g} epoch{plural}, scaled to {epochs}")


def _of_same_data(earlier: Manifest, step: Step) -> bool:
    both = [name for name in DATA if name in earlier.inputs and name in step.inputs]
    return all(earlier.inputs[name].fingerprint == step.inputs[name].location.fingerprint for name in both)


def _without(settings: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}
