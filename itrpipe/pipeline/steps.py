"""The state of the steps of a plan on disk, and why."""

import dataclasses
import glob
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from itrpipe.config import leaves
from itrpipe.errors import DataError, UnavailableError
from itrpipe.stages.base import State, Step, load_stage
from itrpipe.storage.artifact import (
    Location,
    Manifest,
    check_artifact,
    folders_in,
    input_folder,
    is_finished,
    read_manifest,
)
from itrpipe.storage.locks import is_locked

MOST_CHANGES = 6
"""Changes that a reason names at most."""


def pending_steps(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that have to run, in order: those asked for that are not up to date, and what these read."""
    ordered = {}

    def visit(step: Step) -> None:
        if step.state != "up to date" and step.location.folder not in ordered:
            for upstream in step.inputs.values():
                visit(upstream)
            ordered[step.location.folder] = step

    for step in steps:
        visit(step)
    return list(ordered.values())


def unique_steps(steps: Iterable[Step]) -> list[Step]:
    """Return all steps of several plans, each once, in an order in which they can run."""
    ordered = {}
    for step in steps:
        for each in step.upstream():
            ordered.setdefault(each.location.folder, each)
    return list(ordered.values())


def state_of(
    step: Step, former: str | None = None, read: Mapping[str, Collection[str]] = MappingProxyType({})
) -> tuple[State, str]:
    """Return the state of a planned artifact on disk, with the reason a reader wants to know.

    Args:
        step: that is planned.
        former: artifact that had the name of this one so far, empty for none; None where it has no name, and is
            compared with the newest artifact of the same run.
        read: input -> artifacts of its model, by name, by now and so far, where that has a name: what read another
            model is no earlier version of this step.
    """
    location = step.location
    if location.folder.exists():
        try:
            manifest = check_artifact(location.folder)
        except DataError as error:
            return "damaged", str(error)
        if manifest.fingerprint != location.fingerprint:
            return "damaged", f"{location.folder} holds another artifact; remove it and run the same command again"
        made_again = _made_again(manifest, step)
        return ("stale", made_again) if made_again else ("up to date", "")
    if location.partial.exists():
        if is_locked(location.partial):
            return "running", "in another process, which is waited for"
        return "interrupted", "goes on where it stopped"
    features = step.settings.model_dump().get("features")
    siblings = []
    for folder, manifest in _of_same_label(location):
        # Runs on different features are different runs.
        is_same_run = former in (None, folder.name) and manifest.settings.get("features") == features
        for name, known in read.items():
            if name in manifest.inputs and manifest.inputs[name].name not in known:
                is_same_run = False
        if is_same_run:
            siblings.append(manifest)
    if not siblings:
        return "missing", ""
    newest = max(siblings, key=lambda manifest: manifest.finished)
    if _overtaken(newest, step):
        return "stale", _difference(newest, step)
    has_versions = load_stage(step.need.stage).has_versions
    return ("new settings", _difference(newest, step)) if has_versions else ("missing", "")


def _of_same_label(location: Location) -> Iterator[tuple[Path, Manifest]]:
    """Yield the finished artifacts of a label, which differ in settings or in what they read."""
    for folder in location.folder.parent.glob(f"{glob.escape(location.label)}-*"):
        manifest = _readable(folder)
        if manifest and manifest.label == location.label:
            yield folder, manifest


def only_finished(step: Step, given: Iterable[str]) -> Step:
    """Return a finished step in place of one that is not, if it is the only one that differs in no given setting.

    Args:
        step: that is planned.
        given: settings that the user gave: dotted keys, or their last parts.

    Returns:
        A step of the same label with the same inputs, of several that differ in decisions alone the last one; `step`
        itself where it is up to date, or there is no such step or more than one.
    """
    if step.state == "up to date":
        return step
    planned = dict(leaves(step.settings.model_dump(mode="json")))
    fixed = {key: planned[key] for key in planned for name in given if f".{key}".endswith(f".{name}")}
    found = {}
    for _, manifest in sorted(_of_same_label(step.location), key=lambda artifact: artifact[1].finished):
        as_given = fixed.items() <= dict(leaves(manifest.settings)).items()
        shared = step.inputs.keys() & manifest.inputs.keys()
        of_inputs = all(manifest.inputs[name].fingerprint == step.inputs[name].location.fingerprint for name in shared)
        of_version = manifest.schema_version == load_stage(step.need.stage).schema_version
        if as_given and of_inputs and of_version:
            other = _finished(step, manifest)
            if other.state == "up to date":
                found[repr({**manifest.settings, "decisions": ""})] = other
    return found.popitem()[1] if len(found) == 1 else step


def latest_judged(search: Step) -> Step | None:
    """Return the last lists in which judges or people marked what a search found; None where nobody did.

    They are of the same stage as the search, which is an input of that name.
    """
    if search.state != "up to date":
        return None
    stage = search.need.stage
    finished = earlier_artifacts(search.location.folder.parent)
    digest = finished[search.location.name].digest
    judged = []
    for manifest in finished.values():
        if stage in manifest.inputs and manifest.inputs[stage].digest == digest:
            judged.append(manifest)
    if not judged:
        return None
    return _finished(search, max(judged, key=lambda manifest: manifest.finished))


def _finished(step: Step, manifest: Manifest) -> Step:
    """Return a finished artifact of the stage of a planned step in its place, with its settings."""
    location = dataclasses.replace(step.location, label=manifest.label, fingerprint=manifest.fingerprint)
    settings = type(step.settings).model_validate(manifest.settings)
    finished = dataclasses.replace(step, settings=settings, location=location)
    state, reason = state_of(finished)
    return dataclasses.replace(finished, state=state, reason=reason)


def _made_again(manifest: Manifest, step: Step) -> str:
    """Return how an input of an artifact has other bytes than it was made from; empty if none has that is there."""
    for name, upstream in step.inputs.items():
        record = manifest.inputs[name]
        now = _readable(upstream.location.folder)
        if now is None or now.digest == record.digest:
            continue
        changed = name
        for file, digest in record.files.items():
            if file not in now.outputs or now.outputs[file].sha256 != digest:
                changed = file
                break
        how = []
        for key, value in now.made.items():
            before = record.made.get(key)
            if before != value:
                how.append(f"{key} {_legible(value)} instead of {_legible(before)}")
        return f"{changed} was made again ({', '.join(how[:MOST_CHANGES]) or 'with the same settings'})"
    return ""


def _overtaken(old: Manifest, step: Step) -> bool:
    """Return whether an older artifact, or what it was made from, is of a source or a stage as it no longer is.

    Otherwise it differs from the planned one in settings alone, its own or those of a step upstream.
    """
    if old.schema_version != load_stage(step.need.stage).schema_version:
        return True
    if any(name in old.sources and old.sources[name] != value for name, value in step.sources.items()):
        return True
    for name in old.inputs.keys() & step.inputs.keys():
        upstream = step.inputs[name]
        read = _readable(input_folder(step.location.folder, old, name))
        if read and read.fingerprint != upstream.location.fingerprint and _overtaken(read, upstream):
            return True
    return False


def _legible(value: Any) -> str:
    return "none" if value is None or value in ("", [], ()) else str(value)


def _readable(folder: Path) -> Manifest | None:
    """Return the manifest of a finished artifact; damaged and unfinished ones say nothing about staleness."""
    if not is_finished(folder) or not folder.exists():
        return None
    try:
        return read_manifest(folder)
    except (DataError, UnavailableError):
        return None


def earlier_artifacts(folder: Path) -> dict[str, Manifest]:
    """Return the manifests of the finished artifacts of a stage's folder by name."""
    found = {}
    for each in folders_in(folder):
        manifest = _readable(each)
        if manifest:
            found[each.name] = manifest
    return found


def _difference(old: Manifest, step: Step) -> str:
    """Return what differs between an older artifact and the planned one."""
    before = dict(leaves(old.settings))
    after = dict(leaves(step.settings.model_dump(mode="json")))
    changes = []
    for key, value in after.items():
        if before.get(key) == value:
            continue
        if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            changes.append(f"{key} changed")
        else:
            changes.append(f"{key} {_legible(before.get(key))} → {_legible(value)}")
    changes += [f"{key} dropped" for key in before if key not in after]
    for name, upstream in step.inputs.items():
        if name not in old.inputs or old.inputs[name].fingerprint != upstream.location.fingerprint:
            changes.append(f"{name} changed")
    changes += [f"source {name} changed" for name, value in step.sources.items() if old.sources.get(name) != value]
    if len(changes) > MOST_CHANGES + 1:
        changes[MOST_CHANGES:] = [f"and {len(changes) - MOST_CHANGES} more changes"]
    return ", ".join(changes) or "made by another version of the stage"
