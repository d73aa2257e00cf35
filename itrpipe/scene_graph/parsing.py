"""Parses captions, a chunk at a time: a map over the distinct captions of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from itrpipe.engine.local import usable_cores
from itrpipe.engine.work import Part, Work, cut
from itrpipe.scene_graph.graph import SceneGraph
from itrpipe.scene_graph.stored import GRAPH_SCHEMA, graphs_table
from itrpipe.storage.parts import read_arrow, write_arrow

CHUNK = 1024
OPEN_CHUNKS = 64


class Item(NamedTuple):
    """What a graph is made from.

    Attributes:
        text: the caption.
        given: its elements as another tool found them, as JSON; empty when they are to be found here.
    """

    text: str
    given: str = ""


class Parser(Protocol):
    """Makes graphs; equal items always have equal graphs.

    Attributes:
        version: what a graph depends on beside the item.
    """

    version: str

    def parse(self, item: Item) -> SceneGraph:
        """The graph of one caption."""
        ...


class Parsing(Work[Parser]):
    """Graphs of captions, in one Arrow file per chunk of `CHUNK`.

    Args:
        items: all different.
        build: makes the parser; it is pickled.
    """

    title, unit, suffix = "parsing", "captions", ".arrow"

    def __init__(self, items: Sequence[Item], build: Callable[[], Parser]) -> None:
        self._items, self._build = items, build

    def __getstate__(self) -> dict[str, Any]:
        """Workers are told of the captions of each part alone."""
        return self.__dict__ | {"_items": ()}

    def parts(self) -> list[Part]:
        """Chunks of captions."""
        return cut(self._items, CHUNK)

    def local_workers(self) -> int:
        """One per core: parsing is Python all through."""
        return usable_cores()

    def open(self) -> Parser:
        """The parser."""
        return self._build()

    def make(self, worker: Parser, part: Part, path: Path) -> None:
        """Parses the captions of a chunk."""
        graphs = [_parse_noted(worker, item) for item in part.content]
        write_arrow(path, graphs_table(graphs, worker.version).cast(GRAPH_SCHEMA))


class ParsedGraphs:
    """Reads the graphs of parsed items.

    Args:
        paths: of the files of all chunks.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open = lru_cache(maxsize=OPEN_CHUNKS)(self._read)

    def take(self, rows: np.ndarray) -> pa.Table:
        """Graphs of some items in the order asked for, as rows of `GRAPH_SCHEMA`.

        Args:
            rows: numbers of items, int64, at least one.
        """
        order = np.argsort(rows, kind="stable")
        chunks, starts = np.unique(rows[order] // CHUNK, return_index=True)
        tables = [
            self._open(int(number)).take(pa.array(rows[own] % CHUNK))
            for number, own in zip(chunks, np.split(order, starts[1:]), strict=True)
        ]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_tables(tables).combine_chunks().take(pa.array(back))

    def _read(self, number: int) -> pa.Table:
        return read_arrow(self._paths[number]).replace_schema_metadata(None)


def _parse_noted(parser: Parser, item: Item) -> SceneGraph:
    try:
        return parser.parse(item)
    except Exception as error:
        error.add_note(f"while parsing the caption {item.text!r}")
        raise
