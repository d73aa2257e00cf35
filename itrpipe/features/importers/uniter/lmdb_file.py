"""Where the values of an LMDB file lie: its tree of pages, read and never mapped.

The LMDB library maps the file and trusts it, so that a damaged or truncated database kills the process or keeps it busy
for ever. Reading needs little: pages of keys are visited once, in order, and every value is one run of bytes.

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
from pathlib import Path

from itrpipe.features.importers.base import AGAIN, Place
from itrpipe.storage.disk import reading

_PAGE, _NODE = struct.Struct("<QHHHH"), struct.Struct("<HHHH")
# Magic, version, address, size of the map; of the free list and the database each page size, flags, depth, numbers of
# pages and entries, root; last page, transaction.
_META = struct.Struct("<IIQQ IHHQQQQQ IHHQQQQQ QQ")
_PAGE_SIZE, _FLAGS, _ROOT, _TRANSACTION = 4, 13, 19, 21
_MAGIC, _SORTED_DUPLICATES, _NO_ROOT = (0xBEEFC0DE, 1), 0x04, (1 << 64) - 1
_BRANCH, _LEAF, _OWN_PAGES = 0x01, 0x02, 0x04
_ON_OWN_PAGES, _OTHER_KINDS = 0x01, 0x06


def values_of(path: Path) -> Iterator[tuple[bytes, Place]]:
    """Yields the keys of a database in their order, and where their values lie.

    Args:
        path: data.mdb.

    Raises:
        DataError: the file is not an LMDB database, is damaged or truncated, or holds databases in a database.
    """
    with reading(path, "an LMDB database", AGAIN), path.open("rb", buffering=0) as file:
        yield from _Tree(path, file.fileno()).values()


class _Tree:
    """The pages of an open file."""

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file, self._size = path, file, os.fstat(file).st_size
        first = self._meta(0)
        self._page_size = first[_PAGE_SIZE]
        if first[:2] != _MAGIC or self._page_size not in (1 << power for power in range(9, 17)):
            raise ValueError("it does not start with a page of one")
        metas = [meta for meta in (first, self._meta(self._page_size)) if meta[:2] == _MAGIC]
        newest = max(metas, key=lambda meta: meta[_TRANSACTION])
        if newest[_FLAGS] & _SORTED_DUPLICATES:
            raise ValueError("it has several values for a key")
        self._waiting = [newest[_ROOT]] if newest[_ROOT] != _NO_ROOT else []

    def values(self) -> Iterator[tuple[bytes, Place]]:
        """Walks through the tree from left to right."""
        for _ in range(self._size // self._page_size):
            if not self._waiting:
                return
            number = self._waiting.pop()
            page = self._read(number * self._page_size, self._page_size)
            stored, _, kind, lower, _ = _PAGE.unpack_from(page)
            if stored != number or kind not in (_BRANCH, _LEAF):
                raise ValueError(f"page {number} holds no keys")
            nodes = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size)
            if kind == _LEAF:
                yield from (self._value(number, page, node) for node in nodes)
            else:
                children = (_NODE.unpack_from(page, node) for node in reversed(nodes))
                self._waiting += [low | high << 16 | highest << 32 for low, high, highest, _ in children]
        if self._waiting:
            raise ValueError("its pages form a circle")

    def _value(self, number: int, page: bytes, node: int) -> tuple[bytes, Place]:
        low, high, flags, key_size = _NODE.unpack_from(page, node)
        value, length = node + _NODE.size + key_size, low | high << 16
        start, end = number * self._page_size + value, (number + 1) * self._page_size
        if flags & _OTHER_KINDS:
            raise ValueError("it has a database in the database")
        if flags & _ON_OWN_PAGES:
            (own,) = struct.unpack_from("<Q", page, value)
            stored, _, kind, pages, more = _PAGE.unpack(self._read(own * self._page_size, _PAGE.size))
            if stored != own or kind != _OWN_PAGES:
                raise ValueError(f"page {own} holds no value")
            start, end = own * self._page_size + _PAGE.size, (own + (pages | more << 16)) * self._page_size
        if start + length > min(end, self._size):
            raise ValueError("a value ends beyond its place")
        return page[node + _NODE.size : value], Place(self._path, start, length)

    def _meta(self, offset: int) -> tuple[int, ...]:
        return _META.unpack(self._read(offset + _PAGE.size, _META.size))

    def _read(self, offset: int, length: int) -> bytes:
        content = os.pread(self._file, length, offset) if offset < self._size else b""
        if len(content) < length:
            raise EOFError(f"it ends at byte {self._size:,}")
        return content
