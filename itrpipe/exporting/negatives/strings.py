"""Lines of text made of whole columns: no row is touched by Python."""

from __future__ import annotations

from functools import cache
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def quoted(texts: pa.Array) -> pa.Array:
    """Texts as JSON strings."""
    return pa.array(map(encode_basestring, texts.to_pylist()), pa.string())


def in_csv(texts: pa.Array) -> pa.Array:
    """Texts with their quotation marks doubled, as they stand in a quoted field of a CSV file."""
    return pc.call_function("replace_substring", [texts], pc.ReplaceSubstringOptions(pattern='"', replacement='""'))


def joined(*parts: pa.Array | str) -> pa.Array:
    """Strings of several columns one behind the other, row by row; a `str` stands in every row."""
    found: Any = pc.call_function("binary_join_element_wise", [*parts, ""])
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def lists_of(strings: pa.Array, lengths: np.ndarray, separator: str = ",") -> pa.Array:
    """One string for every row out of those that belong to it.

    Args:
        strings: those of a row together.
        lengths: [R], how many each row has.
        separator: stands between them.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pc.call_function("binary_join", [pa.ListArray.from_arrays(pa.array(offsets), strings), separator])


def half_numbers(values: np.ndarray) -> pa.Array:
    """float16 of any shape as the shortest decimals that are read as the same number; `null` where not finite."""
    return _halves().take(pa.array(np.ascontiguousarray(values, dtype=np.float16).reshape(-1).view(np.uint16)))


def ranks(values: np.ndarray) -> pa.Array:
    """Whole numbers of any shape as decimals, `null` for 0."""
    known = pa.array(["null", *map(str, range(1, int(values.max(initial=0)) + 1))])
    return known.take(pa.array(values.reshape(-1)))


def content(lines: pa.Array) -> memoryview:
    """The bytes of strings one behind the other."""
    _, offsets, data = lines.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[int(places[0]) : int(places[-1])] if len(lines) and data is not None else memoryview(b"")


@cache
def _halves() -> pa.Array:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return pa.array([str(each) if np.isfinite(each) else "null" for each in every], pa.string())
