"""Photographs in tar files, as WebDataset packs them: `SHARD.tar/KEY.jpg` names a member as if the file were a folder.

Nothing is unpacked: the headers of a file are read once, and a photograph from its place in the file.
"""

import re
import tarfile
import unicodedata
from functools import lru_cache
from pathlib import Path

from itrpipe.errors import DataError, reason_of

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Endings of photographs in formats that are decoded, see `itrpipe.datasets.pictures`; in any case of letters."""
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
_LONGEST_PADDING = 1 << 20
"""Bytes of zeros at the end of a tar file; a download that reserves its space leaves more."""
_AGAIN = "fetch or make it again"
_COMPRESSED = re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|PK")
"""Beginnings of files of gzip, bzip2, xz, zstd and zip."""


def in_archive(path: Path) -> tuple[Path, str] | None:
    """Return the tar file that a path leads into, and the member's name; None of other paths."""
    for archive in path.parents:
        if archive.suffix.lower() == TAR and archive.is_file():
            return archive, path.relative_to(archive).as_posix()
    return None


def path_parts(path: str) -> list[str]:
    """Returns the names in a path, without empty ones and `.`."""
    # pathlib gives the same, but for 100,000 paths it costs seconds.
    return [part for part in path.split("/") if part not in ("", ".")]


def members(archive: Path) -> dict[str, tuple[int, int]]:
    """Read offset and size of the files in a tar file, by their names.

    A name is relative, without `.`, and in Unicode's form NFC. Bytes of a name that are no UTF-8 become escapes, such
    as `\\xff`.

    Raises:
        DataError: it is no tar file, damaged or not whole, or two files in it have one name. The message is the reason
            alone.
        OSError: it cannot be read.
    """
    status = archive.stat()
    return _members(archive, status.st_mtime_ns, status.st_size)


@lru_cache(_HELD)
def _members(archive: Path, changed: int, size: int) -> dict[str, tuple[int, int]]:
    found = {}
    try:
        with (
            archive.open("rb") as stream,
            tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="backslashreplace") as tar,
        ):
            for member in tar:
                name = "/".join(path_parts(unicodedata.normalize("NFC", member.name)))
                if member.issparse():
                    raise DataError(f"holds {name} as a sparse file; pack it without --sparse")
                # After a negative size tarfile would read the same headers for ever.
                if member.size < 0 or tar.offset < member.offset_data or member.offset_data + member.size > size:
                    raise DataError(f"ends before {name} does, or gives it a wrong size; {_AGAIN}")
                if not member.isreg():
                    continue
                if name in found:
                    raise DataError(f"holds {name} twice; give each file a name of its own")
                found[name] = member.offset_data, member.size
            # tarfile takes a damaged header for the end.
            stream.seek(tar.offset)
            padding = stream.read(_LONGEST_PADDING + 1)
    except (DataError, OSError):
        raise
    except Exception as error:  # tarfile does not list what damage makes it raise
        with archive.open("rb") as stream:
            if _COMPRESSED.match(stream.read(8)):
                raise DataError("is compressed and no tar file; unpack it") from error
        raise DataError(f"is no tar file that can be read ({reason_of(error)}); {_AGAIN}") from error
    if not padding or padding.strip(b"\0") or len(padding) > _LONGEST_PADDING:
        raise DataError(
            f"does not end at byte {tar.offset:,} as tar files do: it is damaged or not whole, or another one follows; "
            f"{_AGAIN}"
        )
    return found


def read_member(archive: Path, name: str) -> bytes:
    """Read the content of a member.

    Raises:
        DataError: it is not there, or the tar file cannot be used. The message is the reason alone.
        OSError: it cannot be read.
    """
    known = members(archive)
    if name not in known:
        raise DataError(f"is not in {archive.name}")
    offset, size = known[name]
    with archive.open("rb") as stream:
        stream.seek(offset)
        return stream.read(size)
