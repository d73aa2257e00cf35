"""Artifacts on disk: fingerprint, manifest, atomic write, lock and resume.

An artifact is a folder `data/<dataset>/<stage>/<label>-<fingerprint8>/` with a `manifest.json`.
Work happens in `<name>.partial/`; what only serves resuming lies in its `.work/`. The manifest is
written last and the folder renamed, so a reader never sees half an artifact, and a killed process
leaves a `.partial` folder from which the same command goes on.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from itrpipe.disk import TEMPORARY, file_digest, make_folder, sync, write_text
from itrpipe.errors import DataError, LockedError, MissingInputError

MANIFEST = "manifest.json"
WORK = ".work"
PARTIAL = ".partial"
INPUTS = "inputs.json"
# In the work of an artifact whose parts are made by several processes: what is left to do.
UNFINISHED = "unfinished.json"
RECORDED_PACKAGES = ("itrpipe", "torch", "torchvision", "transformers", "accelerate", "numpy", "h5py", "pyarrow")


class OutputFile(BaseModel):
    """Size and content hash of one file of an artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bytes: int
    sha256: str


class InputArtifact(BaseModel):
    """The artifact that was read under one input name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: str
    name: str
    fingerprint: str


class Manifest(BaseModel):
    """Everything needed to know what an artifact is and how it came to be.

    Attributes:
        settings: the settings that determine the result; they are part of the fingerprint.
        execution: the settings that do not (device, workers); recorded only.
        sources: digests of files outside the data folder that were read.
        timings: seconds by phase, and `total`.
        metrics: numbers worth showing in tables.
        command: the command line that made it.
        messages: warnings a user should still see later.
        failed: image that could not be used -> reason; the artifact is whole without these.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: str
    schema_version: int
    dataset: str
    conf: str
    label: str
    fingerprint: str
    settings: dict[str, Any]
    execution: dict[str, Any]
    sources: dict[str, str] = Field(default_factory=dict)
    inputs: dict[str, InputArtifact] = Field(default_factory=dict)
    outputs: dict[str, OutputFile]
    versions: dict[str, str]
    timings: dict[str, float]
    metrics: dict[str, Any]
    command: str
    finished: str
    messages: list[str] = Field(default_factory=list)
    failed: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Location:
    """Where one artifact lies or will lie.

    Attributes:
        root: the data folder.
        dataset: dataset name.
        stage: stage name.
        label: human-readable part of the folder name, such as `aoq.vsrn`.
        fingerprint: 64 hexadecimal digits.
    """

    root: Path
    dataset: str
    stage: str
    label: str
    fingerprint: str

    @property
    def name(self) -> str:
        """Folder name: label and the first eight digits of the fingerprint."""
        return f"{self.label}-{self.fingerprint[:8]}"

    @property
    def folder(self) -> Path:
        """The finished artifact."""
        return self.root / self.dataset / self.stage / self.name

    @property
    def partial(self) -> Path:
        """The folder in which it is being made."""
        return self.folder.with_name(self.name + PARTIAL)

    def lock(self, part: str = "") -> Path:
        """The file that the process making it, or one part of it, holds locked."""
        return self.folder.with_name(f".{self.name}{f'.{part}' if part else ''}.lock")


def fingerprint(stage: str, schema_version: int, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """sha256 over the canonical JSON of what determines a result.

    Args:
        stage: stage name.
        schema_version: raised whenever the stage's output changes for the same settings.
        settings: result settings only.
        inputs: input name -> fingerprint of the artifact or digest of the source.

    Returns:
        64 hexadecimal digits.
    """
    content = {"stage": stage, "schema": schema_version, "settings": settings, "inputs": dict(inputs)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of an artifact folder.

    Raises:
        DataError: missing, unreadable or of another shape; the artifact cannot be trusted.
    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "is corrupt"
        raise DataError(f"{path} {reason}; {damage_remedy(folder)}") from None


def input_folder(folder: Path, manifest: Manifest, name: str) -> Path:
    """Where an artifact lies, or lay, that another one was made from.

    Args:
        folder: of the other one, finished.
        manifest: of the other one.
        name: of the input.
    """
    record = manifest.inputs[name]
    return folder.parents[1] / record.stage / record.name


def existing_input(folder: Path, manifest: Manifest, name: str) -> Path:
    """Where an artifact lies that another one was made from; see `input_folder`.

    Raises:
        MissingInputError: it was removed since.
    """
    found = input_folder(folder, manifest, name)
    if not found.exists():
        raise MissingInputError(
            f"{found}, which {folder.parent.name}/{folder.name} was made from, is not there; run "
            f"`itrpipe {found.parent.name.replace('_', '-')} --dataset {folder.parents[1].name}`"
        )
    return found


def find_damage(folder: Path, manifest: Manifest, *, thorough: bool = False) -> str | None:
    """Compares the files of an artifact with its manifest.

    Args:
        folder: the artifact.
        manifest: its manifest.
        thorough: also compare content hashes; otherwise presence and size only.

    Returns:
        What is wrong with the first bad file, or None.
    """
    for name, expected in manifest.outputs.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        size = path.stat().st_size
        if size != expected.bytes:
            return f"{path} has {size:,} bytes instead of {expected.bytes:,}"
        if thorough and file_digest(path) != expected.sha256:
            return f"{path} does not match its recorded sha256"
    return None


def check_artifact(folder: Path, *, thorough: bool = False) -> Manifest:
    """Returns the manifest of an artifact that is whole.

    Raises:
        DataError: the manifest or a file of it is missing, truncated or changed.
    """
    manifest = read_manifest(folder)
    damage = find_damage(folder, manifest, thorough=thorough)
    if damage:
        raise DataError(f"{damage}; {damage_remedy(folder, thorough=thorough)}")
    return manifest


def damage_remedy(folder: Path, *, thorough: bool = False) -> str:
    """What to do about a damaged artifact; damage that only hashes show needs hashes to be found again."""
    options = f"--damaged{' --verify' if thorough else ''} --dataset {folder.parents[1].name}"
    return f"remove it with `itrpipe gc {options}` and rerun"


def same_run(manifest: Manifest, label: str, settings: Mapping[str, Any]) -> bool:
    """Whether an artifact is another version of the run that `label` and `settings` name.

    Runs of one label on different features of a dataset are different runs.
    """
    return manifest.label == label and manifest.settings.get("features") == settings.get("features")


def list_artifacts(root: Path, dataset: str) -> Iterator[Path]:
    """Yields every finished or partial artifact folder of a dataset, sorted by stage and name."""
    for stage in sorted(path for path in (root / dataset).glob("*") if path.is_dir()):
        yield from sorted(path for path in stage.iterdir() if path.is_dir() and not path.name.startswith("."))


@contextlib.contextmanager
def locked(location: Location, on_wait: Callable[[Path], None] | None = None, part: str = "") -> Iterator[None]:
    """Holds the lock of an artifact, waiting for another process if need be.

    Whoever makes a part holds the lock of the whole while it begins: so a part never begins while the whole is made,
    finished or removed, and the whole waits for no part but says that it is being made.

    Args:
        location: the artifact.
        on_wait: called once with the lock's path when another process holds it; when it raises, so does this.
        part: of the artifact that this process makes while others make other parts; empty for all of it.

    Raises:
        LockedError: another process makes this part, or all of it is to be made while another makes a part.
        MissingInputError: the folder is not writable.
    """
    with contextlib.ExitStack() as held:
        whole = held.enter_context(_acquired(location.lock(), on_wait))
        if part:
            held.enter_context(_acquired(location.lock(part), None))
            recover_sealed(location)
            if not location.folder.exists():
                open_partial(location)
            whole.release()
        else:
            for path in _part_locks(location.folder):
                held.enter_context(_acquired(path, None))
        yield


@contextlib.contextmanager
def _acquired(path: Path, on_wait: Callable[[Path], None] | None) -> Iterator[FileLock]:
    make_folder(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except PermissionError:
        raise MissingInputError(
            f"{path.parent} is not writable; change its permissions or choose another folder with --data"
        ) from None
    except Timeout:
        if on_wait is None:
            raise LockedError(f"{path}: this artifact is being written by another process; wait for it") from None
        on_wait(path)
        lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


def _part_locks(folder: Path) -> list[Path]:
    return sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.lock"))


@contextlib.contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Holds the locks of an artifact or `.partial` folder if no process has one; yields whether it does."""
    folder = folder.with_name(folder.name.removesuffix(PARTIAL))
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0))
            for path in _part_locks(folder):
                held.enter_context(FileLock(path, timeout=0))
        except (Timeout, PermissionError):
            held.close()
            yield False
            return
        yield True


def is_locked(partial: Path) -> bool:
    """Whether a process is working on a `.partial` folder right now; in a read-only folder none can be."""
    if not os.access(partial.parent, os.W_OK):
        return False
    with unused(partial) as free:
        return not free


def open_partial(location: Location) -> Path:
    """Creates the `.partial` folder and its `.work/`, keeping what an interrupted run left there."""
    make_folder(location.partial / WORK)
    return location.partial


def finish(location: Location, manifest_fields: Mapping[str, Any]) -> Manifest:
    """Seals the partial folder: hashes and syncs its files, writes the manifest, renames the folder.

    Args:
        location: the artifact.
        manifest_fields: every field of `Manifest` except `outputs` and `versions`.
    """
    partial = location.partial
    outputs = {}
    for path in partial.rglob(f".*{TEMPORARY}"):
        path.unlink()  # left by a kill in the middle of `write_bytes`
    for path in sorted(path for path in partial.rglob("*") if path.is_file()):
        name = path.relative_to(partial).as_posix()
        if name != MANIFEST and not name.startswith(f"{WORK}/"):
            outputs[name] = OutputFile(bytes=path.stat().st_size, sha256=file_digest(path))
            sync(path)
    manifest = Manifest(outputs=outputs, versions=installed_versions(), **manifest_fields)
    write_text(partial / MANIFEST, manifest.model_dump_json(indent=1))
    seal(location)
    return manifest


def seal(location: Location) -> None:
    """Last steps of `finish`, repeatable after a kill: drop `.work/`, rename, sync the parent folder."""
    shutil.rmtree(location.partial / WORK, ignore_errors=True)
    os.replace(location.partial, location.folder)
    sync(location.folder.parent)


def recover_sealed(location: Location) -> bool:
    """Finishes an artifact whose process was killed between writing the manifest and renaming.

    Returns:
        Whether the artifact is now in place.
    """
    if not (location.partial / MANIFEST).exists():
        return False
    check_artifact(location.partial, thorough=True)
    seal(location)
    return True


def installed_versions() -> dict[str, str]:
    """Versions of the packages that can change a result; those not installed are left out."""
    versions = {}
    for package in RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
