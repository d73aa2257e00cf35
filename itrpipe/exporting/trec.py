"""Rankings and right answers in the text format of TREC, which ranx, trec_eval and others read.

A run has lines `query Q0 document rank score tag`, the right answers lines `query 0 document 1`. In both, fields are
separated by a space, so whitespace and percent signs in ids are written as in URLs (`%20`), which can be undone.
Tools order by score; candidates of equal score may change places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.datasets.truth import read_truth
from itrpipe.storage.integrity import checked

DIRECTIONS = ("i2t", "t2i")
_QUERIES = 4_096
"""Queries whose lines are made at a time."""
_UNSAFE = re.compile(r"[\s%]")


def run_file(direction: str) -> str:
    """Name of the rankings of a direction."""
    return f"run.{direction}.trec"


def qrels_file(direction: str, *, oracle: bool = False) -> str:
    """Name of the right answers of a direction: the own pairs, or all correct matches."""
    return f"qrels.{'oracle.' if oracle else ''}{direction}.trec"


def write_runs(folder: Path, rankings: Path, tag: str) -> None:
    """Writes `run.i2t.trec` and `run.t2i.trec`.

    Args:
        folder: exists.
        rankings: `rankings.parquet` of an evaluation.
        tag: name of the run.
    """
    for direction in DIRECTIONS:
        with (folder / run_file(direction)).open("w", encoding="utf-8") as stream:
            for lines in _run_lines(rankings, direction, escape(tag)):
                stream.writelines(lines)


def _run_lines(rankings: Path, direction: str, tag: str) -> Iterator[list[str]]:
    """Lines of some queries at a time."""
    for batch in pq.ParquetFile(checked(rankings)).iter_batches(_QUERIES):
        queries = pa.Table.from_batches([batch]).filter(pc.field("direction") == direction)
        if not len(queries):
            continue
        candidates = queries["candidate_ids"].combine_chunks()
        depth = candidates.type.list_size
        repeated = _taken(queries["query_id"].combine_chunks(), np.repeat(np.arange(len(queries)), depth))
        ranks = pa.array(np.tile(np.arange(1, depth + 1), len(queries))).cast(pa.string())
        # Arrow writes the shortest text that is read as the same float32: equal scores stay equal, others apart.
        scores = queries["scores"].combine_chunks().flatten().cast(pa.string())
        yield _lines(_escaped(repeated), "Q0", _escaped(candidates.flatten()), ranks, scores, tag)


def write_qrels(folder: Path, pairs: Path, prepared: Path) -> None:
    """Writes `qrels.i2t.trec` and `qrels.t2i.trec`; where the dataset knows all correct matches also `qrels.oracle.…`.

    Args:
        folder: exists.
        pairs: `cross_retrieval.parquet` of an evaluation, which names the image of every caption of the split.
        prepared: the dataset.

    Raises:
        DataError: the dataset's truth is damaged.
    """
    table = pq.read_table(checked(pairs), columns=["caption_id", "image_id"])
    captions, images = (table[name].combine_chunks() for name in ("caption_id", "image_id"))
    _write_pairs(folder, captions, images, oracle=False)
    distinct = images.unique()
    truth = read_truth(prepared, np.array(distinct.to_pylist()), np.array(captions.to_pylist()))
    if truth is not None:
        rows = np.repeat(np.arange(len(captions)), [len(found) for found in truth])
        _write_pairs(folder, _taken(captions, rows), _taken(distinct, np.concatenate(truth)), oracle=True)


def _write_pairs(folder: Path, captions: pa.Array, images: pa.Array, *, oracle: bool) -> None:
    captions, images = _escaped(captions), _escaped(images)
    for direction, queries, documents in zip(DIRECTIONS, (images, captions), (captions, images), strict=True):
        with (folder / qrels_file(direction, oracle=oracle)).open("w", encoding="utf-8") as stream:
            stream.writelines(_lines(queries, "0", documents, "1"))


def escape(name: str) -> str:
    """A name without whitespace, which `urllib.parse.unquote` turns back."""
    return _UNSAFE.sub(lambda found: quote(found[0], safe=""), name)


def _escaped(names: pa.Array) -> pa.Array:
    """`escape` of every name; each distinct one is looked at once."""
    encoded: Any = names.dictionary_encode()
    safe = pa.array([escape(name) for name in encoded.dictionary.to_pylist()], pa.string())
    return safe.take(encoded.indices)


def _taken(names: pa.Array, rows: np.ndarray) -> pa.Array:
    return names.take(pa.array(rows))


def _lines(*fields: pa.Array | str) -> list[str]:
    """One line for each row, with its end; a text is the same in every line."""
    columns = [pa.scalar(field) if isinstance(field, str) else field for field in (*fields, " ")]
    joined: Any = pc.call_function("binary_join_element_wise", columns)
    return [f"{line}\n" for line in joined.to_pylist()]
