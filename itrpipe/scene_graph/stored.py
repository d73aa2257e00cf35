"""Scene graphs as Parquet: one row per caption, in the order of the captions of the dataset."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.scene_graph.graph import Attribute, Object, Relation, SceneGraph, Token
from itrpipe.storage.arrays import Ragged
from itrpipe.storage.tables import TableFile, table_writer

SCENE_GRAPHS_FILE = "scene_graphs.parquet"
ROW_GROUP = 8192
INT16, INT32, TEXT = pa.int16(), pa.int32(), pa.string()
TOKEN_IDS = {"token_ids": pa.list_(INT16), "lemma": TEXT}
STRUCTS = {
    "tokens": {"text": TEXT, "start": INT32, "end": INT32, "tag": TEXT, "lemma": TEXT},
    "objects": {"id": INT16, "head": INT16, **TOKEN_IDS},
    "attributes": {"id": INT16, "object": INT16, **TOKEN_IDS, "kind": TEXT},
    "relations": {"id": INT16, "subject": INT16, "object": INT16, **TOKEN_IDS, "kind": TEXT},
}
"""Fields of the structs of each list column, in the order of the fields of the dataclass."""
CLASSES = {"tokens": Token, "objects": Object, "attributes": Attribute, "relations": Relation}
ELEMENTS = ("objects", "attributes", "relations")
GRAPH_SCHEMA = pa.schema(
    [
        ("caption_sha1", pa.binary(20)),
        *((name, TEXT) for name in ("text", "parser", "status")),
        *((name, pa.list_(pa.struct(list(fields.items())))) for name, fields in STRUCTS.items()),
    ]
)
SCHEMA = pa.schema([("caption_id", TEXT), ("image_id", TEXT), *GRAPH_SCHEMA])


def caption_sha1(text: str) -> bytes:
    """Digest of a caption's UTF-8 bytes, 20 of them."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).digest()


def graphs_table(graphs: Sequence[SceneGraph], parser: str) -> pa.Table:
    """Graphs as rows of `GRAPH_SCHEMA`.

    Args:
        graphs: any number.
        parser: version of the parser that made them.
    """
    columns: list[Any] = [
        pa.array([caption_sha1(graph.text) for graph in graphs], pa.binary(20)),
        pa.array([graph.text for graph in graphs], TEXT),
        pa.array([parser] * len(graphs), TEXT),
        pa.array([graph.status for graph in graphs], TEXT),
    ]
    for column, fields in STRUCTS.items():
        rows = [getattr(graph, column) for graph in graphs]
        elements = [element for row in rows for element in row]
        # Field by field, because a dictionary per element takes several times as long.
        names = ["tokens" if name == "token_ids" else name for name in fields]
        arrays = [
            pa.array([getattr(element, name) for element in elements], kind)
            for name, kind in zip(names, fields.values(), strict=True)
        ]
        structs = pa.StructArray.from_arrays(arrays, fields=[pa.field(*each) for each in fields.items()])
        offsets = pa.array(np.cumsum([0, *map(len, rows)]), INT32)
        columns.append(pa.ListArray.from_arrays(offsets, structs))
    return pa.Table.from_arrays(columns, schema=GRAPH_SCHEMA)


def with_ids(captions: pa.Table, graphs: pa.Table) -> pa.Table:
    """Rows of `SCHEMA`: graphs with the columns caption_id and image_id of their captions."""
    return pa.Table.from_arrays([captions["caption_id"], captions["image_id"], *graphs.columns], schema=SCHEMA)


def flattened(table: pa.Table, column: str) -> tuple[Ragged, pa.StructArray]:
    """The structs of a list column, one row's behind the other's, and the numbers of those of each row."""
    lists = table[column].combine_chunks()
    return Ragged.of_counts(lists.value_lengths().to_numpy()), lists.flatten()


def graphs_of(table: pa.Table) -> Iterator[SceneGraph]:
    """The graphs of rows, which may have further columns; they share their words."""

    def shared(value: Any) -> Any:
        return sys.intern(value) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    for row in table.select(GRAPH_SCHEMA.names).to_pylist():
        elements = {
            name: tuple(kind(*map(shared, each.values())) for each in row[name]) for name, kind in CLASSES.items()
        }
        yield SceneGraph(row["text"], **elements, status=row["status"])


def write_graphs(path: Path, row_groups: Iterable[pa.Table]) -> None:
    """Writes a file of `SCHEMA`; every table becomes one row group.

    Args:
        path: replaced if it exists.
        row_groups: of at most `ROW_GROUP` rows each.
    """
    with table_writer(path, SCHEMA) as writer:
        for table in row_groups:
            writer.write_table(table, row_group_size=ROW_GROUP)


class SceneGraphFile(TableFile):
    """Reads the artifact of `itrpipe parse` a row group at a time.

    Args:
        folder: the artifact.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is damaged or has other columns.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / SCENE_GRAPHS_FILE, SCHEMA, "remove its folder and run `itrpipe parse`")

    @cached_property
    def caption_ids(self) -> list[str]:
        """Ids of the captions, one a row."""
        return self.read(["caption_id"])["caption_id"].to_pylist()

    @cached_property
    def image_ids(self) -> list[str]:
        """Id of each caption's image, one a row; the captions of an image follow each other."""
        return self.read(["image_id"])["image_id"].to_pylist()

    def graphs(self) -> Iterator[SceneGraph]:
        """Yields the graph of every row; for views and analyses, `CaptionPhrases` is what training reads."""
        for table in self.row_groups(GRAPH_SCHEMA.names):
            yield from graphs_of(table)

    def graph_at(self, row: int) -> SceneGraph:
        """The graph of one row."""
        for number, count in enumerate(self.sizes()):
            if row < count:
                return next(graphs_of(self.read(GRAPH_SCHEMA.names, number).slice(row, 1)))
            row -= count
        raise IndexError(row)
