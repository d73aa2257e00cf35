"""Scene graphs as Parquet: one row per caption, in the order of the captions of the dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.scene_graph.graph import Attribute, Object, Relation, SceneGraph, Token
from itrpipe.storage.arrays import Ragged
from itrpipe.storage.tables import TableFile, table_writer

SCENE_GRAPHS_FILE = "scene_graphs.parquet"
ROW_GROUP = 8192
INT16 = pa.int16()
INT32 = pa.int32()
TEXT = pa.string()
TOKEN_IDS = {"token_ids": pa.list_(INT16), "lemma": TEXT}
STRUCTS = {
    "tokens": {
        "text": TEXT,
        "start": INT32,
        "end": INT32,
        "tag": TEXT,
        "lemma": TEXT,
    },
    "objects": {"id": INT16, "head": INT16, **TOKEN_IDS},
    "attributes": {
        "id": INT16,
        "object": INT16,
        **TOKEN_IDS,
        "kind": TEXT,
    },
    "relations": {
        "id": INT16,
        "subject": INT16,
        "object": INT16,
        **TOKEN_IDS,
        "kind": TEXT,
    },
}
"""Fields of the structs of each list column, in the order of the fields of the dataclass."""
CLASSES = {
    "tokens": Token,
    "objects": Object,
    "attributes": Attribute,
    "relations": Relation,
}
ELEMENTS = ("objects", "attributes", "relations")
GRAPH_SCHEMA = pa.schema({"text": TEXT, "status": TEXT})
for _column, _fields in STRUCTS.items():
    GRAPH_SCHEMA = GRAPH_SCHEMA.append(pa.field(_column, pa.list_(pa.struct(_fields))))
SCHEMA = pa.schema([("caption_id", TEXT), ("image_id", TEXT), *GRAPH_SCHEMA])


def graphs_table(graphs: Sequence[SceneGraph]) -> pa.Table:
    """Return graphs as rows of `GRAPH_SCHEMA`."""
    columns: list[pa.Array] = []
    for name in ("text", "status"):
        columns.append(pa.array(map(attrgetter(name), graphs), TEXT))
    for column, fields in STRUCTS.items():
        rows = [getattr(graph, column) for graph in graphs]
        elements = list(chain.from_iterable(rows))
        # Field by field, because a dictionary per element takes several times as long.
        arrays = []
        for name, kind in fields.items():
            read_field = attrgetter(name.replace("token_ids", "tokens"))
            arrays.append(pa.array(map(read_field, elements), kind))
        structs = pa.StructArray.from_arrays(arrays, list(fields))
        offsets = np.cumsum([0, *map(len, rows)])
        columns.append(pa.ListArray.from_arrays(pa.array(offsets, INT32), structs))
    return pa.Table.from_arrays(columns, schema=GRAPH_SCHEMA)


def with_ids(captions: pa.Table, graphs: pa.Table) -> pa.Table:
    """Return rows of `SCHEMA`: graphs with the columns caption_id and image_id of their captions."""
    ids = captions.select(["caption_id", "image_id"])
    return pa.Table.from_arrays(ids.columns + graphs.columns, schema=SCHEMA)


def flattened(table: pa.Table, column: str) -> tuple[Ragged, pa.StructArray]:
    """Return the places of each row's structs among all of a list column, and these structs."""
    lists = table[column].combine_chunks()
    return Ragged.of_counts(lists.value_lengths().to_numpy()), lists.flatten()


def graphs_of(table: pa.Table) -> Iterator[SceneGraph]:
    """Yields the graphs of rows, which may have further columns; they share their words."""
    for row in table.select(GRAPH_SCHEMA.names).to_pylist():
        parts = {}
        for name, kind in CLASSES.items():
            elements = []
            for fields in row[name]:
                for key, value in fields.items():
                    if isinstance(value, str):
                        fields[key] = sys.intern(value)
                    elif isinstance(value, list):
                        fields[key] = tuple(value)
                elements.append(kind(*fields.values()))
            parts[name] = tuple(elements)
        yield SceneGraph(row["text"], **parts, status=row["status"])


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
    """Reads the artifact of `itrpipe parse` a row group at a time; the captions of an image follow each other.

    Args:
        folder: the artifact.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is damaged or has other columns.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / SCENE_GRAPHS_FILE, SCHEMA, "remove its folder and run `itrpipe parse`")
