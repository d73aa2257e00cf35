"""Reads tar files, as WebDataset packs them: the place of each of their files is found once and stored.

The headers of a tar file are read once. The index of a large one goes into the user's cache folder
(`$XDG_CACHE_HOME/itrpipe/tar`), from where other processes and later commands map it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.errors import DataError, DiskFullError, UnavailableError
from itrpipe.storage.disk import check_stamp, make_folder

if TYPE_CHECKING:
    import pyarrow as pa

_HELD = 4_096
"""Tar files whose index a process keeps open."""
_WORTH_STORING = 1_000
"""Files in a tar file; the index of fewer is made as soon as it is found."""
_BLOCK = 512
_LONGEST_HEADER = 1 << 20
"""Bytes of an extended header, which holds a name; and of zeros at the end of a tar file, of which a download that
reserves its space leaves more."""
_FILES = (b"0", b"\0", b"7")
"""Types of headers, those of plain files."""
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices, folders and pipes, whatever size their headers say."""
_LONG_NAME = b"L"
_LONG_LINK = b"K"
_SPARSE = b"S"
_EXTENDED = b"x"
_COMMON = b"g"
_COMPRESSED = re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|PK")
"""Beginnings of files of gzip, bzip2, xz, zstd and zip."""
FETCH_AGAIN = "fetch or make it again"


def path_parts(path: str) -> list[str]:
    """Return the names in a path, without empty ones and `.`."""
    # pathlib gives the same, but for 100,000 paths it costs seconds.
    return [part for part in path.split("/") if part not in ("", ".")]


def tar_members(archive: Path) -> list[str]:
    """Return the names of the files in a tar file, in its order.

    A name is relative, without `.`, and in Unicode's form NFC. Bytes of a name that are no UTF-8 become escapes, such
    as `\\xff`.

    Raises:
        DataError: it is no tar file, damaged or not whole, or two files in it have one name. The message is the reason
            alone.
        OSError: it cannot be read.
    """
    return _index(archive).sort_by("offset")["name"].to_pylist()


def read_tar_member(archive: Path, name: str) -> bytes:
    """Read a file in a tar file.

    Raises:
        DataError, OSError: see `tar_members`; or there is no file of this name in it.
    """
    index = _index(archive)
    names = index["name"]
    row = bisect_left(names, name, key=lambda scalar: scalar.as_py())
    if row == len(names) or names[row].as_py() != name:
        raise DataError(f"is not in {archive.name}")
    size = index["size"][row].as_py()
    offset = index["offset"][row].as_py()
    with archive.open("rb", buffering=0) as stream:
        return os.pread(stream.fileno(), size, offset)


def _index(archive: Path) -> pa.Table:
    """Return the index of a tar file as it is now."""
    status = archive.stat()
    return _stored_index(archive, f"{status.st_mtime_ns} {status.st_size}")


@lru_cache(_HELD)
def _stored_index(archive: Path, version: str) -> pa.Table:
    """Return the stored index of a tar file, made now where there is none of this version.

    A stored index that is damaged counts as none. Where nothing can be stored, every process makes its own.
    """
    import pyarrow as pa

    from itrpipe.storage.tables import read_arrow, write_arrow

    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    digest = hashlib.sha256(os.fsencode(archive.absolute())).hexdigest()
    path = cache / "itrpipe" / "tar" / f"{digest}.arrow"
    with contextlib.suppress(OSError, DataError, pa.ArrowInvalid):
        check_stamp(path, FETCH_AGAIN)
        stored = read_arrow(path)
        if stored.schema.metadata[b"version"] == version.encode():
            return stored
    index = _read_index(archive).replace_schema_metadata({"version": version})
    if len(index) >= _WORTH_STORING:
        with contextlib.suppress(UnavailableError, DiskFullError):
            make_folder(path.parent)
            write_arrow(path, index)
    return index


def _read_index(archive: Path) -> pa.Table:
    """Read name, offset and size of the files in a tar file, sorted by name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = []
    offsets = array("q")
    sizes = array("q")
    for name, offset, size in _files(archive):
        names.append(name)
        offsets.append(offset)
        sizes.append(size)
    schema = pa.schema({"name": pa.string(), "offset": pa.int64(), "size": pa.int64()})
    index = pa.table({"name": names, "offset": offsets, "size": sizes}, schema=schema).sort_by("name")
    sorted_names = index["name"]
    is_repeated = pc.call_function("equal", [sorted_names[1:], sorted_names[:-1]])
    row = pc.index(is_repeated, True).as_py()
    if row >= 0:
        raise DataError(f"holds {sorted_names[row]} twice; give each file a name of its own")
    return index


def _files(archive: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of each file in a tar file, from its headers (POSIX ustar and pax, GNU)."""
    with archive.open("rb", buffering=0) as stream:
        file = stream.fileno()
        length = os.fstat(file).st_size
        start = 0
        common: dict[str, str] = {}
        extended: dict[str, str] = {}
        header = os.pread(file, _BLOCK, start)
        if _COMPRESSED.match(header):
            raise DataError("is compressed and no tar file; unpack it")
        while header.strip(b"\0"):
            try:
                kind = _kind(header)
                size = _number(header[124:136])
                if kind in _FILES:
                    size = int(extended.get("size", size))
            except ValueError as error:
                raise DataError(f"is no tar file, or damaged at byte {start:,}; {FETCH_AGAIN}") from error
            if kind in _WITHOUT_CONTENT:
                size = 0
            offset = start + _BLOCK
            if not 0 <= size <= length - offset:
                raise DataError(f"ends before the file at byte {start:,} does, or gives it a wrong size; {FETCH_AGAIN}")
            if kind in (_LONG_NAME, _EXTENDED, _COMMON):
                try:
                    fields = _extended_fields(kind, os.pread(file, min(size, _LONGEST_HEADER), offset))
                    if fields.keys() & extended.keys():
                        raise ValueError("two extended headers of one file")
                except ValueError as error:
                    raise DataError(f"is damaged at byte {offset:,}; {FETCH_AGAIN}") from error
                if kind == _COMMON:
                    common |= fields
                else:
                    extended |= fields
            elif kind != _LONG_LINK:
                fields = common | extended
                name = fields.get("path") or _short_name(header)
                extended = {}
                if kind == _SPARSE or any(field.startswith("GNU.sparse") for field in fields):
                    raise DataError(f"holds {name} as a sparse file; pack it without --sparse")
                if kind in _FILES and not name.endswith("/"):
                    yield "/".join(path_parts(unicodedata.normalize("NFC", name))), offset, size
            blocks = -(-size // _BLOCK)
            start = offset + blocks * _BLOCK
            header = os.pread(file, _BLOCK, start)
        padding = os.pread(file, _LONGEST_HEADER + 1, start)
    if not padding or padding.strip(b"\0") or len(padding) > _LONGEST_HEADER:
        raise DataError(
            f"does not end at byte {start:,} as tar files do: it is damaged or not whole, or another one follows; "
            f"{FETCH_AGAIN}"
        )


def _kind(header: bytes) -> bytes:
    """Return the type of a header's file.

    Raises:
        ValueError: it is no whole header, or the sum of its bytes is another than it says.
    """
    # The field of the sum itself counts as eight spaces.
    expected = sum(header[:148]) + sum(header[156:]) + 8 * ord(" ")
    if len(header) < _BLOCK or _number(header[148:156]) != expected:
        raise ValueError("a wrong sum")
    return header[156:157]


def _number(field: bytes) -> int:
    """Return a number of a header: octal digits, or where these do not suffice an integer with the first bit set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] > 0x80:
        return int.from_bytes(field, "big", signed=True)
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _short_name(header: bytes) -> str:
    """Return the name of a header; ustar has a field for the first part of a longer one."""
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0":
        folder = header[345:500].partition(b"\0")[0]
        if folder:
            name = folder + b"/" + name
    return name.decode("utf-8", "backslashreplace")


def _extended_fields(kind: bytes, content: bytes) -> dict[str, str]:
    """Return the fields of an extended header: GNU's long name, or POSIX's lines `LENGTH KEY=VALUE`."""
    if kind == _LONG_NAME:
        return {"path": content.partition(b"\0")[0].decode("utf-8", "backslashreplace")}
    fields = {}
    while content:
        digits = content.partition(b" ")[0]
        length = int(digits)
        if not len(digits) < length <= len(content):
            raise ValueError("a wrong length")
        key, _, value = content[len(digits) + 1 : length - 1].partition(b"=")
        fields[key.decode()] = value.decode("utf-8", "backslashreplace")
        content = content[length:]
    return fields
