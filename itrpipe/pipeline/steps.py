"""Find the state of the steps of a plan on disk, and the reason for it."""

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

MAX_CHANGES = 6
"""Largest number of changes that a reason names."""


def pending_steps(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that have to run, in order: requested ones that are not up to date, and what these read."""
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
    """Return the state of a planned artifact on disk, and the reason for people.

    Args:
        step: that is planned.
        former: artifact that has had the name of the step's model so far, empty for none; None where the model has no
            name, and the step is compared with the newest artifact of the same run.
        read: input that is a named model -> the artifacts of this model, as planned and so far. An artifact that read
            another model is no earlier version of this step.
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
        if made_again:
            return "stale", made_again
        return "up to date", ""
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
    if load_stage(step.need.stage).has_versions:
        return "new settings", _difference(newest, step)
    return "missing", ""


def _of_same_label(location: Location) -> Iterator[tuple[Path, Manifest]]:
    """Yield the finished artifacts of a label, which differ in settings or inputs."""
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
    endings = tuple(f".{name}" for name in given)
    fixed = {}
    for key, value in leaves(step.settings.model_dump(mode="json")):
        if f".{key}".endswith(endings):
            fixed[key] = value
    finished = {}
    for _, manifest in sorted(_of_same_label(step.location), key=lambda artifact: artifact[1].finished):
        if manifest.schema_version != load_stage(step.need.stage).schema_version:
            continue
        if not fixed.items() <= dict(leaves(manifest.settings)).items():
            continue
        shared = step.inputs.keys() & manifest.inputs.keys()
        if any(manifest.inputs[name].fingerprint != step.inputs[name].location.fingerprint for name in shared):
            continue
        other = _finished(step, manifest)
        if other.state == "up to date":
            finished[repr({**manifest.settings, "decisions": ""})] = other
    if len(finished) != 1:
        return step
    return finished.popitem()[1]


def latest_judged(search: Step) -> Step | None:
    """Return the newest lists in which judges or people marked the results of a search; None where there are none.

    They are artifacts of the same stage as the search, which they have as an input of that name.
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
    """Return a planned step with the label, fingerprint and settings of a finished artifact of its stage."""
    location = dataclasses.replace(step.location, label=manifest.label, fingerprint=manifest.fingerprint)
    settings = type(step.settings).model_validate(manifest.settings)
    finished = dataclasses.replace(step, settings=settings, location=location)
    state, reason = state_of(finished)
    return dataclasses.replace(finished, state=state, reason=reason)


def _made_again(manifest: Manifest, step: Step) -> str:
    """Return which input has other bytes than the artifact was made from, and why; empty if there is no such input.

    An input that is not there now does not count.
    """
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
        changes = []
        for key, value in now.made.items():
            before = record.made.get(key)
            if before != value:
                changes.append(f"{key} {_legible(value)} instead of {_legible(before)}")
        how = ", ".join(changes[:MAX_CHANGES]) or "with the same settings"
        return f"{changed} was made again ({how})"
    return ""


def _overtaken(old: Manifest, step: Step) -> bool:
    """Return whether a source or the version of a stage has changed since an older artifact or its inputs were made.

    Otherwise it differs from the planned one in settings alone, its own or those of a step upstream.
    """
    if old.schema_version != load_stage(step.need.stage).schema_version:
        return True
    for name in old.sources.keys() & step.sources.keys():
        if old.sources[name] != step.sources[name]:
            return True
    for name in old.inputs.keys() & step.inputs.keys():
        upstream = step.inputs[name]
        read = _readable(input_folder(step.location.folder, old, name))
        if read and read.fingerprint != upstream.location.fingerprint and _overtaken(read, upstream):
            return True
    return False


def _legible(value: Any) -> str:
    if value is None or value in ("", [], ()):
        return "none"
    return str(value)


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
    manifests = {}
    for each in folders_in(folder):
        manifest = _readable(each)
        if manifest:
            manifests[each.name] = manifest
    return manifests


def _difference(old: Manifest, step: Step) -> str:
    """Return the differences between an older artifact and the planned one."""
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
    for key in before:
        if key not in after:
            changes.append(f"{key} dropped")
    for name, upstream in step.inputs.items():
        if name not in old.inputs or old.inputs[name].fingerprint != upstream.location.fingerprint:
            changes.append(f"{name} changed")
    for name, value in step.sources.items():
        if old.sources.get(name) != value:
            changes.append(f"source {name} changed")
    if len(changes) > MAX_CHANGES + 1:
        changes[MAX_CHANGES:] = [f"and {len(changes) - MAX_CHANGES} more changes"]
    return ", ".join(changes) or "made by another version of the stage"
