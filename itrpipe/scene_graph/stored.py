"""Scene graphs as Parquet: one row per caption, in the order of the captions of the dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.errors import DataError, MissingInputError
from itrpipe.scene_graph.graph import Attribute, Object, Relation, SceneGraph, Token
from itrpipe.storage.disk import reading_error
from itrpipe.storage.integrity import checked
from itrpipe.storage.ragged import Ragged

SCENE_GRAPHS_FILE = "scene_graphs.parquet"
ROW_GROUP = 8192
LONGEST = 2**15 - 1
"""Tokens, objects, attributes or relations that one caption may have."""

_POSITIONS = pa.list_(pa.int16())
TOKEN = pa.struct(
    [("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("tag", pa.string()), ("lemma", pa.string())]
)
OBJECT = pa.struct([("id", pa.int16()), ("head", pa.int16()), ("token_ids", _POSITIONS), ("lemma", pa.string())])
ATTRIBUTE = pa.struct(
    [
        ("id", pa.int16()),
        ("object", pa.int16()),
        ("token_ids", _POSITIONS),
        ("lemma", pa.string()),
        ("kind", pa.string()),
    ]
)
RELATION = pa.struct(
    [
        ("id", pa.int16()),
        ("subject", pa.int16()),
        ("object", pa.int16()),
        ("token_ids", _POSITIONS),
        ("lemma", pa.string()),
        ("kind", pa.string()),
    ]
)
GRAPH_SCHEMA = pa.schema(
    [
        ("caption_sha1", pa.binary(20)),
        ("text", pa.string()),
        ("parser", pa.string()),
        ("status", pa.string()),
        ("tokens", pa.list_(TOKEN)),
        ("objects", pa.list_(OBJECT)),
        ("attributes", pa.list_(ATTRIBUTE)),
        ("relations", pa.list_(RELATION)),
    ]
)
ELEMENTS = ("objects", "attributes", "relations")
SCHEMA = pa.schema([("caption_id", pa.string()), ("image_id", pa.string()), *GRAPH_SCHEMA])


def caption_sha1(text: str) -> bytes:
    """Digest of a caption's UTF-8 bytes, 20 of them."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).digest()


def graphs_table(graphs: Sequence[SceneGraph], parser: str) -> pa.Table:
    """Graphs as rows of `GRAPH_SCHEMA`.

    Args:
        graphs: any number.
        parser: version of the parser that made them.

    Raises:
        DataError: a caption has more words than a row can number.
    """
    for graph in graphs:
        if len(graph.tokens) > LONGEST:
            raise DataError(
                f"caption {graph.text[:40]!r}… has {len(graph.tokens):,} words and at most {LONGEST:,} can be "
                "numbered; remove it from the dataset"
            )
    columns = [
        pa.array([caption_sha1(graph.text) for graph in graphs], pa.binary(20)),
        pa.array([graph.text for graph in graphs], pa.string()),
        pa.array([parser] * len(graphs), pa.string()),
        pa.array([graph.status for graph in graphs], pa.string()),
        _lists([graph.tokens for graph in graphs], TOKEN),
        _lists([graph.objects for graph in graphs], OBJECT),
        _lists([graph.attributes for graph in graphs], ATTRIBUTE),
        _lists([graph.relations for graph in graphs], RELATION),
    ]
    return pa.Table.from_arrays(columns, schema=GRAPH_SCHEMA)


def _lists(rows: Sequence[Sequence[Any]], kind: pa.StructType) -> pa.ListArray:
    """Dataclasses, whose fields stand in the order of the struct's, as one list per row.

    Column by column, because a dictionary per element takes several times as long.
    """
    names = ["tokens" if field.name == "token_ids" else str(field.name) for field in kind]
    columns = [
        pa.array([getattr(element, name) for row in rows for element in row], field.type)
        for name, field in zip(names, kind, strict=True)
    ]
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(columns, fields=list(kind))
    )


def flattened(table: pa.Table, column: str) -> tuple[Ragged, pa.StructArray]:
    """The structs of a list column, one row's behind the other's, and the numbers of those of each row."""
    lists = table[column].combine_chunks()
    return Ragged.of_counts(np.diff(lists.offsets.to_numpy())), lists.flatten()


def count_elements(table: pa.Table) -> dict[str, int]:
    """How many objects, attributes and relations rows hold, and how many are empty, partial or failed."""
    lengths = {name: np.diff(table[name].combine_chunks().offsets.to_numpy()) for name in ELEMENTS}
    counts = {name: int(each.sum()) for name, each in lengths.items()}
    counts["empty"] = int((lengths["objects"] == 0).sum())
    statuses = table["status"].to_pylist()
    return counts | {status: statuses.count(status) for status in ("partial", "failed")}


def graphs_of(table: pa.Table) -> Iterator[SceneGraph]:
    """The graphs of rows, which may have further columns."""
    for row in table.select(GRAPH_SCHEMA.names).to_pylist():
        yield SceneGraph(
            text=row["text"],
            tokens=tuple(Token(**each) for each in row["tokens"]),
            objects=tuple(Object(**_with_tokens(each)) for each in row["objects"]),
            attributes=tuple(Attribute(**_with_tokens(each)) for each in row["attributes"]),
            relations=tuple(Relation(**_with_tokens(each)) for each in row["relations"]),
            status=row["status"],
        )


def _with_tokens(element: dict[str, Any]) -> dict[str, Any]:
    tokens = tuple(element.pop("token_ids"))
    return {**element, "tokens": tokens}


def write_graphs(path: Path, row_groups: Iterable[pa.Table]) -> None:
    """Writes a file of `SCHEMA`; every table becomes one row group.

    Args:
        path: replaced if it exists.
        row_groups: of at most `ROW_GROUP` rows each.
    """
    # Without checksums a flipped bit in a caption would read as another caption.
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for table in row_groups:
            writer.write_table(table, row_group_size=ROW_GROUP)


class SceneGraphFile:
    """Reads the artifact of `itrpipe parse` a row group at a time.

    Args:
        folder: the artifact.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is damaged or has other columns.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / SCENE_GRAPHS_FILE
        if not self.path.is_file():
            raise MissingInputError(f"{self.path} is not there; run `itrpipe parse`")
        try:
            self._file = pq.ParquetFile(checked(self.path), page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise reading_error(error, self.path, self._damage(error)) from error
        if not self._file.schema_arrow.equals(SCHEMA):
            found = ", ".join(f"{field.name} {field.type}" for field in self._file.schema_arrow)
            raise DataError(f"{self.path} has other columns than this version writes ({found}); run `itrpipe parse`")

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    @cached_property
    def caption_ids(self) -> list[str]:
        """Ids of the captions, one a row."""
        return [each for table in self.row_groups(["caption_id"]) for each in table["caption_id"].to_pylist()]

    @cached_property
    def image_ids(self) -> list[str]:
        """Id of each caption's image, one a row; the captions of an image follow each other."""
        return [each for table in self.row_groups(["image_id"]) for each in table["image_id"].to_pylist()]

    def row_groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields tables of up to `ROW_GROUP` rows in order, of all columns unless some are named.

        Raises:
            DataError: a page is damaged.
        """
        for number in range(self._file.num_row_groups):
            yield self._read(number, columns)

    def graphs(self) -> Iterator[SceneGraph]:
        """Yields the graph of every row; for views and analyses, `CaptionPhrases` is what training reads."""
        for table in self.row_groups(GRAPH_SCHEMA.names):
            yield from graphs_of(table)

    def graphs_at(self, rows: Sequence[int]) -> list[SceneGraph]:
        """The graphs of a few rows, in the order asked for."""
        wanted = sorted(set(rows))
        found: dict[int, SceneGraph] = {}
        start = 0
        for number in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(number).num_rows
            own = [row for row in wanted if start <= row < start + count]
            if own:
                table = self._read(number, GRAPH_SCHEMA.names).take([row - start for row in own])
                found |= dict(zip(own, graphs_of(table), strict=True))
            start += count
        return [found[row] for row in rows]

    def _read(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        try:
            return self._file.read_row_group(number, columns=list(columns) if columns else None)
        except (OSError, pa.ArrowException) as error:
            raise reading_error(error, self.path, self._damage(error)) from error

    def _damage(self, error: Exception) -> DataError:
        reason = " ".join(str(error).split())
        return DataError(f"{self.path} is truncated or damaged ({reason}); remove its folder and run `itrpipe parse`")
