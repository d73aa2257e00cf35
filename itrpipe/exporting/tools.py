"""Embeddings, rankings and right answers of a split for other tools.

Embeddings are Parquet tables or NumPy arrays.

Rankings and right answers have the text format of TREC, which ranx, trec_eval and others read: a run has lines
`query Q0 document rank score tag`, the right answers lines `query 0 document 1`. In both, fields are separated by a
space, so whitespace and percent signs in ids are written as in URLs (`%20`), which can be undone. Tools order by score;
candidates of equal score may change places.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.datasets.truth import known_pairs
from itrpipe.evaluation.metrics import SIDES
from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.storage.disk import require_space, write_json
from itrpipe.storage.integrity import checked

EMBEDDINGS_FOLDER = "embeddings"
TABLES = {side: f"{EMBEDDINGS_FOLDER}/{side}.parquet" for side in ("images", "captions")}
"""Name -> Parquet file in the exported folder."""
_ROW_GROUP = 8_192
_QUERIES = 4_096
"""Queries whose lines are made at a time."""
_UNSAFE = re.compile(r"[\s%]")


def write_embeddings(folder: Path, split: SplitEmbeddings, form: str) -> None:
    """Writes the embeddings of all images and captions with their ids.

    `parquet`: a table each with `image_id` (of captions `caption_id`, `image_id`) and `embedding`, a list of D float32.
    `npy`: an array [K, D] each, and the ids of its rows as a JSON list.

    Args:
        folder: exists.
        split: embeddings.
        form: `parquet` or `npy`.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    owners = split.image_ids[split.caption_image]
    require_space(folder, split.images.nbytes + split.texts.nbytes, "the embeddings")
    for name, vectors, ids in (
        ("images", split.images, {"image_id": split.image_ids}),
        ("captions", split.texts, {"caption_id": split.caption_ids, "image_id": owners}),
    ):
        if form == "parquet":
            columns: dict[str, Any] = {key: pa.array(each.tolist(), pa.string()) for key, each in ids.items()}
            values = pa.array(np.asarray(vectors).reshape(-1), pa.float32())
            columns["embedding"] = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
            # Embeddings do not compress, and dictionaries of their values only cost room.
            how: dict[str, Any] = {"compression": "none", "use_dictionary": False, "version": "2.6"}
            pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=_ROW_GROUP, **how)
        else:
            np.save(folder / f"{name}.npy", vectors)
            write_json(folder / f"{name}.ids.json", next(iter(ids.values())).tolist())


def write_runs(folder: Path, rankings: Path, tag: str) -> None:
    """Writes `run.i2t.trec` and `run.t2i.trec`.

    Args:
        folder: exists.
        rankings: `rankings.parquet` of an evaluation.
        tag: name of the run.
    """
    for direction in SIDES:
        with (folder / f"run.{direction}.trec").open("w", encoding="utf-8") as stream:
            for batch in pq.ParquetFile(checked(rankings)).iter_batches(_QUERIES):
                queries = batch.filter(pc.field("direction") == direction)
                # Arrow writes the shortest text that is read as the same float32: equal scores stay equal.
                scores = iter(queries["scores"].flatten().cast(pa.string()).to_pylist())
                lists = zip(queries["query_id"].to_pylist(), queries["candidate_ids"].to_pylist(), strict=True)
                for query, candidates in lists:
                    for rank, candidate in enumerate(candidates, 1):
                        stream.write(f"{escape(query)} Q0 {escape(candidate)} {rank} {next(scores)} {escape(tag)}\n")


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
    captions, owners = (column.to_pylist() for column in table.columns)
    images = list(dict.fromkeys(owners))
    matches = {"qrels": zip(captions, owners, strict=True)}
    truth = known_pairs(prepared, np.array(images), np.array(captions))
    if truth is not None:
        sides = np.array(captions)[truth.caption_rows], np.array(images)[truth.image_rows]
        matches["qrels.oracle"] = zip(*(side.tolist() for side in sides), strict=True)
    for name, found in matches.items():
        of_images, of_captions = [], []
        for caption, image in found:
            of_images.append(f"{escape(image)} 0 {escape(caption)} 1\n")
            of_captions.append(f"{escape(caption)} 0 {escape(image)} 1\n")
        for direction, lines in zip(SIDES, (of_images, of_captions), strict=True):
            (folder / f"{name}.{direction}.trec").write_text("".join(lines), encoding="utf-8")


@cache
def escape(name: str) -> str:
    """A name without whitespace, which `urllib.parse.unquote` turns back."""
    return _UNSAFE.sub(lambda found: quote(found[0], safe=""), name)
