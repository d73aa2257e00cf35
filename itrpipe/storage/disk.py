"""Writing to disk: atomic files, and disks that are full or do not answer, which end in one clear line."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from itrpipe.errors import DataError, DiskFullError, ItrpipeError, MissingInputError, UnavailableError, reason_of

AGAIN = "remove it and run the same command again"
TEMPORARY = ".tmp"
_STAMP = b"sha256 of this file: "
STAMP_HERE = (_STAMP.decode() + "with these dots instead").ljust(len(_STAMP) + 64, ".")
"""The text that a file holds where `stamped` writes the digest of its content; of the same length."""
_STAMPED = re.compile(_STAMP + rb"[0-9a-f]{64}")
CHECKSUM = "checksum"
"""Key of the stamp in JSON."""
_CHUNK = 1 << 22
_writers = itertools.count()
"""Numbers the writers of this process, since its threads may write the same file at once."""
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of linking that say that a file cannot have a second name there."""
_REMEDIES = {
    getattr(errno, code): remedy
    for codes, remedy in {
        "EACCES EPERM": "check its permissions and those of the folders above it, then run the same command again",
        "EROFS": "the file system is read-only; mount it writable or choose another folder with --data",
        "ENOLCK ENOSYS": "this file system gives no locks; mount it with locks or choose another folder with --data",
        "ENAMETOOLONG": "give it a shorter name, or choose a shorter path",
        "ELOOP": "links lead in a circle; replace one of them",
        "EMFILE ENFILE": "too many files are open; raise the limit (`ulimit -n 4096`) and run the same command again",
        "EIO ESTALE ETIMEDOUT EBUSY ENXIO ENODEV ENOTCONN EHOSTDOWN EHOSTUNREACH ECONNRESET": (
            "the disk or network file system does not answer; check it and run the same command again"
        ),
    }.items()
    for code in codes.split()
}
"""Errors that say nothing about the content of a file, and what to do about them."""
OF_THE_FILE = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENXIO,
}
"""Errors of opening that say something of the file or its path; others say something of the disk."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes its place in the end, so that a reader sees the old content or the new one, never a part.

    Raises:
        DiskFullError: no space is left.
        UnavailableError: it cannot be written now.
    """
    writer = f"{socket.gethostname()}.{os.getpid()}-{next(_writers)}"
    temporary = path.with_name(f".{path.name}.{writer}{TEMPORARY}")
    with on_disk(path):
        try:
            with temporary.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a whole file; see `whole_file`."""
    with whole_file(path) as stream:
        stream.write(content)


def remove_leftovers(folder: Path) -> None:
    """Removes from a folder what processes of this machine, killed in the middle of `whole_file`, have left there."""
    for path in folder.glob(f".*.{glob.escape(socket.gethostname())}.*{TEMPORARY}"):
        process = path.name.rpartition("-")[0].rpartition(".")[2]
        if process.isdigit():
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except PermissionError:  # it runs, for another user
                continue


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
    content = path.read_bytes()
    with reading(path, "JSON", "remove it and rerun"):
        return json.loads(content)


def unavailable(error: BaseException, path: Path | None = None) -> ItrpipeError | None:
    """The error that tells a user what cannot be read or written now, and what to do.

    Args:
        error: of the operating system, or any other.
        path: what was to be read or written, where the error does not name it.

    Returns:
        A DiskFullError or an UnavailableError; None where the error may say something about the content of a file.
    """
    if not isinstance(error, OSError):
        return None
    reason = os.strerror(error.errno or 0)
    named = error.filename or path
    if error.errno in _REMEDIES:
        return UnavailableError(
            f"{named or 'a file'} cannot be read or written now ({reason}); {_REMEDIES[error.errno]}"
        )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    lacks = f"no space left ({reason})"
    remedy = "free some"
    if path := path or named:
        found = os.statvfs(_existing_parent(Path(str(path))))
        free = f"{found.f_bavail * found.f_frsize / 2**20:,.0f} MiB free"
        lacks = f"no space left while writing {path} ({reason}, {free})"
        if found.f_files and not found.f_favail:
            lacks = f"no room for another file while writing {path} ({found.f_files:,} at most)"
            remedy = "remove some"
    return DiskFullError(f"{lacks}; {remedy} and run the same command again, it goes on where it stopped")


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turns errors that say that a file cannot be read or written now into one line; all others pass.

    Raises:
        DiskFullError: no space or quota is left.
        UnavailableError: see `unavailable`.
    """
    try:
        yield
    except OSError as error:
        raise unavailable(error, path) or error from None


@contextlib.contextmanager
def reading(where: Path | str, what: str, remedy: str) -> Iterator[None]:
    """Turns whatever a library raises over a damaged file into one line; errors of our own pass.

    Args:
        where: the file, and the place in it.
        what: the file should be, for the message.
        remedy: likewise.

    Raises:
        UnavailableError: it cannot be read now.
        DataError: it is not what it should be.
    """
    try:
        yield
    except ItrpipeError:
        raise
    except Exception as error:  # no library lists what damage makes it raise
        damage = DataError(f"{where} cannot be read as {what} ({reason_of(error)}); {remedy}")
        raise unavailable(error, Path(where)) or damage from error


def link_files(source: Path, target: Path) -> None:
    """Give the files of a folder a second name below another, or copy them where a disk has no such links.

    Args:
        source: folder of files that nothing changes in place.
        target: folder that is not there yet.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    source.stat()  # a folder that is missing has no files, which would pass for an empty one
    for path in sorted(source.rglob("*")):
        if path.is_dir():
            continue
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, link)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copy(path, link)


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
        UnavailableError: the disk or its permissions do not allow it now.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = MissingInputError(f"{path} cannot be created ({error.strerror}); choose another folder with --data")
        raise unavailable(error, path) or told from None


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
    try:
        tempfile.NamedTemporaryFile(prefix=f".{path.name}.", suffix=TEMPORARY, dir=path.absolute().parent).close()
    except OSError as error:
        error.filename = path  # and not the name that was tried
        told = UnavailableError(f"{path} cannot be written ({error.strerror}); name a file in another folder")
        raise unavailable(error) or told from None


def file_digest(path: Path, on_read: Callable[[int], None] = lambda count: None) -> str:
    """sha256 of a file's bytes as 64 hexadecimal digits.

    Args:
        path: the file.
        on_read: called with the number of bytes of every chunk.

    Raises:
        OSError: it cannot be read.
    """
    total = hashlib.sha256()
    for chunk in _chunks(path):
        total.update(chunk)
        on_read(len(chunk))
    return total.hexdigest()


def stamped(content: bytes) -> bytes:
    """Replaces `STAMP_HERE` in a file's content by the digest of all of it.

    The stamp lets a file tell by itself whether it is as it was written: one that is overwritten again and again, such
    as a checkpoint, or one that no manifest lists yet. JSON, safetensors, Parquet and Arrow hold it in their metadata.
    """
    assert STAMP_HERE.encode() in content
    return content.replace(STAMP_HERE.encode(), stamp(hashlib.sha256(content).hexdigest()))


def stamp(digest: str) -> bytes:
    """Return what stands in place of `STAMP_HERE` in a file of this digest."""
    return _STAMP + digest.encode()


def check_stamp(path: Path, remedy: str, content: bytes | None = None) -> None:
    """Compares a file with its stamp.

    Args:
        path: the file.
        remedy: what to do when it is damaged.
        content: all of it, where it was read already; otherwise the stamp has to stand near its beginning.

    Raises:
        DataError: it has no stamp, or another content than it was written with.
        OSError: it cannot be read.
    """
    chunks = _chunks(path) if content is None else iter([content])
    first = next(chunks, b"")
    found = _STAMPED.search(first)
    if found is None:
        raise DataError(f"{path} has no checksum: it is damaged; {remedy}")
    total = hashlib.sha256(first.replace(found[0], STAMP_HERE.encode()))
    for chunk in chunks:
        total.update(chunk)
    if found[0] != stamp(total.hexdigest()):
        raise DataError(f"{path} does not match its own checksum; {remedy}")


def _chunks(path: Path) -> Iterator[bytes]:
    """The content of a file; the next chunk is read while the one before is looked at.

    Hashing takes about as long as reading. A memory map would be as fast, but an error of the disk would end the
    process.
    """
    with path.open("rb", buffering=0) as stream, ThreadPoolExecutor(1) as reader:
        chunk = stream.read(_CHUNK)
        while chunk:
            following = reader.submit(stream.read, _CHUNK) if len(chunk) == _CHUNK else None
            yield chunk
            chunk = following.result() if following else stream.read(_CHUNK)


def write_stamped_json(path: Path, content: Mapping[str, Any]) -> None:
    """`write_bytes` of a JSON object with a stamp in it; NaN and infinity are refused."""
    stamped_content = {CHECKSUM: STAMP_HERE, **content}
    text = json.dumps(stamped_content, indent=1, allow_nan=False, ensure_ascii=False)
    write_bytes(path, stamped(text.encode() + b"\n"))


def read_stamped_json(path: Path, remedy: str, *, strict: bool = True) -> dict[str, Any]:
    """Reads what `write_stamped_json` wrote.

    Args:
        path: the file.
        remedy: what to do when it is damaged.
        strict: refuse a file without a stamp, as somebody may write by hand.

    Raises:
        DataError: it is not valid JSON or not as it was written.
        OSError: it cannot be read.
    """
    content = b"" if path.is_fifo() else path.read_bytes()  # nobody may ever write into a pipe
    if strict or _STAMPED.search(content):
        check_stamp(path, remedy, content)
    with reading(path, "a JSON object", remedy):
        known: dict[str, Any] = json.loads(content)
        known.pop(CHECKSUM, None)
        return known


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
