"""Rankings and right answers in the text format of TREC, which ranx, trec_eval and others read.

A run has lines `query Q0 document rank score tag`, the right answers lines `query 0 document 1`. In both, fields are
separated by a space, so whitespace and percent signs in ids are written as in URLs (`%20`), which can be undone.
Tools order by score; candidates of equal score may change places.
"""

from __future__ import annotations

import re
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


def write_runs(folder: Path, rankings: Path, tag: str) -> None:
    """Writes `run.i2t.trec` and `run.t2i.trec`.

    Args:
        folder: exists.
        rankings: `rankings.parquet` of an evaluation.
        tag: name of the run.
    """
    for direction in DIRECTIONS:
        with (folder / f"run.{direction}.trec").open("w", encoding="utf-8") as stream:
            for batch in pq.ParquetFile(checked(rankings)).iter_batches(_QUERIES):
                queries = batch.filter(pc.field("direction") == direction)
                candidates = queries["candidate_ids"]
                depth = candidates.type.list_size
                repeated = queries["query_id"].take(pa.array(np.repeat(np.arange(len(queries)), depth)))
                ranks = pa.array(np.tile(np.arange(1, depth + 1), len(queries))).cast(pa.string())
                # Arrow writes the shortest text that is read as the same float32: equal scores stay equal.
                scores = queries["scores"].flatten().cast(pa.string())
                stream.write(
                    _lines(_escaped(repeated), "Q0", _escaped(candidates.flatten()), ranks, scores, escape(tag))
                )


def write_qrels(folder: Path, pairs: Path, prepared: Path) -> None:
    """Writes `qrels.i2t.trec` and `qrels.t2i.trec`, of own pairs; where the dataset knows all matches `qrels.oracle.…`.

    Args:
        folder: exists.
        pairs: `cross_retrieval.parquet` of an evaluation, which names the image of every caption of the split.
        prepared: the dataset.

    Raises:
        DataError: the dataset's truth is damaged.
    """
    table = pq.read_table(checked(pairs), columns=["caption_id", "image_id"])
    captions, images = (table[name].combine_chunks() for name in ("caption_id", "image_id"))
    found, distinct = {"qrels": (captions, images)}, images.unique()
    truth = read_truth(prepared, np.array(distinct.to_pylist()), np.array(captions.to_pylist()))
    if truth is not None:
        rows = np.repeat(np.arange(len(captions)), [len(own) for own in truth])
        found["qrels.oracle"] = captions.take(pa.array(rows)), distinct.take(pa.array(np.concatenate(truth)))
    for name, sides in found.items():
        texts, pictures = map(_escaped, sides)
        for direction, (queries, documents) in zip(DIRECTIONS, ((pictures, texts), (texts, pictures)), strict=True):
            path = folder / f"{name}.{direction}.trec"
            path.write_text(_lines(queries, "0", documents, "1"), encoding="utf-8")


def escape(name: str) -> str:
    """A name without whitespace, which `urllib.parse.unquote` turns back."""
    return _UNSAFE.sub(lambda found: quote(found[0], safe=""), name)


def _escaped(names: pa.Array) -> pa.Array:
    """`escape` of every name; each distinct one is looked at once."""
    encoded: Any = names.dictionary_encode()
    return pa.array([escape(name) for name in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


def _lines(*fields: pa.Array | str) -> str:
    """One line for each row; a text is the same in every line."""
    columns = [pa.scalar(field) if isinstance(field, str) else field for field in (*fields, " ")]
    joined: Any = pc.call_function("binary_join_element_wise", columns)
    return "".join(f"{line}\n" for line in joined.to_pylist())
