"""A folder for others: made beside its place, recorded file by file, and put there whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, UsageError
from itrpipe.storage.artifact import EXPORT
from itrpipe.storage.disk import file_digest, make_folder, on_disk, read_json, require_writable, sync, write_json


def open_target(root: Path, to: Path, *, force: bool) -> Path:
    """Return the folder that `--to` names, absolute, if it can be made; call before anything is computed.

    Args:
        root: the data folder.
        to: as given.
        force: whether an earlier export may be replaced.

    Raises:
        UsageError: it is no place for an export, or something is there that may not be replaced.
        MissingInputError: no folder can be made there.
        UnavailableError: nothing can be written there.
    """
    target = to.expanduser().resolve()
    if not str(target).isprintable():
        raise UsageError(f"--to {str(target)!r} is a name that many programs cannot open; name another folder")
    if target.is_relative_to(root.resolve()):
        raise UsageError(f"--to {target} lies in the data folder, which holds artifacts only; name another folder")
    _refuse_taken(target, force=force)
    parent = next(path for path in target.parents if path.exists())
    require_writable(parent / target.name, "--to")
    return target


def _refuse_taken(target: Path, *, force: bool) -> None:
    if target.exists() and not target.is_dir():
        raise UsageError(f"--to {target} is a file; name a folder that does not exist yet")
    if not target.exists() or not any(target.iterdir()):
        return
    if not force:
        raise UsageError(
            f"--to {target} exists and is not empty; name another folder, or replace an earlier export with --force"
        )
    reason = _not_an_export(target)
    if reason:
        raise UsageError(f"--to {target} {reason}, so --force does not replace it; name another folder")


def _not_an_export(target: Path) -> str:
    """Return why a folder is not one that `new_folder` made, or holds something else than that; else empty."""
    if not (target / EXPORT).is_file():
        return "was not made by itrpipe export"
    try:
        recorded = dict(read_json(target / EXPORT)["files"])
    except (DataError, KeyError, TypeError, ValueError):
        return f"has a damaged {EXPORT}"
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        if not path.is_dir() and name != EXPORT and recorded.get(name) != _facts(path):
            return f"holds {name}, which itrpipe export did not write, or not like this"
    return ""


@contextlib.contextmanager
def new_folder(
    target: Path,
    facts: Mapping[str, Any],
    *,
    force: bool,
) -> Iterator[Path]:
    """Yield an empty folder beside the target and, when its content was written, put it in the target's place.

    Whatever goes wrong before leaves the target as it is and nothing else behind. What a killed export left there is
    removed by the next one.

    Args:
        target: absolute.
        facts: what the record tells beside the files.
        force: replace an earlier export.

    Raises:
        UsageError: another process makes this export, or see `open_target`.
        DiskFullError: no space is left.
    """
    work = target.with_name(f".{target.name}.exporting")
    earlier = target.with_name(f".{target.name}.replaced")
    with on_disk(target), _locked(work):
        for path in work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        try:
            yield work
            files = {}
            for path in sorted(work.rglob("*")):
                if path.is_file():
                    sync(path)
                    files[path.relative_to(work).as_posix()] = _facts(path)
            write_json(work / EXPORT, {**facts, "files": files})
            _refuse_taken(target, force=force)
            if target.exists():
                shutil.rmtree(earlier, ignore_errors=True)
                os.replace(target, earlier)
            os.replace(work, target)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        sync(target.parent)
        shutil.rmtree(earlier, ignore_errors=True)


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Make a folder that no other process writes to meanwhile."""
    make_folder(work)
    folder = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not work.exists() or not os.path.samestat(os.fstat(folder), work.stat()):
            raise BlockingIOError  # whoever made it has put it in its place meanwhile
        yield
    except BlockingIOError:
        raise UsageError(f"another process writes {work}; wait for it, or name another folder") from None
    finally:
        os.close(folder)


def _facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}
