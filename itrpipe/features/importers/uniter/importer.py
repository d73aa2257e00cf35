"""Importer of UNITER's image databases, and of folders with one .npz file per image.

| source                                     | arrays of an image                                                      |
|--------------------------------------------|-------------------------------------------------------------------------|
| LMDB environment, or a folder of several   | features [r, D], norm_bb [r, 6], conf [r], soft_labels [r, classes]     |
| .npz files as UNITER makes databases from  | the same                                                                |
| .npz files of bottom-up-attention.pytorch  | x [r, D], bbox [r, 4] in pixels, num_bbox, image_h, image_w             |

A value of a database is .npz, or msgpack as msgpack-numpy writes it, or an LZ4 frame of either. The columns of norm_bb
are x0, y0, x1, y1, width and height as fractions. `labels` is the largest column of soft_labels as it is numbered
there: the tool that made the published features counts the background as column 0, other tools put it last.

Regions are stored by falling confidence. Of those surer than `min_score` at least `min_regions` and at most
`max_regions` are taken, from the first on; where there is no confidence, all up to `max_regions`.

Source: UNITER (Chen et al., 2020), image features of the published code.
"""

import importlib
import io
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.importers.base import AGAIN, BOX_SLACK, Entries, Layout, Place
from itrpipe.features.importers.uniter.declaration import Uniter
from itrpipe.storage.array_formats import open_arrays
from itrpipe.storage.disk import read_json, reading

_DATABASE = "data.mdb"
_NAMES = {"features": "regions", "x": "regions", "norm_bb": "boxes", "bbox": "boxes", "conf": "scores"}
_KEYS = (*_NAMES, "soft_labels", "num_bbox", "image_h", "image_w")
_LZ4 = b"\x04\x22\x4d\x18"
# The arrays of an image take 2 MB; damaged lengths must not fill the memory.
_MOST_BYTES = 1 << 28

# LMDB: magic and version; pages' size; of the database flags and root; transaction.
_META = struct.Struct("<II 16x I 48x H 34x Q 8x Q")
_PAGE = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_MAGIC = [0xBEEFC0DE, 1]
_PAGE_SIZES = (512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
_SORTED_DUPLICATES = 0x04
_NO_ROOT = (1 << 64) - 1
_BRANCH = 0x01
_LEAF = 0x02
_OWN_PAGES = 0x04
_ON_OWN_PAGES = 0x01
_OTHER_KINDS = 0x06


class UniterSource(Entries):
    """Databases or .npz files, with the regions that the settings choose."""

    def __init__(self, path: Path, settings: Uniter) -> None:
        """Look at the first image for its arrays, and for R at all of them or at UNITER's list of counts.

        Raises:
            MissingInputError: a package is not installed.
            DataError: a file is damaged or holds no features, or two databases differ in an image they share.
        """
        super().__init__(path)
        self._settings = settings
        databases, archives = _files(path)
        for file in databases:
            for key, place in lmdb_values(file):
                if not key.startswith(b"__"):  # UNITER's own, such as the list of keys
                    self.add(key.decode(errors="backslashreplace"), place)
        for file in archives:
            self.add(file.relative_to(path).as_posix(), Place(file))
        if not self.names:
            raise DataError(f"{path} holds no image; name another folder")
        with self.reading(self.names[0]) as place:
            arrays = _arrays(place, _KEYS)
            first = _stored(arrays)
            width = first["regions"].shape[1]
            counted = _counted(arrays)
        counts_in_lists = self._read_counts(databases)
        counts = []
        for name in self.names:
            if name in counts_in_lists:
                counts.append(counts_in_lists[name])
                continue
            with self.reading(name) as place:
                counts.append(self._kept(_arrays(place, [counted])))
        format_ = "LMDB" if databases else ".npz"
        selection = f"surer than {settings.min_score}" if "scores" in first else "without confidences"
        self.describe(f"{format_}, regions {selection}", counts, width, first)

    def entry(self, place: Place) -> dict[str, Any]:
        """See `Entries`."""
        arrays = _arrays(place, _KEYS)
        stored = _stored(arrays)
        stored["count"] = self._kept(arrays)
        return stored

    def _read_counts(self, databases: Sequence[Path]) -> dict[str, int]:
        """Read the counts of regions that the settings take, from lists that UNITER keeps beside databases or above."""
        settings = self._settings
        name = f"nbb_th{settings.min_score}_max{settings.max_regions}_min{settings.min_regions}.json"
        counts: dict[str, int] = {}
        for level in (1, 0):  # the nearest counts win
            for database in databases:
                file = database.parents[level] / name
                if file.is_file():
                    with reading(file, "counts of regions", "remove it to count them again"):
                        for image, count in read_json(file).items():
                            counts[image] = min(int(count), settings.max_regions)
        return counts

    def _kept(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Count the regions that the settings take of an image."""
        key = _counted(arrays)
        if key == "num_bbox":
            stored = sure = arrays[key].item()
        elif key == "conf":
            stored = len(arrays[key])
            sure = int((arrays[key] > self._settings.min_score).sum())
        else:
            stored = sure = len(arrays[key])
        return min(max(sure, self._settings.min_regions), self._settings.max_regions, stored)


open_source = UniterSource


def layout(path: Path) -> Layout | None:
    """Return LMDB environments, or .npz files, of which the first must hold the features of an image."""
    databases, archives = _files(path)
    if databases:
        return Layout(databases)
    if not archives:
        return None
    first = archives[0]
    try:
        names = open_arrays(first).keys()
    except DataError:
        return Layout(archives, f"a whole {first.name}")
    if "features" in names or "x" in names:
        return Layout(archives)
    return Layout(archives, f"features or x in {first.name}")


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the databases, or else the .npz files, sorted."""
    databases = sorted([*path.glob(_DATABASE), *path.glob(f"*/{_DATABASE}"), *path.glob(f"*/*/{_DATABASE}")])
    if databases:
        return databases, []
    return [], sorted([*path.glob("*.npz"), *path.glob("*/*.npz")])


def _counted(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the array that tells how many regions an image has."""
    return next(name for name in ("conf", "num_bbox", "features", "x") if name in arrays)


def _stored(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return all regions of an image under the names of the store, and `size` where boxes are in pixels."""
    stored: dict[str, Any] = {}
    for key, name in _NAMES.items():
        if key in arrays:
            stored[name] = arrays[key]
    if "soft_labels" in arrays:
        stored["labels"] = arrays["soft_labels"].argmax(axis=1)
    if "norm_bb" in arrays:
        first, last, extent = np.split(arrays["norm_bb"].astype("f8"), [2, 4], axis=1)
        if (np.abs(last - first - extent) > BOX_SLACK).any():
            raise ValueError("its norm_bb is not x0, y0, x1, y1, width, height")
        stored["boxes"] = arrays["norm_bb"][:, :4]
    if "regions" not in stored:
        raise ValueError("it holds neither 'features' nor 'x'")
    regions = len(stored["regions"])
    if arrays.get("num_bbox", regions) != regions:
        raise ValueError(f"it has {regions} regions and num_bbox says {arrays['num_bbox']}")
    if "bbox" in arrays:
        stored["size"] = [arrays["image_h"].item(), arrays["image_w"].item()]
    return stored


def _arrays(place: Place, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Read those of the named arrays that an image has. Nothing is unpickled."""
    if place.length is None:
        file = place.file  # of which NumPy reads no more than the named arrays
    else:
        value = place.content()
        if value.startswith(_LZ4):
            value = _package("lz4.frame").LZ4FrameDecompressor().decompress(value, max_length=_MOST_BYTES)
        if not value.startswith(b"PK"):
            # Texts stay bytes: old writers knew no other type for the content of arrays.
            content = _package("msgpack").unpackb(value, raw=True)
            return {key: _array(content[key.encode()]) for key in keys if key.encode() in content}
        file = io.BytesIO(value)
    with np.load(file) as archive:
        return {key: archive[key] for key in keys if key in archive}


def _array(packed: dict[bytes, Any]) -> np.ndarray:
    """Return an array as msgpack-numpy packs it, whose own decoder would unpickle objects."""
    dtype = np.dtype(packed[b"type"].decode())
    if packed[b"nd"] is not True or packed.get(b"kind") or dtype.kind not in "biuf":
        raise ValueError("it holds something else than plain numbers")
    return np.frombuffer(packed[b"data"], dtype).reshape(packed[b"shape"])


def _package(name: str) -> Any:
    """Import a package of the optional extra `uniter`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingInputError(f"this needs {name}: pip install 'itrpipe[uniter]' ({error})") from error


def lmdb_values(path: Path) -> Iterator[tuple[bytes, Place]]:
    """Yield the keys of an LMDB file, data.mdb, in their order, and where their values lie.

    The LMDB library maps a file and trusts it, so that a damaged or truncated database kills the process or keeps it
    busy for ever. Reading needs little: pages of keys are visited once, in order, and every value is one run of bytes.

    Layout (64-bit, little-endian): two meta pages, the newer one valid. A page starts with its number u64, 2 bytes,
    flags u16, and for pages with nodes `lower` u16 and `upper` u16, followed by offsets u16 of the nodes up to `lower`;
    the pages of one long value have their number u32 in that place. A node has u16 low, u16 high, u16 flags, u16 size
    of the key, key, value. On branch pages the first three are the number of a child; on leaves low and high are the
    length of the value, and a flag says that it lies on pages of its own.

    Source: lmdb.h and mdb.c of LMDB 0.9.

    Raises:
        DataError: the file is not an LMDB database, is damaged or truncated, or holds databases in a database.
    """
    with reading(path, "an LMDB database", AGAIN), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size

        def read(start: int, length: int) -> bytes:
            content = os.pread(file.fileno(), length, start)
            if len(content) < length:
                raise EOFError(f"it ends at byte {size:,}")
            return content

        *magic, page_size, flags, root, transaction = _META.unpack(read(_PAGE.size, _META.size))
        if magic != _MAGIC or page_size not in _PAGE_SIZES:
            raise ValueError("it does not start with a page of one")
        *magic, _, newer_flags, newer_root, newer = _META.unpack(read(page_size + _PAGE.size, _META.size))
        if magic == _MAGIC and newer > transaction:
            flags = newer_flags
            root = newer_root
        if flags & _SORTED_DUPLICATES:
            raise ValueError("it has several values for a key")
        waiting = []
        if root != _NO_ROOT:
            waiting.append(root)
        visits_left = size // page_size
        while waiting:
            visits_left -= 1
            number = waiting.pop()
            page = read(number * page_size, page_size)
            stored_number, _, kind, lower, _ = _PAGE.unpack_from(page)
            if stored_number != number or kind not in (_BRANCH, _LEAF) or visits_left < 0:
                raise ValueError(f"page {number} holds no keys, or leads to itself")
            count = (lower - _PAGE.size) // 2
            nodes = struct.unpack_from(f"<{count}H", page, _PAGE.size)
            if kind == _BRANCH:
                for node in reversed(nodes):
                    low, high, highest, _ = _NODE.unpack_from(page, node)
                    waiting.append(low | high << 16 | highest << 32)
                continue
            for node in nodes:
                low, high, flags, key_size = _NODE.unpack_from(page, node)
                key = node + _NODE.size
                value = key + key_size
                length = low | high << 16
                start = number * page_size + value
                end = (number + 1) * page_size
                if flags & _OTHER_KINDS:
                    raise ValueError("it has a database in the database")
                if flags & _ON_OWN_PAGES:
                    (first,) = struct.unpack_from("<Q", page, value)
                    stored_number, _, kind, low, high = _PAGE.unpack(read(first * page_size, _PAGE.size))
                    if stored_number != first or kind != _OWN_PAGES:
                        raise ValueError(f"page {first} holds no value")
                    start = first * page_size + _PAGE.size
                    end = (first + (low | high << 16)) * page_size
                if start + length > min(end, size):
                    raise ValueError("a value ends beyond its place")
                yield page[key:value], Place(path, start, length)
