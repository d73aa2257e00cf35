"""Files of artifacts, checked on use: every reader learns whether a file still is what its stage has written.

Small files are hashed whenever they are read. A large one is hashed once for as long as its size, modification time
and inode stay as they are; what is known of a dataset's files lies in `data/<dataset>/checked.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, ItrpipeError
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import (
    MANIFEST,
    Manifest,
    OutputFile,
    collect_command,
    file_damage,
    is_finished,
    read_manifest,
)
from itrpipe.storage.disk import file_digest, read_json, reading, unavailable_as_error
from itrpipe.storage.files import EXPORT
from itrpipe.storage.sources import DigestCache

CHECKED = "checked.json"
SMALL = 4 << 20
"""Bytes below which a file is hashed whenever it is read."""
_DEEPEST = 3
"""Folders between the file of an artifact and its manifest, at most."""
_EXPORTED = "export it again, or fetch it again"
_caches: dict[Path, DigestCache] = {}
_manifests: dict[Path, tuple[tuple[int, int, int], Manifest]] = {}
_trusted = False


def trust_large_files(trusted: bool) -> None:
    """Whether large files count as unchanged without a look at their content, in this process."""
    global _trusted
    _trusted = trusted


def checked(path: Path) -> Path:
    """Returns the path of a file that is about to be read, once it is as the manifest of its artifact says.

    A file of an exported folder is compared with its `export.json`. A file of neither, and one that is not listed, is
    returned as it is.

    Raises:
        DataError: the file is damaged; it names the artifact and the commands that make it again.
        UnavailableError: the file or the manifest cannot be read now.
    """
    found = _artifact_of(path)
    if found is None:
        _check_exported(path)
        return path
    folder, manifest = found
    expected = manifest.outputs.get(path.relative_to(folder).as_posix())
    if expected is None:
        return path
    digest = _cached_digest(folder) if expected.bytes >= SMALL else file_digest
    damage = file_damage(path, expected, None if _trusted and expected.bytes >= SMALL else digest)
    if damage:
        raise DataError(
            f"{path} of {folder.parent.name}/{folder.name} {damage}; remove the artifact with "
            f"`{collect_command(folder, thorough=True)}` and make it again with `{manifest.command}`"
        )
    return path


def _check_exported(path: Path) -> None:
    for folder in list(path.parents)[:_DEEPEST]:
        if (folder / EXPORT).is_file():
            with reading(folder / EXPORT, "the files of an export", _EXPORTED):
                known = dict(read_json(folder / EXPORT)["files"]).get(path.relative_to(folder).as_posix())
                damage = file_damage(path, OutputFile.model_validate(known), file_digest) if known else None
            if damage:
                raise DataError(f"{path} {damage} in {EXPORT}; {_EXPORTED}")
            return


def damage_of(path: Path) -> ItrpipeError | None:
    """What `checked` would raise, for a process whose errors reach nobody."""
    try:
        checked(path)
    except ItrpipeError as error:
        return error
    return None


def read_checked_json(path: Path) -> Any:
    """Reads a JSON file of an artifact.

    Raises:
        DataError: it is damaged; see `checked`.
        UnavailableError: it cannot be read now.
    """
    return read_json(checked(path))


def remember_outputs(folder: Path, manifest: Manifest) -> None:
    """Keeps the digests of an artifact's large files, which were hashed when it was finished."""
    large = [name for name, output in manifest.outputs.items() if output.bytes >= SMALL]
    if large:
        cache = _cache_of(folder)
        for name in large:
            cache.remember(folder / name, manifest.outputs[name].sha256)
        cache.save()


def _artifact_of(path: Path) -> tuple[Path, Manifest] | None:
    for folder in filter(is_finished, list(path.parents)[:_DEEPEST]):
        try:
            with unavailable_as_error(folder / MANIFEST):
                status = os.stat(folder / MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return folder, _manifest(folder, (status.st_size, status.st_mtime_ns, status.st_ino))
    return None


def _manifest(folder: Path, signature: tuple[int, int, int]) -> Manifest:
    known = _manifests.get(folder)
    if known is None or known[0] != signature:
        known = _manifests[folder] = signature, read_manifest(folder)
    return known[1]


def _cache_of(folder: Path) -> DigestCache:
    dataset = folder.absolute().parents[1]
    if dataset not in _caches:
        _caches[dataset] = DigestCache(dataset / CHECKED, Reporter())
    return _caches[dataset]


def _cached_digest(folder: Path) -> Callable[[Path], str]:
    cache = _cache_of(folder)

    def digest(path: Path) -> str:
        value = cache.digest(path)
        cache.save()
        return value

    return digest
