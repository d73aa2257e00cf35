"""Writing to disk: atomic files, and disks that are full or do not answer, which end in one clear line."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, DiskFullError, ItrpipeError, MissingInputError, UnavailableError

TEMPORARY = ".tmp"
_FULL_DISK_CODES = {errno.ENOSPC, errno.EDQUOT}
_NO_ANSWER = "the disk or network file system does not answer; check it and run the same command again"
_PERMISSIONS = "check its permissions and those of the folders above it, then run the same command again"
_NAMES = "give it a shorter name, or choose a shorter path"
_FILES = "too many files are open; raise the limit (`ulimit -n 4096`) and run the same command again"
_READ_ONLY = "the file system is read-only; mount it writable or choose another folder with --data"
_REMEDIES = {
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.EROFS: _READ_ONLY,
    errno.ENOLCK: "this file system gives no locks; mount it with locks or choose another folder with --data",
    errno.ENAMETOOLONG: _NAMES,
    errno.ELOOP: "links lead in a circle; replace one of them",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY, errno.ENXIO, errno.ENODEV), _NO_ANSWER),
    **dict.fromkeys((errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNRESET), _NO_ANSWER),
}
"""Errors that say nothing about the content of a file, and what to do about them."""


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old content or the new one, never a part.

    Raises:
        DiskFullError: no space is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    with full_disk_as_error(path):
        try:
            with temporary.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """`write_bytes` of JSON with sorted keys; NaN and infinity are refused."""
    write_text(path, json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads JSON.

    Raises:
        DataError: the file is not valid JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # also whole numbers of thousands of digits
        raise DataError(f"{path} is not valid JSON: {error}; remove it and rerun") from None


@contextlib.contextmanager
def full_disk_as_error(path: Path) -> Iterator[None]:
    """Turns the operating system's full-disk errors into one line that says what to do.

    Raises:
        DiskFullError: no space or quota is left.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL_DISK_CODES:
            raise
        free = shutil.disk_usage(_existing_parent(path)).free
        raise DiskFullError(
            f"no space left while writing {path} ({free / 2**20:,.0f} MiB free); "
            "free some and run the same command again, it goes on where it stopped"
        ) from error


def is_unavailable(error: BaseException) -> bool:
    """Whether an error says that a file cannot be read or written now, and nothing about its content."""
    return isinstance(error, OSError) and error.errno in _REMEDIES


def unavailable(error: OSError, path: Path | None = None) -> UnavailableError:
    """The error that tells a user what cannot be read or written now, and what to do.

    Args:
        error: for which `is_unavailable` holds.
        path: what was to be read or written, where the error does not name it.
    """
    named = path if error.filename is None else error.filename
    what = f"{named} cannot be read or written now" if named is not None else "a file cannot be read or written now"
    return UnavailableError(f"{what} ({os.strerror(error.errno or 0)}); {_REMEDIES[error.errno or 0]}")


def reading_error(error: Exception, path: Path, otherwise: ItrpipeError) -> ItrpipeError:
    """What to raise when reading a file failed: that it cannot be read now, or else what its content lacks."""
    if isinstance(error, OSError) and is_unavailable(error):
        return unavailable(error, path)
    return otherwise


def require_space(path: Path, needed: int, what: str) -> None:
    """Checks before a long job that its output will fit.

    Args:
        path: where it will be written.
        needed: bytes.
        what: what needs them, for the message.

    Raises:
        DiskFullError: fewer bytes are free.
    """
    free = shutil.disk_usage(_existing_parent(path)).free
    if free < needed:
        raise DiskFullError(
            f"{what} needs {needed / 2**20:,.1f} MiB but {free / 2**20:,.1f} MiB are free at {path}; "
            "free some or choose another folder with --data"
        )


def make_folder(path: Path) -> None:
    """Creates a folder and its parents.

    Raises:
        DiskFullError: no space is left.
        MissingInputError: it cannot be created there.
    """
    with full_disk_as_error(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise MissingInputError(
                f"{path} cannot be created ({error.strerror}); choose another folder with --data"
            ) from None


def require_writable(path: Path, option: str) -> None:
    """Checks before a long job that a file can be written at its end; what lies there stays as it is.

    Args:
        path: the file.
        option: that names it, for the message.

    Raises:
        MissingInputError: there is no folder for it.
        UnavailableError: the folder cannot be written to.
        DiskFullError: no space is left.
    """
    if not path.absolute().parent.is_dir():
        raise MissingInputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    with full_disk_as_error(path):
        try:
            descriptor, trial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.absolute().parent)
        except OSError as error:
            if error.errno in _FULL_DISK_CODES:
                raise
            remedy = _REMEDIES.get(error.errno or 0, "name a file in another folder")
            raise UnavailableError(f"{option} {path} cannot be written ({error.strerror}); {remedy}") from None
        os.close(descriptor)
        os.unlink(trial)


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Forces a file or a folder entry to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _existing_parent(path: Path) -> Path:
    """Nearest ancestor that exists."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())
