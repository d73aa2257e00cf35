"""Writing to disk: atomic files, and full disks that end in one clear line."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, DiskFullError, MissingInputError

TEMPORARY = ".tmp"
_FULL_DISK_CODES = {errno.ENOSPC, errno.EDQUOT}


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
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
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
