"""Artifacts on disk: fingerprint, manifest, atomic write and resume.

An artifact is a folder `data/<dataset>/<stage>/<label>-<fingerprint8>/` with a `manifest.json`.
Work happens in `<name>.partial/`; what only serves resuming lies in its `.work/`. The manifest is
written last and the folder renamed, so a reader never sees half an artifact, and a killed process
leaves a `.partial` folder from which the same command goes on. An artifact that is made again, because something
that it reads was, takes the place of the earlier one, which stays beside it as `<name>.replaced`.

A file is damaged if it is absent, has invalid content, or another digest than its manifest says. A file that cannot be
read now is not damaged. Whoever reads files of an artifact opens it before, once: `open_artifact` compares all of them
with the manifest, and readers of rows or tables look at no manifest.

Hashing 30 GB of features takes minutes; looking at their size and times takes no time at all. So small files are hashed
whenever their artifact is opened, and a large one, like a source, once for as long as its size, modification time and
inode stay as they are. Digests of a dataset's large files are kept in `data/<dataset>/checked.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from itrpipe import __version__
from itrpipe.config import Outside
from itrpipe.errors import DataError, DiskFullError, MissingInputError, UnavailableError
from itrpipe.progress import Reporter
from itrpipe.storage.disk import (
    TEMPORARY,
    file_digest,
    make_folder,
    on_disk,
    read_json,
    read_stamped_json,
    reading,
    sync,
    write_stamped_json,
)

DEFINITION = "dataset.json"
MANIFEST = "manifest.json"
WORK = ".work"
PARTIAL = ".partial"
REPLACED = ".replaced"
INPUTS = "inputs.json"
START = "start.json"
NOTES = "notes.json"
DIVISION = "division.json"
BEGINNING = frozenset({INPUTS, START, NOTES, DIVISION})
"""Files of `.work/` that say what a run was begun with; where there are no others, nothing was made yet."""
# In the work of an artifact whose parts are made by several processes: what is left to do.
UNFINISHED = "unfinished.json"
DATA = Path("data")

# Names of the files that one stage writes and another room reads.

SCENES_FILE = "scenes.jsonl"
"""File of the embedded dataset, as it is prepared."""

METRICS = "metrics.json"
RANKINGS = "rankings.parquet"
CROSS_RETRIEVAL = "cross_retrieval.parquet"
SUMMARY = "summary.txt"
"""Files of every evaluation."""

ALIGNMENT = "alignment.json"
ECCV_CAPTION = "eccv_caption.json"
MATCHING = "matching.json"
FALSE_NEGATIVES = "false_negatives.json"
WORDS = "words.json"
DISCRIMINATION = "discrimination.json"
CORRECTED = "corrected.json"
JUDGED = "judged.parquet"
BENCHMARKS = "benchmarks.json"
AGREEMENT = "agreement.json"
"""Files of evaluations that ask for them, or whose model can be asked; see `itrpipe.analysis.questions`."""

HISTORY = "history.parquet"
"""File of a training."""

EXPORT = "export.json"
"""File of an exported folder that says what its other files are; a folder without it is never replaced."""

PICTURES = "pictures"
"""Folder of small copies of photographs, beside a dataset's artifacts."""

STATISTICS = "statistics.json"
"""File of mined negatives, and of written sentences."""

CHECKED = "checked.json"
SMALL = 4 << 20
"""Bytes below which a file is hashed whenever its artifact is opened."""
QUIET_FILES = 2000
QUIET_BYTES = 1 << 28
_trusted = False
_FINISHED = re.compile(r".+-[0-9a-f]{8}")
_RECORDED_PACKAGES = ("itrpipe", "torch", "torchvision", "transformers", "numpy", "h5py", "pyarrow")
"""Packages that can change a result."""


class OutputFile(BaseModel, extra="forbid", frozen=True):
    """Size and content hash of one file of an artifact."""

    bytes: int
    sha256: str


class InputArtifact(BaseModel, extra="forbid", frozen=True):
    """The artifact that was read under one input name.

    Attributes:
        stage, name, fingerprint: stage, folder name and fingerprint of the artifact.
        digest: digest of all its files, see `Manifest.digest`.
        files: digest of each file that lies in the artifact's folder itself.
        made: its execution settings and versions, which may differ between artifacts of one fingerprint.
    """

    stage: str
    name: str
    fingerprint: str
    digest: str
    files: dict[str, str]
    made: dict[str, Any]


class Manifest(BaseModel, extra="forbid", frozen=True):
    """Record of an artifact: its settings, sources, inputs and files, and how it was made.

    Attributes:
        settings: the settings that determine the result; they are part of the fingerprint.
        execution: the settings that do not (device, workers); recorded only.
        sources: digests of files outside the data folder that were read.
        timings: `total`, the seconds of all runs that made it.
        metrics: numbers worth showing in tables.
        command: the command line that made it.
        messages: warnings a user should still see later.
        failed: image that could not be used -> reason; the artifact is whole without these.
    """

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

    @property
    def digest(self) -> str:
        """Return the sha256 of the names and digests of all files, which is equal for artifacts of the same bytes."""
        digests = {name: file.sha256 for name, file in self.outputs.items()}
        return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()

    @property
    def made(self) -> dict[str, Any]:
        """Return execution settings and versions, which may change the bytes without changing the fingerprint."""
        return {**self.execution, **self.versions}

    def as_input(self, name: str) -> InputArtifact:
        """Return the record of this artifact for the manifest of another one that reads it.

        Args:
            name: of this artifact's folder.
        """
        return InputArtifact(
            stage=self.stage,
            name=name,
            fingerprint=self.fingerprint,
            digest=self.digest,
            files={file: output.sha256 for file, output in self.outputs.items() if "/" not in file},
            made=self.made,
        )


@dataclass(frozen=True)
class Location:
    """The place where one artifact lies or will lie.

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
        """Return the folder name: label and the first eight digits of the fingerprint."""
        return f"{self.label}-{self.fingerprint[:8]}"

    @property
    def folder(self) -> Path:
        """Return the folder of the finished artifact."""
        return self.root / self.dataset / self.stage / self.name

    @property
    def partial(self) -> Path:
        """Return the folder in which it is being made."""
        return self.folder.with_name(self.name + PARTIAL)

    def lock(self, part: str = "") -> Path:
        """Return the file that the process making it, or one part of it, holds locked."""
        name = f".{self.name}.{part}" if part else f".{self.name}"
        return self.folder.with_name(f"{name}.lock")


def fingerprint(stage: str, schema_version: int, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Return the sha256 of the canonical JSON of everything that determines a result.

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
    """Read the manifest of an artifact folder.

    Raises:
        DataError: missing, invalid or changed since it was written; the artifact cannot be trusted.
        UnavailableError: it cannot be read now.
    """
    path = folder / MANIFEST
    remedy = damage_remedy(folder)
    with reading(path, "a manifest", remedy):
        return Manifest.model_validate(read_stamped_json(path, remedy, strict=False))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of an artifact folder atomically, with a checksum of its own."""
    write_stamped_json(folder / MANIFEST, json.loads(manifest.model_dump_json()))


def input_folder(folder: Path, manifest: Manifest, name: str) -> Path:
    """Return the folder where an artifact lies, or lay, that another one was made from.

    Args:
        folder: finished artifact that was made from the input.
        manifest: its manifest.
        name: name of the input.
    """
    record = manifest.inputs[name]
    return folder.parents[1] / record.stage / record.name


def existing_input(folder: Path, manifest: Manifest, name: str) -> Path:
    """Return the folder of an artifact that another one was made from; see `input_folder`.

    Raises:
        MissingInputError: it was removed since, or made again with another result.
    """
    source = input_folder(folder, manifest, name)
    reader = f"{folder.parent.name}/{folder.name}"
    if not source.exists():
        stage = source.parent.name.replace("_", "-")
        if stage in ("embeddings", "encode", "judge"):  # no command makes them alone
            remedy = f"remove {folder} and run `{manifest.command}` again"
        else:
            remedy = f"run `itrpipe {stage} --dataset {source.parents[1].name}`"
        raise MissingInputError(f"{source}, which {reader} was made from, is not there; {remedy}")
    if read_manifest(source).digest != manifest.inputs[name].digest:
        raise MissingInputError(
            f"{source} was made again after {reader} was made from it; run `{manifest.command}` again"
        )
    return source


def open_input(folder: Path, manifest: Manifest, name: str) -> Path:
    """Check the files of an artifact that another one was made from, and return its folder.

    Raises:
        MissingInputError: see `existing_input`.
        DataError, UnavailableError: see `open_artifact`.
    """
    source = existing_input(folder, manifest, name)
    open_artifact(source)
    return source


def check_file(path: Path, expected: OutputFile, remedy: str, digest: Callable[[Path], str] | None = None) -> None:
    """Compare a file with its size and digest in a manifest.

    Args:
        path: the file.
        expected: its size and digest.
        remedy: against damage, for the message.
        digest: computes its sha256; None compares presence and size only.

    Raises:
        DataError: it is missing, truncated or changed.
        UnavailableError: it cannot be read now.
    """
    try:
        with on_disk(path):
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                damage = "is not a file"
            elif status.st_size != expected.bytes:
                damage = f"has {status.st_size:,} bytes instead of {expected.bytes:,}"
            elif digest is not None and digest(path) != expected.sha256:
                damage = "does not match its recorded sha256"
            else:
                return
    except (FileNotFoundError, NotADirectoryError):
        damage = "is missing"
    raise DataError(f"{path} {damage}; {remedy}")


def check_artifact(folder: Path, *, thorough: bool = False) -> Manifest:
    """Check that an artifact is whole, and return its manifest.

    Args:
        folder: the artifact.
        thorough: also compare content hashes; otherwise presence and size only.

    Raises:
        DataError: the manifest or a file of it is missing, truncated or changed.
        UnavailableError: one of them cannot be read now.
    """
    manifest = read_manifest(folder)
    remedy = damage_remedy(folder, thorough=thorough)
    for name, expected in manifest.outputs.items():
        check_file(folder / name, expected, remedy, file_digest if thorough else None)
    return manifest


def open_artifact(folder: Path) -> Manifest:
    """Check the files of an artifact that are about to be read, and return its manifest.

    Large files are hashed once for as long as they stay unchanged; those of a copy under another name every time.

    Raises:
        DataError: the manifest or a file of it is damaged; the message names the commands that make it again.
        UnavailableError: one of them cannot be read now.
    """
    manifest = read_manifest(folder)
    is_copy = not is_finished(folder)
    if is_copy:
        remedy = f"copy it again, or run `{manifest.command}`"
    else:
        remedy = damage_remedy(folder, thorough=True, again=f"`{manifest.command}`")
    cache = digests_beside(folder)
    for name, expected in manifest.outputs.items():
        digest = file_digest
        if expected.bytes >= SMALL and not is_copy:
            digest = None if _trusted else cache.digest
        check_file(folder / name, expected, remedy, digest)
    cache.save()
    return manifest


def trust_large_files(trusted: bool) -> None:
    """Set whether this process takes large files for unchanged without a look at their content."""
    global _trusted
    _trusted = trusted


def check_export(folder: Path) -> None:
    """Compare the files of an exported folder with its `export.json`, if it has one; a card may have been edited.

    Raises:
        DataError: one of them is damaged.
        UnavailableError: one of them cannot be read now.
    """
    listing = folder / EXPORT
    if not listing.is_file():
        return
    remedy = "export it again, or fetch it again"
    with reading(listing, "the files of an export", remedy):
        for name, content in read_json(listing)["files"].items():
            path = folder / name
            if path.exists() and path.suffix != ".md":
                check_file(path, OutputFile.model_validate(content), remedy, file_digest)


def damage_remedy(folder: Path, *, thorough: bool = False, again: str = "the same command again") -> str:
    """Return the sentence of a message that tells how to replace a damaged artifact.

    Args:
        folder: the artifact.
        thorough: hashes alone show the damage, so that they are needed to find it again.
        again: the command to run.
    """
    command = "itrpipe gc --damaged"
    if thorough:
        command += " --verify"
    command += f" --dataset {folder.parents[1].name}"
    root = folder.parents[2]
    if root != DATA:
        command += f" --data {shlex.quote(str(root))}"
    return f"remove it with `{command}` and run {again}"


def is_finished(folder: Path) -> bool:
    """Return whether a folder has the name of a finished artifact."""
    return _FINISHED.fullmatch(folder.name) is not None


def partial_of(path: Path) -> Path:
    """Return the `.partial` folder that a file of unfinished work lies in; elsewhere, as in tests, its own folder."""
    for folder in path.parents:
        if folder.name.endswith(PARTIAL):
            return folder
    return path.parent


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name, with those behind links, but without hidden ones.

    There are none if the folder is absent.

    Raises:
        UnavailableError: it cannot be read now.
    """
    with on_disk(folder), contextlib.suppress(FileNotFoundError):
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return []


def open_partial(location: Location) -> Path:
    """Create the `.partial` folder and its `.work/`, keeping the files that an interrupted run left there."""
    make_folder(location.partial / WORK)
    return location.partial


def finish(location: Location, manifest_fields: Mapping[str, Any]) -> Manifest:
    """Seal the partial folder: hash and sync its files, write the manifest, rename the folder.

    Args:
        location: the artifact.
        manifest_fields: every field of `Manifest` except `outputs` and `versions`.
    """
    partial = location.partial
    outputs = {}
    for path in partial.rglob(f".*{TEMPORARY}"):
        path.unlink()  # left by a kill in the middle of `write_bytes`
    for path in sorted(partial.rglob("*")):
        name = path.relative_to(partial).as_posix()
        if path.is_file() and name != MANIFEST and not name.startswith(f"{WORK}/"):
            outputs[name] = OutputFile(bytes=path.stat().st_size, sha256=file_digest(path))
            sync(path)
    versions = {"itrpipe": __version__}
    for package in _RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    manifest = Manifest(outputs=outputs, versions=versions, **manifest_fields)
    write_manifest(partial, manifest)
    seal(location)
    cache = digests_beside(location.folder)  # large files were hashed just now
    for name, output in outputs.items():
        if output.bytes >= SMALL:
            cache.remember(location.folder / name, output.sha256)
    cache.save()
    return manifest


def seal(location: Location) -> None:
    """Do the last steps of `finish`, repeatable after a kill: drop `.work/`, rename, sync the parent folder.

    An earlier artifact of this name is put aside as `<name>.replaced`, `<name>.replaced-2` and so on, never removed: it
    may have taken days.
    """
    shutil.rmtree(location.partial / WORK, ignore_errors=True)
    if location.folder.exists():
        aside = location.folder.with_name(location.name + REPLACED)
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = location.folder.with_name(f"{location.name}{REPLACED}-{number}")
        os.replace(location.folder, aside)
    os.replace(location.partial, location.folder)
    sync(location.folder.parent)


def recover_sealed(location: Location) -> None:
    """Finish an artifact, if its process was killed between writing the manifest and renaming the folder.

    Raises:
        DataError: a file of it is damaged.
    """
    if (location.partial / MANIFEST).exists():
        check_artifact(location.partial, thorough=True)
        seal(location)


# Digests of large files, and of those outside the data folder


def digests_beside(folder: Path) -> DigestCache:
    """Return the digests that are known of the large files of an artifact and of all others of its dataset."""
    return DigestCache(folder.absolute().parents[1] / CHECKED)


class DigestCache:
    """Digests of files, kept in one JSON file per dataset.

    Args:
        path: the JSON file; created on `save`.
        reporter: shows progress when many files or large ones have to be hashed.

    Attributes:
        path: as given.
        of_steps: key of a step -> digests of its sources, so that one plan looks at them once.
    """

    def __init__(self, path: Path, reporter: Reporter | None = None) -> None:
        self.path = path
        self.of_steps: dict[str, dict[str, str]] = {}
        self._reporter = reporter or Reporter()
        self._entries = self._read()
        self._new: dict[str, list[Any]] = {}

    def digest(self, path: Path) -> str:
        """Return the sha256 of one source file, from the cache while it is unchanged.

        Raises:
            MissingInputError: there is no such file.
            DataError: it is a folder, a pipe or a device.
            UnavailableError: it cannot be read now.
        """
        try:
            with on_disk(path):
                status = path.stat()
                if not stat.S_ISREG(status.st_mode):
                    raise DataError(f"source file {path} is no regular file; correct it or name another")
                entry = self._entries.get(str(path.absolute()))
                if entry and entry[:3] == _version(status):
                    return entry[3]
                total = 0  # so that no progress is shown
                if status.st_size >= QUIET_BYTES:
                    total = status.st_size >> 20
                with self._reporter.task(f"checking {path.name}", total, "MiB") as task:
                    return self.remember(path, file_digest(path, lambda count: task.advance(count >> 20)))
        except FileNotFoundError:
            raise MissingInputError(f"source file {path} does not exist; restore it or name another") from None

    def remember(self, path: Path, digest: str) -> str:
        """Keep the digest of a file as it is now, and return it."""
        key = str(path.absolute())
        entry = [*_version(path.stat()), digest]
        self._entries[key] = entry
        self._new[key] = entry
        return digest

    def combined(self, paths: Collection[Path], root: Path, what: str) -> str:
        """Return one digest of many files: of their paths relative to `root` and their contents.

        A path that is not there, no file or not readable counts as absent instead of failing: the stage that reads it
        lists all of them.

        Args:
            paths: the files.
            root: folder the recorded names are relative to, so that moving it changes nothing.
            what: name of the progress shown while many files are new.
        """
        combined = hashlib.sha256()
        total = 0  # so that no progress is shown
        if len(paths) - len(self._entries) > QUIET_FILES:
            total = len(paths)
        with self._reporter.task(what, total, "files") as task:
            for path in sorted(paths):
                name = path.name
                if path.is_relative_to(root):
                    name = path.relative_to(root).as_posix()
                digest = "absent"
                if path.is_file() and os.access(path, os.R_OK):  # opening a pipe would wait for a writer for ever
                    digest = self.digest(path)
                combined.update(f"{name}\0{digest}\n".encode())
                task.advance()
        return combined.hexdigest()

    def place(self, path: Path, what: str, pattern: str = "*") -> str:
        """Return one digest of a file, or of the files of this pattern in a folder."""
        if not path.is_dir():
            return self.digest(path)
        files = [file for file in path.glob(pattern) if file.is_file()]
        return self.combined(files, path, what)

    def save(self) -> None:
        """Write the cache back if anything was hashed, with the digests that other processes have added meanwhile.

        Where nothing can be written, the same files are hashed again next time.
        """
        if self._new:
            self._entries = self._read() | self._new
            with contextlib.suppress(UnavailableError, DiskFullError):
                make_folder(self.path.parent)
                write_stamped_json(self.path, self._entries)
            self._new = {}

    def _read(self) -> dict[str, list[Any]]:
        """Return the entries on the disk; a cache that is damaged counts as empty."""
        try:
            return read_stamped_json(self.path, "its files are hashed again")
        except FileNotFoundError:
            return {}
        except DataError as error:
            self._reporter.say(f"  warning: {error}", style="yellow")
            return {}


def _version(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def local_folders(names: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders of the settings that name a model by a folder of this machine, not by a hub id.

    Args:
        names: setting -> name of its model, which may be empty.
    """
    folders = {}
    for setting, name in names.items():
        if not name:
            continue
        folder = Path(name).expanduser()
        if folder.is_absolute() or folder.exists():
            folders[setting] = folder
    return folders


def folder_digest(name: str, folder: Path, cache: DigestCache) -> str:
    """Return the digest of all files in and below the folder that the setting `name` is about.

    Raises:
        MissingInputError: it is no folder.
    """
    if not folder.is_dir():
        raise MissingInputError(f"{folder} is not a folder; name one that holds the files of a model")
    files = []
    for file in folder.rglob("*"):
        # Hidden files are those of git or of the hub's client.
        is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and not is_hidden:
            files.append(file)
    return cache.combined(files, folder, f"hashing {name}")


def _local_digest(name: str, value: str, cache: DigestCache) -> dict[str, str]:
    return {key: folder_digest(key, folder, cache) for key, folder in local_folders({name: value}).items()}


LOCAL_MODEL = Outside(_local_digest, lambda value: "local" if local_folders({"": value}) else value)
"""Marks a setting that names a model by a hub id, which counts itself, or by a folder."""
