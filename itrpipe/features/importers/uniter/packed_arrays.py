"""Named arrays of one image in one value: .npz, or msgpack as msgpack-numpy writes it, or an LZ4 frame of either.

Nothing is unpickled. msgpack-numpy's own decoder would do so with arrays of objects, so its maps are decoded here, and
only those of plain numbers.
"""

from __future__ import annotations

import importlib
import io
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.importers.array_file import AGAIN, parse_npy
from itrpipe.storage.disk import reading

Arrays = Mapping[str, np.ndarray]

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_PLAIN_TYPE = re.compile(rb"[<>|=](?:b1|[iu][1248]|f[248])")
# The arrays of an image take 2 MB; damaged lengths must not fill the memory.
_MOST_BYTES = 1 << 28


def package(name: str, purpose: str | Path) -> Any:
    """Returns a package of the optional extra `uniter`.

    Raises:
        MissingInputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingInputError(
            f"{purpose} needs {name.split('.')[0]}: pip install 'itrpipe[uniter]' ({error})."
        ) from error


def decode(where: str, value: bytes, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns those of the named arrays that a value holds.

    Args:
        where: what the value is, for messages.
        value: as stored.
        keys: names of arrays; others are not decoded.

    Raises:
        DataError: the value is damaged, or a named array is not one of plain numbers.
        MissingInputError: a package is not installed.
    """
    if value.startswith(_LZ4_MAGIC):
        value = _unpack_lz4(where, value)
    if value.startswith(b"PK"):
        return from_npz(where, io.BytesIO(value), keys)
    return _from_msgpack(where, value, keys)


def from_npz(where: str, file: Path | io.BytesIO, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns those of the named arrays that an .npz file holds; the others are not touched.

    Raises:
        DataError: the file is damaged, or a named array holds objects.
    """
    arrays = {}
    with reading(where, ".npz", AGAIN), zipfile.ZipFile(file) as archive:
        members = set(archive.namelist())
        for key in keys:
            member = f"{key}.npy"
            if member in members:
                if archive.getinfo(member).file_size > _MOST_BYTES:
                    raise zipfile.BadZipFile(f"{key} would take more than {_MOST_BYTES:,} bytes")
                arrays[key] = parse_npy(f"{where}: '{key}'", archive.read(member))
    return arrays


def _unpack_lz4(where: str, value: bytes) -> bytes:
    frame = package("lz4.frame", where)
    with reading(where, "LZ4", AGAIN):
        decompressor = frame.LZ4FrameDecompressor()
        content = decompressor.decompress(value, max_length=_MOST_BYTES)
        if not decompressor.eof:
            raise EOFError("it has no end")
        return content


def _from_msgpack(where: str, value: bytes, keys: Sequence[str]) -> dict[str, np.ndarray]:
    msgpack = package("msgpack", where)
    with reading(where, "msgpack", AGAIN):
        # Texts stay bytes: old writers knew no other type for the content of arrays.
        content = msgpack.unpackb(value, raw=True)
    if not isinstance(content, dict):
        raise DataError(f"{where} is not a map of arrays; name a database of image features.")
    return {key: _array(f"{where}: {key}", content[key.encode()]) for key in keys if key.encode() in content}


def _array(where: str, packed: object) -> np.ndarray:
    """Decodes what msgpack-numpy makes of an array."""
    fields = packed if isinstance(packed, dict) else {}
    dtype, shape, data = (fields.get(key) for key in (b"type", b"shape", b"data"))
    plain = fields.get(b"nd") is True and fields.get(b"kind", b"") == b""
    if not (plain and isinstance(dtype, bytes) and isinstance(shape, list) and isinstance(data, bytes)) or (
        not _PLAIN_TYPE.fullmatch(dtype)
    ):
        raise DataError(f"{where} is not an array of plain numbers, and nothing else is read; fetch the file again.")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise DataError(f"{where} has shape {shape}; fetch the file again.")
    numbers = np.dtype(dtype.decode("ascii"))
    if math.prod(shape) * numbers.itemsize != len(data):
        raise DataError(f"{where} has {len(data):,} bytes, which is not {tuple(shape)} of {numbers}; fetch it again.")
    return np.frombuffer(data, numbers).reshape(shape)
