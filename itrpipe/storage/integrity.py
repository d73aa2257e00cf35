"""Files, checked on use: every reader learns whether a file of an artifact still is what its stage has written.

Hashing 30 GB of features takes minutes; looking at their size and times takes no time at all. So small files are hashed
whenever they are read, and a large one, like a source, once for as long as its size, modification time and inode stay
as they are. What is known of a dataset's large files lies in `data/<dataset>/checked.json`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from itrpipe.config import Outside
from itrpipe.errors import DataError, DiskFullError, MissingInputError, UnavailableError
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import (
    EXPORT,
    MANIFEST,
    Manifest,
    OutputFile,
    check_file,
    damage_remedy,
    is_finished,
    read_manifest,
)
from itrpipe.storage.disk import (
    file_digest,
    is_stamped,
    make_folder,
    on_disk,
    read_json,
    read_stamped_json,
    reading,
    write_stamped_json,
)

CHECKED = "checked.json"
SMALL = 4 << 20
"""Bytes below which a file is hashed whenever it is read."""
_DEEPEST = 3
"""Folders between the file of an artifact and its manifest, at most."""
_EXPORTED = "export it again, or fetch it again"
QUIET_FILES = 2000
QUIET_BYTES = 1 << 28
_trusted = False


def trust_large_files(trusted: bool) -> None:
    """Say whether large files count as unchanged without a look at their content, in this process."""
    global _trusted
    _trusted = trusted


def checked(path: Path) -> Path:
    """Returns the path of a file that is about to be read, once it is as the manifest of its artifact says.

    The folder of an artifact may have been copied under another name. A file of an exported folder is compared with its
    `export.json`. A file of neither, and one that is not listed, is returned as it is.

    Raises:
        DataError: the file is damaged; it names the artifact and the commands that make it again.
        UnavailableError: the file or the manifest cannot be read now.
    """
    for folder in list(path.parents)[:_DEEPEST]:
        name = path.relative_to(folder).as_posix()
        if manifest := _manifest_of(folder):
            if expected := manifest.outputs.get(name):
                is_copy = not is_finished(folder)
                remedy = damage_remedy(folder, thorough=True, again=f"`{manifest.command}`")
                if is_copy:
                    remedy = f"copy it again, or run `{manifest.command}`"
                if is_copy or expected.bytes < SMALL:
                    check_file(path, expected, remedy, file_digest)
                else:
                    cache = cache_of(folder)
                    check_file(path, expected, remedy, None if _trusted else cache.digest)
                    cache.save()
            break
        if (folder / EXPORT).is_file():
            with reading(folder / EXPORT, "the files of an export", _EXPORTED):
                if known := read_json(folder / EXPORT)["files"].get(name):
                    check_file(path, OutputFile.model_validate(known), _EXPORTED, file_digest)
            break
    return path


def read_checked_json(path: Path) -> Any:
    """Reads a JSON file of an artifact.

    Raises:
        DataError: it is damaged; see `checked`.
        UnavailableError: it cannot be read now.
    """
    return read_json(checked(path))


def remember_outputs(folder: Path, manifest: Manifest) -> None:
    """Keeps the digests of an artifact's large files, which were hashed when it was finished."""
    cache = cache_of(folder)
    for name, output in manifest.outputs.items():
        if output.bytes >= SMALL:
            cache.remember(folder / name, output.sha256)
    cache.save()


def _manifest_of(folder: Path) -> Manifest | None:
    """Return the manifest of an artifact, which is read again when it changes; None where there is none."""
    with on_disk(folder / MANIFEST), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return _manifest(folder, *_version(os.stat(folder / MANIFEST)))
    return None


@functools.lru_cache(256)
def _manifest(folder: Path, *version: int) -> Manifest | None:
    path = folder / MANIFEST
    # Other programs write files of this name, too, beside photographs for instance.
    is_ours = is_finished(folder) or (path.is_file() and is_stamped(path.read_bytes()))
    return read_manifest(folder) if is_ours else None


def _version(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


@functools.cache
def cache_of(folder: Path) -> DigestCache:
    """Return the digests that are known of the large files of an artifact and of all others of its dataset."""
    return DigestCache(folder.absolute().parents[1] / CHECKED)


class DigestCache:
    """Digests of files, kept in one JSON file per dataset.

    Args:
        path: the JSON file; created on `save`.
        reporter: shows progress when many files or large ones have to be hashed.
    """

    def __init__(self, path: Path, reporter: Reporter | None = None) -> None:
        self.path = path
        self._reporter = reporter or Reporter()
        self._entries = self._read()
        self._new: dict[str, list] = {}

    def digest(self, path: Path) -> str:
        """sha256 of one source file, from the cache while it is unchanged.

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
                if status.st_size < QUIET_BYTES:
                    return self.remember(path, file_digest(path))
                with self._reporter.task(f"checking {path.name}", status.st_size >> 20, "MiB") as task:
                    return self.remember(path, file_digest(path, lambda count: task.advance(count >> 20)))
        except FileNotFoundError:
            raise MissingInputError(f"source file {path} does not exist; restore it or name another") from None

    def remember(self, path: Path, digest: str) -> str:
        """Keeps the digest that a file has as it is now, and returns it."""
        key = str(path.absolute())
        self._entries[key] = self._new[key] = [*_version(path.stat()), digest]
        return digest

    def combined(self, paths: Sequence[Path], root: Path, what: str) -> str:
        """One digest over many files: their paths relative to `root` and their contents.

        What is not there, no file or not readable counts as absent instead of failing: the stage that reads it lists
        all of them.

        Args:
            paths: the files.
            root: folder the recorded names are relative to, so that moving it changes nothing.
            what: name of the progress shown while many files are new.
        """
        total = hashlib.sha256()
        many = len(paths) - len(self._entries) > QUIET_FILES
        with self._reporter.task(what, len(paths) if many else 0, "files") as task:
            for path in sorted(paths):
                name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
                # Opening a pipe would wait for a writer for ever.
                digest = self.digest(path) if path.is_file() and os.access(path, os.R_OK) else "absent"
                total.update(f"{name}\0{digest}\n".encode())
                task.advance()
        return total.hexdigest()

    def place(self, path: Path, what: str, pattern: str = "*") -> str:
        """One digest of a file, or of the files of this pattern in a folder."""
        if not path.is_dir():
            return self.digest(path)
        return self.combined([file for file in path.glob(pattern) if file.is_file()], path, what)

    def save(self) -> None:
        """Writes the cache back if anything was hashed, with what other processes have hashed meanwhile.

        Where nothing can be written, the same files are hashed again next time.
        """
        if self._new:
            self._entries = self._read() | self._new
            with contextlib.suppress(UnavailableError, DiskFullError):
                make_folder(self.path.parent)
                write_stamped_json(self.path, self._entries)
            self._new = {}

    def _read(self) -> dict[str, list]:
        """The entries on the disk; a cache that is damaged counts as empty."""
        try:
            return read_stamped_json(self.path, "its files are hashed again")
        except FileNotFoundError:
            return {}
        except DataError as error:
            self._reporter.say(f"  warning: {error}", style="yellow")
            return {}


def local_folders(names: Mapping[str, str]) -> dict[str, Path]:
    """Setting -> folder, of those models that are named by one of this machine, not by a hub id, and not left empty."""
    folders = {key: Path(name).expanduser() for key, name in names.items() if name}
    return {key: folder for key, folder in folders.items() if folder.is_absolute() or folder.exists()}


LOCAL_MODEL = Outside(
    lambda name, value, cache: folder_digests(local_folders({name: value}), cache),
    lambda value: "local" if local_folders({"": value}) else value,
)
"""Marks a setting that names a model by a hub id, which counts itself, or by a folder."""


def folder_digests(folders: Mapping[str, Path], cache: DigestCache) -> dict[str, str]:
    """Setting -> digest of the files of the folder that it names.

    Raises:
        MissingInputError: one of them is no folder.
    """
    digests = {}
    for name, folder in folders.items():
        if not folder.is_dir():
            raise MissingInputError(f"{folder} is not a folder; name one that holds the files of a model")
        digests[name] = cache.place(folder, f"hashing {name}")
    return digests
