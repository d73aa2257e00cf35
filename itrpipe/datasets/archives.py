"""Photographs inside other files, read where they lie, as if the file were a folder.

    SHARD.tar/KEY.jpg           a member of a tar file, as WebDataset packs them
    FILE.parquet/COLUMN/ROW     a cell of a Parquet file
    FILE.arrow/COLUMN/ROW       a cell of an Arrow file, as `save_to_disk` of datasets writes them

A cell holds the bytes of a photograph, or a struct of `bytes` and `path`; where the bytes are missing, the path names a
file beside the table.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import unicodedata
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.datasets.tars import FETCH_AGAIN, read_tar_member, tar_members
from itrpipe.errors import DataError, reason_of
from itrpipe.storage.disk import reading

if TYPE_CHECKING:
    import pyarrow as pa

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
TAR, PARQUET, ARROW = ".tar", ".parquet", ".arrow"
ARCHIVES = (TAR, PARQUET, ARROW)
"""Endings of files that hold photographs; in any case of letters."""
RECENT_BYTES = 128 << 20
"""Memory of a process for the pieces of tables that were read last."""
_HELD = 1_024
"""Tables of which a process knows the pieces."""
_TURNS = 16
_ROW = re.compile("0|[1-9][0-9]*")
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of a whole stream of Arrow; one that is being written does not have them yet."""


def in_archive(path: Path) -> tuple[Path, str] | None:
    """Return the file that a path leads into, and the member's name; None of other paths."""
    for archive in path.parents:
        if archive.suffix.lower() in ARCHIVES and os.path.isfile(archive):
            return archive, path.relative_to(archive).as_posix()
    return None


def members(archive: Path) -> list[str]:
    """Return the names of the files in a tar file, or of the cells of a table that may hold photographs.

    Raises:
        DataError: the archive cannot be used. The message is the reason alone.
        OSError: it cannot be read.
    """
    if archive.suffix.lower() == TAR:
        return tar_members(archive)
    table = open_cells(archive)
    names = []
    for column in picture_columns(table.schema):
        names += [f"{column}/{row}" for row in range(table.starts[-1])]
    return names


def picture_columns(schema: pa.Schema) -> dict[str, bool]:
    """Return the columns of a table whose cells may hold photographs; true where a path stands beside the bytes."""
    import pyarrow as pa

    columns = {}
    for field in schema:
        kind = field.type
        has_path = False
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            has_path = kind.get_field_index("path") >= 0
            kind = kind.field("bytes").type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            columns[field.name] = has_path
    return columns


@contextlib.contextmanager
def naming(archive: Path) -> Iterator[None]:
    """Name the archive in errors whose message is the reason alone.

    Raises:
        DataError: the archive cannot be used.
        UnavailableError: it cannot be read now.
    """
    with reading(archive, "a whole file", FETCH_AGAIN):
        try:
            yield
        except DataError as error:
            raise DataError(f"{archive} {error}") from error


def read_member(archive: Path, name: str) -> bytes | str:
    """Read the content of a member; of a cell without bytes return its path, which is relative to the archive's folder.

    Raises:
        DataError: it is not there, or the archive cannot be used. The message is the reason alone.
        OSError: the archive cannot be read.
    """
    if archive.suffix.lower() == TAR:
        return read_tar_member(archive, name)
    table = open_cells(archive)
    column_name, _, number = name.rpartition("/")
    # Paths out of data files are in the form NFC; the table may have its names in another.
    columns = {unicodedata.normalize("NFC", column): column for column in table.schema.names}
    column = columns.get(unicodedata.normalize("NFC", column_name))
    if column is None or not _ROW.fullmatch(number) or int(number) >= table.starts[-1]:
        names = ", ".join(table.schema.names)
        raise DataError(f"is not in {archive.name}, which has {table.starts[-1]:,} rows of {names}")
    row = int(number)
    piece = bisect_right(table.starts, row) - 1
    cells = _recent.get((table, column, piece), lambda: table.read(column, piece))
    content = cells[row - table.starts[piece]].as_py()
    path = None
    if isinstance(content, dict):
        path = content.get("path")
        content = content.get("bytes")
    if content is None and path:
        return path
    if not isinstance(content, bytes):
        raise DataError(f"holds no bytes of a photograph, but {content!r:.40}; name another column")
    return content


@dataclass(frozen=True, eq=False)
class CellTable:
    """A file of Parquet or Arrow.

    Attributes:
        schema: columns and their types.
        starts: first row of each piece that is read at a time, and last the number of rows.
        read: returns the cells of a column in a piece; of Parquet also those of a field, `COLUMN.FIELD`, alone.
    """

    schema: pa.Schema
    starts: list[int]
    read: Callable[[str, int], pa.ChunkedArray]


def open_cells(archive: Path) -> CellTable:
    """Open a table, once for as long as it stays unchanged; errors as of `members`."""
    status = archive.stat()
    return _opened_table(archive, status.st_mtime_ns, status.st_size)


@lru_cache(_HELD)
def _opened_table(archive: Path, changed: int, size: int) -> CellTable:
    with _reasons_of_damage():
        if archive.suffix.lower() == PARQUET:
            return _open_parquet(archive)
        return _open_arrow(archive)


def _open_parquet(archive: Path) -> CellTable:
    """Read the end of a Parquet file, which says where its row groups lie."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(archive) as file:
        metadata = file.metadata
        schema = file.schema_arrow
    starts = [0]
    for group in range(metadata.num_row_groups):
        starts.append(starts[-1] + metadata.row_group(group).num_rows)

    def read(column: str, group: int) -> pa.ChunkedArray:
        # A file of its own for every read, since one must not be read by several threads.
        with _reasons_of_damage(), pq.ParquetFile(archive, metadata=metadata, page_checksum_verification=True) as file:
            return file.read_row_group(group, [column], use_threads=False).column(0)

    return CellTable(schema, starts, read)


def _open_arrow(archive: Path) -> CellTable:
    """Map a file or a stream of Arrow, and find its batches.

    Raises:
        DataError: it is compressed, so that it cannot be read where it lies, or it does not end as a stream does.
    """
    import pyarrow as pa

    with pa.memory_map(str(archive)) as source:
        mapped = source.read_buffer()
    if mapped[:6].to_pybytes() == b"ARROW1":
        reader = pa.ipc.open_file(mapped)
    elif mapped[-8:].to_pybytes() == _END_OF_STREAM:
        reader = pa.ipc.open_stream(mapped)
    else:
        raise DataError(f"is not whole; {FETCH_AGAIN}")
    batches = reader.read_all().to_batches()
    for batch in batches[:1]:
        for column in picture_columns(reader.schema):
            for buffer in batch.column(column).buffers():
                if buffer and buffer.size and not 0 <= buffer.address - mapped.address < mapped.size:
                    raise DataError("is compressed; write it without compression, as save_to_disk of datasets does")

    def read(column: str, number: int) -> pa.ChunkedArray:
        if column not in reader.schema.names:
            column = column.rpartition(".")[0]
        cells = batches[number].column(column)
        with _reasons_of_damage():
            # Of a damaged file Arrow would read other memory.
            cells.validate(full=True)
        return pa.chunked_array([cells])

    return CellTable(reader.schema, list(accumulate(map(len, batches), initial=0)), read)


@contextlib.contextmanager
def _reasons_of_damage() -> Iterator[None]:
    """Turn errors of Arrow over a damaged file into one line; errors of the disk and of memory pass."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise DataError(f"cannot be read ({reason_of(error)}); {FETCH_AGAIN}") from error


class _RecentPieces:
    """The pieces of tables that were read last, for all threads of a process.

    Args:
        limit: bytes of all of them; the last one is kept however large it is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._pieces: OrderedDict[Hashable, pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()
        # Threads that want the same piece wait for the first of them; others seldom meet.
        self._turns = [threading.Lock() for _ in range(_TURNS)]

    def get(self, key: Hashable, read: Callable[[], pa.ChunkedArray]) -> pa.ChunkedArray:
        """Return a piece, which is read where it is not kept."""
        with self._turns[hash(key) % _TURNS]:
            with self._lock:
                if key in self._pieces:
                    self._pieces.move_to_end(key)
                    return self._pieces[key]
            piece = read()
            with self._lock:
                self._pieces[key] = piece
                self._bytes += piece.nbytes
                while self._bytes > self._limit and len(self._pieces) > 1:
                    _, oldest = self._pieces.popitem(last=False)
                    self._bytes -= oldest.nbytes
            return piece

    def forget(self) -> None:
        """Begin anew, in a forked process whose parent's threads may have held a lock."""
        self.__init__(self._limit)


_recent = _RecentPieces(RECENT_BYTES)
os.register_at_fork(after_in_child=_recent.forget)
