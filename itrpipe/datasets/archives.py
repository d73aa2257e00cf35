"""Photographs in tar files, as WebDataset packs them: `SHARD.tar/KEY.jpg` names a member as if the file were a folder.

Nothing is unpacked: the headers of a file are read once, and a photograph from its place in the file.
"""

from __future__ import annotations

import tarfile
from functools import lru_cache
from pathlib import Path

from itrpipe.errors import DataError

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Of photographs in the formats that are decoded, see `itrpipe.datasets.pictures`; in any case of letters."""
UNREAD = (
    ".heic",
    ".heif",
    ".hif",
    ".avif",
    ".jxl",
    ".jp2",
    ".dng",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".orf",
    ".rw2",
    ".raf",
    ".pef",
    ".srw",
)
"""Endings of photographs in formats that are not decoded."""
TAR = ".tar"
_HELD = 64
"""Files of which a process knows the members."""


def in_archive(path: Path) -> tuple[Path, str] | None:
    """The tar file that a path leads into, and the member's name; None of other paths."""
    for archive in path.parents:
        if archive.suffix == TAR and archive.is_file():
            return archive, path.relative_to(archive).as_posix()
    return None


def members(archive: Path) -> dict[str, tuple[int, int]]:
    """Name -> offset and size of the files in a tar file; of two of one name the later.

    Bytes of a name that are no UTF-8 become escapes, such as `\\xff`.

    Raises:
        DataError: it is no tar file, or damaged. The message is the reason alone.
        OSError: it cannot be read.
    """
    status = archive.stat()
    return _members(archive, status.st_mtime_ns, status.st_size)


@lru_cache(_HELD)
def _members(archive: Path, changed: int, size: int) -> dict[str, tuple[int, int]]:
    try:
        with tarfile.open(archive, "r:", encoding="utf-8", errors="backslashreplace") as tar:
            found = {
                each.name.removeprefix("./"): (each.offset_data, each.size)
                for each in tar
                if each.isreg() and not each.issparse()
            }
    except tarfile.TarError as error:
        raise DataError(f"{archive.name} is no tar file that can be read ({error})") from error
    return found


def read_member(archive: Path, name: str) -> bytes:
    """The content of a member.

    Raises:
        DataError: it is not there, or the file ends before. The message is the reason alone.
        OSError: it cannot be read.
    """
    if name not in members(archive):
        raise DataError(f"is not in {archive.name}")
    offset, size = members(archive)[name]
    with archive.open("rb") as stream:
        stream.seek(offset)
        content = stream.read(size)
    if len(content) < size:
        raise DataError(f"is cut off: {archive.name} ends early")
    return content
