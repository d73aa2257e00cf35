"""A folder for others: made beside its place, recorded file by file, and put there whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.storage.artifact import EXPORT
from itrpipe.storage.disk import file_digest, make_folder, on_disk, read_json, require_writable, sync, write_json


def open_target(root: Path, to: Path, *, force: bool, dry_run: bool, say: Callable[[str], None]) -> Path:
    """The folder that `--to` names, once it is clear that it can be made; call before anything is computed.

    An earlier export that a killed `--force` had moved aside is put back, except in a dry run.

    Args:
        root: the data folder.
        to: as given.
        force: whether an earlier export may be replaced.
        dry_run: change nothing.
        say: tells what was put back.

    Returns:
        The absolute path.

    Raises:
        UsageError: it is no place for an export, or something is there that may not be replaced.
        MissingInputError: no folder can be made there.
    """
    target = to.expanduser().resolve()
    if not target.name:
        raise UsageError(f"--to {target} is the root of all folders; name one that does not exist yet")
    if not str(target).isprintable():
        raise UsageError(f"--to {str(target)!r} is a name that many programs cannot open; name another folder")
    if target.is_relative_to(root.resolve()):
        raise UsageError(f"--to {target} lies in the data folder, which holds artifacts only; name another folder")
    if not dry_run and restore(target):
        say(f"{target}: the earlier export was put back, because replacing it was interrupted")
    check_target(target, force=force)
    return target


def check_target(target: Path, *, force: bool) -> None:
    """Call before anything is computed.

    Args:
        target: folder to be made, absolute.
        force: whether an earlier export may be replaced.

    Raises:
        UsageError: something is there that may not be replaced.
        MissingInputError: no folder can be made there.
        UnavailableError: nothing can be written there.
    """
    parent = next(path for path in target.parents if path.exists())
    if not parent.is_dir():
        raise MissingInputError(f"--to {target} cannot be made, because {parent} is no folder; name another folder")
    require_writable(parent / target.name, "--to")
    if target.exists() and not target.is_dir():
        raise UsageError(f"--to {target} is a file; name a folder that does not exist yet")
    if not target.exists() or not any(target.iterdir()):
        return
    if not force:
        raise UsageError(
            f"--to {target} exists and is not empty; name another folder, or replace an earlier export with --force"
        )
    if (reason := _not_an_export(target)) is not None:
        raise UsageError(f"--to {target} {reason}, so --force does not replace it; name another folder")


def _not_an_export(target: Path) -> str | None:
    """Why a folder is not one that `new_folder` made, or holds something else than that."""
    if not (target / EXPORT).is_file():
        return "was not made by itrpipe export"
    try:
        known = dict(read_json(target / EXPORT)["files"])
    except (DataError, KeyError, TypeError, ValueError):
        return f"has a damaged {EXPORT}"
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()} - {EXPORT}
    if others := [name for name in sorted(found) if known.get(name) != _facts(target / name)]:
        return f"holds {others[0]}, which itrpipe export did not write, or not like this"
    return None


@contextlib.contextmanager
def new_folder(
    target: Path,
    facts: Mapping[str, Any],
    *,
    force: bool,
    on_wait: Callable[[Path], None] = lambda work: None,
) -> Iterator[Path]:
    """Yields an empty folder beside the target and, when its content was written, puts it in the target's place.

    Whatever goes wrong before leaves the target as it is and nothing else behind.

    Args:
        target: absolute.
        facts: what the record tells beside the files.
        force: replace an earlier export.
        on_wait: called when another process makes this export; it is waited for.

    Raises:
        UsageError, MissingInputError: see `check_target`.
        DiskFullError: no space is left.
    """
    work, earlier = _beside(target)
    with on_disk(target), _alone(work, on_wait):
        for left in work.iterdir():  # by a run that was killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield work
            write_json(work / EXPORT, {**facts, "files": _recorded(work)})
            check_target(target, force=force)
            _put(work, target, earlier)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def restore(target: Path) -> bool:
    """Puts an export back that a killed `--force` had moved aside, and removes what that run has left.

    Returns:
        Whether an export was put back.
    """
    work, earlier = _beside(target)
    if not earlier.exists():
        return False
    with _alone(work, lambda work: None):
        lost = earlier.exists() and not target.exists()
        if lost:
            os.replace(earlier, target)
        shutil.rmtree(earlier, ignore_errors=True)
        shutil.rmtree(work)
    return lost


def _beside(target: Path) -> tuple[Path, Path]:
    """Where an export is made, and where the one that it replaces waits meanwhile."""
    return target.with_name(f".{target.name}.exporting"), target.with_name(f".{target.name}.replaced")


@contextlib.contextmanager
def _alone(work: Path, on_wait: Callable[[Path], None]) -> Iterator[None]:
    """Makes a folder that no other process uses meanwhile; a killed one may have left something there."""
    folder = _locked_folder(work, on_wait)
    try:
        yield
    finally:
        os.close(folder)


def _locked_folder(work: Path, on_wait: Callable[[Path], None]) -> int:
    """The descriptor of a folder that holds its lock, once no other process does."""
    while True:
        make_folder(work)
        with contextlib.suppress(FileNotFoundError), on_disk(work):
            folder = os.open(work, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait(work)
                fcntl.flock(folder, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(folder), os.stat(work)):
                return folder
            os.close(folder)  # the other process has put it in its target's place


def _recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """Name -> size and digest of every file, all of them forced to disk."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        sync(path)
        files[path.relative_to(folder).as_posix()] = _facts(path)
    return files


def _facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def _put(work: Path, target: Path, earlier: Path) -> None:
    if not target.exists():
        os.replace(work, target)
    else:
        os.replace(target, earlier)
        try:
            os.replace(work, target)
        except OSError:
            os.replace(earlier, target)
            raise
        shutil.rmtree(earlier)
    sync(target.parent)
