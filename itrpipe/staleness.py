"""What a plan finds on disk: which artifacts are up to date, missing or stale, and why."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from itrpipe import artifacts
from itrpipe.artifacts import Manifest
from itrpipe.config import Settings, leaves
from itrpipe.errors import DataError
from itrpipe.stages.base import load_stage

if TYPE_CHECKING:
    from itrpipe.planning import Step

State = Literal["up to date", "missing", "interrupted", "stale", "damaged"]


def fingerprinted(module: ModuleType, settings: Settings) -> dict[str, Any]:
    """The settings of a step as its fingerprint sees them."""
    own = getattr(module, "fingerprinted", None)
    return own(settings) if own else settings.model_dump(mode="json")


def state_of(step: Step) -> tuple[State, str]:
    """State of a planned artifact on disk, with the reason a reader wants to know."""
    location = step.location
    if location.folder.exists():
        try:
            manifest = artifacts.check_artifact(location.folder)
        except DataError as error:
            return "damaged", str(error)
        if manifest.fingerprint != location.fingerprint:
            return "damaged", f"{location.folder} holds another artifact; remove it and run the same command again"
        return "up to date", ""
    if location.partial.exists():
        return "interrupted", "goes on where it stopped"
    siblings = [
        manifest
        for folder in location.folder.parent.glob(f"{location.label}-*")
        if (manifest := _readable(folder)) and artifacts.same_run(manifest, location.label, step.settings.model_dump())
    ]
    if not siblings:
        return "missing", ""
    return "stale", _difference(max(siblings, key=lambda manifest: manifest.finished), step)


def _change(key: str, before: Any, after: Any) -> str:
    """A changed value with the new one; of lists of tables only that they changed."""
    shown = not (isinstance(after, list) and any(isinstance(each, dict) for each in after))
    return f"{key} {before} → {after}" if shown else f"{key} changed"


def _readable(folder: Path) -> Manifest | None:
    """The manifest of a finished sibling; damaged and partial ones say nothing about staleness."""
    if folder.name.endswith(artifacts.PARTIAL):
        return None
    try:
        return artifacts.read_manifest(folder)
    except DataError:
        return None


def _difference(old: Manifest, step: Step) -> str:
    """Says what differs between an older artifact and the planned one."""
    before = dict(leaves(old.settings))
    after = dict(leaves(step.settings.model_dump(mode="json")))
    # A setting that is newer than the artifact and does not count here says nothing about it.
    counted = dict(leaves(fingerprinted(load_stage(step.need.stage), step.settings)))
    compared = [key for key in after if key in before or key in counted]
    changes = [_change(key, before.get(key), after[key]) for key in compared if before.get(key) != after[key]]
    changes += [f"{key} dropped" for key in before if key not in after]
    inputs = {name: upstream.location.fingerprint for name, upstream in step.inputs.items()}
    changes += [
        f"{name} changed"
        for name, value in inputs.items()
        if name not in old.inputs or old.inputs[name].fingerprint != value
    ]
    changes += [f"source {name} changed" for name, value in step.sources.items() if old.sources.get(name) != value]
    return ", ".join(changes) or "made by another version of the stage"
