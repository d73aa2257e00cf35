"""Where the values of an LMDB file lie: its tree of pages, read and never mapped.

The LMDB library maps the file and trusts it, so that a damaged or truncated database kills the process, and the pages
it maps count as memory in use. Reading needs little: pages of keys are visited once, in order, and every value is one
run of bytes.

Layout (64-bit, little-endian): two meta pages, the newer one valid. A page starts with its number u64, 2 bytes, flags
u16, and for pages with nodes `lower` u16 and `upper` u16, followed by offsets u16 of the nodes up to `lower`; the pages
of one long value have their number u32 in that place. A node has u16 low, u16 high, u16 flags, u16 size of the key,
key, value. On branch pages the first three are the number of a child; on leaves low and high are the length of the
value, and a flag says that it lies on pages of its own.

Source: lmdb.h and mdb.c of LMDB 0.9.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from itrpipe.errors import DataError
from itrpipe.storage.disk import reading_error

_PAGE_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
# Magic, version, address, size of the map; of the free list and the database each page size, flags, depth, numbers of
# pages and entries, root; last page, transaction.
_META = struct.Struct("<IIQQ IHHQQQQQ IHHQQQQQ QQ")
_PAGE_SIZE, _FLAGS, _ROOT, _TRANSACTION = 4, 13, 19, 21
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_NO_ROOT = (1 << 64) - 1

_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_ON_OWN_PAGES, _OTHER_KINDS = 0x01, 0x06
_SORTED_DUPLICATES = 0x04


@dataclass(frozen=True)
class Value:
    """One entry: `length` bytes from byte `offset` of the file on."""

    key: bytes
    offset: int
    length: int


def read_values(path: Path) -> Iterator[Value]:
    """Yields the entries in the order of their keys.

    Args:
        path: data.mdb.

    Raises:
        DataError: the file is not an LMDB database, is damaged or truncated, or holds databases in a database.
    """
    try:
        with path.open("rb", buffering=0) as file:
            yield from _Tree(file.fileno(), os.fstat(file.fileno()).st_size).values()
    except (_DamagedError, struct.error) as error:
        raise DataError(f"{path} is not a whole LMDB database ({error}); fetch it again.") from error
    except OSError as error:
        raise reading_error(error, path, DataError(f"{path} cannot be read ({error.strerror}).")) from error


class _DamagedError(Exception):
    """The file contradicts itself."""


class _Tree:
    """The pages of an open file."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self._size = size
        self._page_size = 0
        self._page_size, self._root = self._read_meta()

    def values(self) -> Iterator[Value]:
        """Walks through the tree from left to right."""
        waiting = [] if self._root == _NO_ROOT else [self._root]
        pages_left = self._size // self._page_size
        while waiting:
            if not pages_left:
                raise _DamagedError("its pages form a circle")
            pages_left -= 1
            number = waiting.pop()
            page = self._read_page(number)
            flags, nodes = self._nodes(number, page)
            if flags & _BRANCH:
                waiting += [_child(page, node) for node in reversed(nodes)]
            else:
                yield from (self._value(number, page, node) for node in nodes)

    def _read_meta(self) -> tuple[int, int]:
        """Returns page size and root of the newer meta page."""
        first = self._meta(0)
        if first is None:
            raise _DamagedError("it does not start with a page of one")
        page_size = first[_PAGE_SIZE]
        if page_size not in (1 << power for power in range(9, 17)):
            raise _DamagedError(f"pages of {page_size} bytes")
        metas = [meta for meta in (first, self._meta(page_size)) if meta is not None]
        newest = max(metas, key=lambda meta: meta[_TRANSACTION])
        if newest[_FLAGS] & _SORTED_DUPLICATES:
            raise _DamagedError("it has several values for a key")
        return page_size, newest[_ROOT]

    def _meta(self, offset: int) -> tuple[int, ...] | None:
        content = os.pread(self._file, _META.size, offset + _PAGE_HEADER.size)
        meta = _META.unpack(content) if len(content) == _META.size else (0, 0)
        return meta if meta[:2] == (_MAGIC, _VERSION) else None

    def _read_page(self, number: int) -> bytes:
        offset = number * self._page_size
        page = os.pread(self._file, self._page_size, offset) if offset < self._size else b""
        if len(page) < self._page_size:
            raise _DamagedError(f"page {number} lies beyond its {self._size:,} bytes")
        return page

    def _nodes(self, number: int, page: bytes) -> tuple[int, list[int]]:
        """Returns the flags of a page, and where its nodes start."""
        stored, _, flags, lower, _ = _PAGE_HEADER.unpack_from(page)
        if stored != number or flags not in (_BRANCH, _LEAF) or not _PAGE_HEADER.size <= lower <= len(page):
            raise _DamagedError(f"page {number} is none of keys")
        return flags, list(struct.unpack_from(f"<{(lower - _PAGE_HEADER.size) // 2}H", page, _PAGE_HEADER.size))

    def _value(self, number: int, page: bytes, node: int) -> Value:
        low, high, flags, key_size = _NODE.unpack_from(page, node)
        start = node + _NODE.size
        key, data, length = page[start : start + key_size], start + key_size, low | high << 16
        if flags & _OTHER_KINDS:
            raise _DamagedError("it has a database in the database")
        if flags & _ON_OWN_PAGES:
            (own,) = struct.unpack_from("<Q", page, data)
            header = os.pread(self._file, _PAGE_HEADER.size, own * self._page_size) if own < self._size else b""
            stored, _, kind, pages, more = _PAGE_HEADER.unpack(header) if len(header) == _PAGE_HEADER.size else (0,) * 5
            if stored != own or kind != _OVERFLOW:
                raise _DamagedError(f"the value of {key!r} is not on page {own}")
            offset = own * self._page_size + _PAGE_HEADER.size
            end = min(self._size, (own + (pages | more << 16)) * self._page_size)
        else:
            offset, end = number * self._page_size + data, (number + 1) * self._page_size
        if len(key) < key_size or offset + length > end:
            raise _DamagedError(f"the value of {key!r} ends beyond its place")
        return Value(key, offset, length)


def _child(page: bytes, node: int) -> int:
    low, high, flags, _ = _NODE.unpack_from(page, node)
    return low | high << 16 | flags << 32
