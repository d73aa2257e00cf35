"""What a plan will cost, from what its steps cost before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itrpipe.artifacts import PARTIAL, Manifest, list_artifacts, read_manifest
from itrpipe.errors import DataError
from itrpipe.pipeline import RESUMED
from itrpipe.planning import Step
from itrpipe.progress import Reporter

ALIKE = ("method", "backbone", "features", "split")
"""Settings in which an earlier artifact must agree, where both have them: others hardly change the time of a stage."""
SEED = "seed"
DATA = "prepare"
"""Input that an earlier artifact must have had too, where both read it: other data take another time."""


@dataclass(frozen=True)
class Cost:
    """What one step is expected to take.

    Attributes:
        step: that is to run.
        seconds: of an earlier artifact; None where there is none.
        earlier: its name.
        exact: whether it differs in nothing but its seed.
    """

    step: Step
    seconds: float | None
    earlier: str
    exact: bool


def estimate(root: Path, dataset: str, steps: Iterable[Step]) -> list[Cost]:
    """Costs of steps from earlier artifacts of the same stage and configuration, of any seed.

    Only those made of the same prepared images and captions count, and of several first one that differs in nothing but
    its seed, then the newest. What was resumed does not count: its manifest knows the time of the last run only.

    Args:
        root: the data folder.
        dataset: its name.
        steps: that are to run.
    """
    manifests: dict[str, list[tuple[str, Manifest]]] = {}
    for folder in list_artifacts(root, dataset):
        manifest = None if folder.name.endswith(PARTIAL) else _readable(folder)
        if manifest and RESUMED not in manifest.messages:
            manifests.setdefault(manifest.stage, []).append((folder.name, manifest))
    return [_cost(step, manifests.get(step.need.stage, [])) for step in steps]


def print_costs(costs: Iterable[Cost], reporter: Reporter) -> None:
    """One line for each step, and the sum of what is known."""
    from itrpipe.reporting.tables import duration

    costs = list(costs)
    if not costs:
        return
    reporter.say("estimated cost", style="bold")
    for cost in costs:
        location = cost.step.location
        time = "unknown" if cost.seconds is None else f"{cost.seconds:.0f} s"
        settings = "" if cost.exact else ", with other settings"
        note = f"as {location.stage}/{cost.earlier} took{settings}" if cost.seconds is not None else ""
        reporter.say(f"    {location.stage + '/' + location.name:<44} {time:>9}  {note}".rstrip())
    known = [cost.seconds for cost in costs if cost.seconds is not None]
    unknown = len(costs) - len(known)
    parts = [duration(sum(known))] if known else []
    parts += [f"{unknown} step{'s' if unknown > 1 else ''} of unknown cost"] if unknown else []
    reporter.say(f"    sum: {' and '.join(parts)}")


def _cost(step: Step, manifests: Iterable[tuple[str, Manifest]]) -> Cost:
    settings = step.settings.model_dump(mode="json")
    alike = [
        (name, each)
        for name, each in manifests
        if each.conf == step.need.conf and _agree(each.settings, settings) and _of_same_data(each, step)
    ]
    if not alike:
        return Cost(step, None, "", exact=False)
    own = _but_seed(settings)
    name, manifest = max(alike, key=lambda found: (_but_seed(found[1].settings) == own, found[1].finished))
    return Cost(step, manifest.timings["total"], name, exact=_but_seed(manifest.settings) == own)


def _agree(earlier: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    return all(earlier[name] == planned[name] for name in ALIKE if name in earlier and name in planned)


def _of_same_data(earlier: Manifest, step: Step) -> bool:
    if DATA not in earlier.inputs or DATA not in step.inputs:
        return True
    return earlier.inputs[DATA].fingerprint == step.inputs[DATA].location.fingerprint


def _but_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != SEED}


def _readable(folder: Path) -> Manifest | None:
    """The manifest of a finished artifact; a damaged one, which `itrpipe status` tells, says nothing about costs."""
    try:
        return read_manifest(folder)
    except DataError:
        return None
