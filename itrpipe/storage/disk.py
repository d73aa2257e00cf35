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
_writer_numbers = itertools.count()
"""Tells the writers of this process apart, since its threads may write the same file at once."""
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of linking that say that a file cannot have a second name there."""
_PERMISSIONS = "check its permissions and those of the folders above it, then run the same command again"
_LOCKS = "this file system gives no locks; mount it with locks or choose another folder with --data"
_OPEN_FILES = "too many files are open; raise the limit (`ulimit -n 4096`) and run the same command again"
_NO_ANSWER = "the disk or network file system does not answer; check it and run the same command again"
_REMEDIES = {
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.EROFS: "the file system is read-only; mount it writable or choose another folder with --data",
    errno.ENOLCK: _LOCKS,
    errno.ENOSYS: _LOCKS,
    errno.ENAMETOOLONG: "give it a shorter name, or choose a shorter path",
    errno.ELOOP: "links lead in a circle; replace one of them",
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.EIO: _NO_ANSWER,
    errno.ESTALE: _NO_ANSWER,
    errno.ETIMEDOUT: _NO_ANSWER,
    errno.EBUSY: _NO_ANSWER,
    errno.ENXIO: _NO_ANSWER,
    errno.ENODEV: _NO_ANSWER,
    errno.ENOTCONN: _NO_ANSWER,
    errno.EHOSTDOWN: _NO_ANSWER,
    errno.EHOSTUNREACH: _NO_ANSWER,
    errno.ECONNRESET: _NO_ANSWER,
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
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that takes its place in the end, so that a reader sees the old or the new content, never a part.

    Raises:
        DiskFullError: no space is left.
        UnavailableError: it cannot be written now.
    """
    writer = f"{socket.gethostname()}.{os.getpid()}-{next(_writer_numbers)}"
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
    """Write a whole file; see `atomic_file`."""
    with atomic_file(path) as stream:
        stream.write(content)


def remove_leftovers(folder: Path) -> None:
    """Remove the files that killed processes of this machine have left in a folder, in the middle of `atomic_file`."""
    for path in folder.glob(f".*.{glob.escape(socket.gethostname())}.*{TEMPORARY}"):
        writer, _, _ = path.name.rpartition("-")
        _, _, process = writer.rpartition(".")
        if process.isdigit():
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except PermissionError:  # it runs, for another user
                continue


def write_text(path: Path, content: str) -> None:
    """Write a whole file of UTF-8 text; see `atomic_file`."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Write a whole file of JSON with sorted keys; NaN and infinity are refused."""
    write_text(path, json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        DataError: the file is not valid JSON.
    """
    content = path.read_bytes()
    with reading(path, "JSON", "remove it and rerun"):
        return json.loads(content)


def unavailable(error: BaseException, path: Path | None = None) -> ItrpipeError | None:
    """Return the error that tells a user which file cannot be read or written now, and the remedy.

    Args:
        error: any error; those of the operating system are recognised.
        path: file that was to be read or written, where the error does not name it.

    Returns:
        A DiskFullError or an UnavailableError; None where the error may say something about the content of a file.
    """
    if not isinstance(error, OSError):
        return None
    reason = os.strerror(error.errno or 0)
    if error.errno in _REMEDIES:
        file = error.filename or path or "a file"
        return UnavailableError(f"{file} cannot be read or written now ({reason}); {_REMEDIES[error.errno]}")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    path = path or error.filename
    shortage = f"no space left ({reason})"
    remedy = "free some"
    if path:
        status = os.statvfs(_existing_parent(Path(str(path))))
        free = status.f_bavail * status.f_frsize / 2**20
        shortage = f"no space left while writing {path} ({reason}, {free:,.0f} MiB free)"
        if status.f_files and not status.f_favail:
            shortage = f"no room for another file while writing {path} ({status.f_files:,} at most)"
            remedy = "remove some"
    return DiskFullError(f"{shortage}; {remedy} and run the same command again, it goes on where it stopped")


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn errors that say that a file cannot be read or written now into one line; all others pass.

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
    """Turn whatever a library raises over a damaged file into one line; errors of our own pass.

    Args:
        where: the file, and the place in it.
        what: description of the file that is expected, for the message.
        remedy: for the message.

    Raises:
        UnavailableError: it cannot be read now.
        DataError: it is damaged, or another kind of file.
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
    """Check before a long job that its output will fit.

    Args:
        path: where it will be written.
        needed: bytes.
        what: name of the files that need them, for the message.

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
    """Create a folder and its parents.

    Raises:
        DiskFullError: no space is left.
        MissingInputError: it cannot be created there.
        UnavailableError: the disk or its permissions do not allow it now.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refusal = MissingInputError(f"{path} cannot be created ({error.strerror}); choose another folder with --data")
        raise unavailable(error, path) or refusal from None


def require_writable(path: Path, option: str) -> None:
    """Check before a long job that a file can be written at its end; a file that lies there stays as it is.

    Args:
        path: the file.
        option: option that names it, for the message.

    Raises:
        MissingInputError: there is no folder for it.
        UnavailableError: the folder cannot be written to.
        DiskFullError: no space is left.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise MissingInputError(f"{option} {path}: there is no folder {path.parent}; make it first")
    try:
        tempfile.NamedTemporaryFile(prefix=f".{path.name}.", suffix=TEMPORARY, dir=folder).close()
    except OSError as error:
        error.filename = path  # and not the name that was tried
        refusal = UnavailableError(f"{path} cannot be written ({error.strerror}); name a file in another folder")
        raise unavailable(error) or refusal from None


def file_digest(path: Path, on_read: Callable[[int], None] = lambda count: None) -> str:
    """Return the sha256 of a file's bytes as 64 hexadecimal digits.

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
    """Replace `STAMP_HERE` in a file's content by the digest of all of it.

    The stamp lets a file tell by itself whether it is as it was written: one that is overwritten again and again, such
    as a checkpoint, or one that no manifest lists yet. JSON, safetensors, Parquet and Arrow hold it in their metadata.
    """
    assert STAMP_HERE.encode() in content
    return content.replace(STAMP_HERE.encode(), stamp(hashlib.sha256(content).hexdigest()))


def stamp(digest: str) -> bytes:
    """Return the text that takes the place of `STAMP_HERE` in a file of this digest."""
    return _STAMP + digest.encode()


def check_stamp(path: Path, remedy: str, content: bytes | None = None) -> None:
    """Compare a file with its stamp.

    Args:
        path: the file.
        remedy: advice for the message, if it is damaged.
        content: all of it, where it was read already; otherwise the stamp has to stand near its beginning.

    Raises:
        DataError: it has no stamp, or another content than it was written with.
        OSError: it cannot be read.
    """
    chunks = _chunks(path) if content is None else iter([content])
    first = next(chunks, b"")
    match = _STAMPED.search(first)
    if match is None:
        raise DataError(f"{path} has no checksum: it is damaged; {remedy}")
    total = hashlib.sha256(first.replace(match[0], STAMP_HERE.encode()))
    for chunk in chunks:
        total.update(chunk)
    if match[0] != stamp(total.hexdigest()):
        raise DataError(f"{path} does not match its own checksum; {remedy}")


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file; the next chunk is read while the caller works on the one before.

    Hashing takes about as long as reading. A memory map would be as fast, but an error of the disk would end the
    process.
    """
    with path.open("rb", buffering=0) as stream, ThreadPoolExecutor(1) as reader:
        chunk = stream.read(_CHUNK)
        while chunk:
            following = None
            if len(chunk) == _CHUNK:  # a small file needs no thread
                following = reader.submit(stream.read, _CHUNK)
            yield chunk
            chunk = following.result() if following else stream.read(_CHUNK)


def write_stamped_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a whole file of a JSON object with a stamp in it; NaN and infinity are refused."""
    stamped_content = {CHECKSUM: STAMP_HERE, **content}
    text = json.dumps(stamped_content, indent=1, allow_nan=False, ensure_ascii=False)
    write_bytes(path, stamped(text.encode() + b"\n"))


def read_stamped_json(path: Path, remedy: str, *, strict: bool = True) -> dict[str, Any]:
    """Read a file that `write_stamped_json` wrote.

    Args:
        path: the file.
        remedy: advice for the message, if it is damaged.
        strict: refuse a file without a stamp, which somebody may have written by hand.

    Raises:
        DataError: it is not valid JSON or not as it was written.
        OSError: it cannot be read.
    """
    content = b"" if path.is_fifo() else path.read_bytes()  # nobody may ever write into a pipe
    if strict or _STAMPED.search(content):
        check_stamp(path, remedy, content)
    with reading(path, "a JSON object", remedy):
        values: dict[str, Any] = json.loads(content)
        values.pop(CHECKSUM, None)
        return values


def sync(path: Path) -> None:
    """Force a file or a folder entry to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _existing_parent(path: Path) -> Path:
    """Return the path itself or its nearest ancestor, whichever exists."""
    while not path.exists():
        path = path.absolute().parent
    return path
