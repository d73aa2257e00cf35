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

EMBEDDINGS_FOLDER = "embeddings"
TABLES = {side: f"{EMBEDDINGS_FOLDER}/{side}.parquet" for side in ("images", "captions")}
"""Name -> Parquet file in the exported folder."""
_ROW_GROUP = 8_192
_QUERIES = 4_096
"""Queries whose lines are made at a time."""
_UNSAFE = re.compile(r"[\s%]")


def write_embeddings(folder: Path, split: SplitEmbeddings, form: str) -> None:
    """Write the embeddings of all images and captions with their ids.

    `parquet`: a table each with `image_id` (of captions `caption_id`, `image_id`) and `embedding`, a list of D float32.
    `npy`: an array [K, D] each, and the ids of its rows as a JSON list.

    Args:
        folder: exists.
        split: embeddings.
        form: `parquet` or `npy`.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    require_space(folder, split.images.nbytes + split.texts.nbytes, "the embeddings")
    image_ids = split.image_ids.tolist()
    caption_ids = split.caption_ids.tolist()
    if form == "parquet":
        owners = split.image_ids[split.caption_image].tolist()
        _write_vectors(folder / "images.parquet", split.images, image_id=image_ids)
        _write_vectors(folder / "captions.parquet", split.texts, caption_id=caption_ids, image_id=owners)
    else:
        np.save(folder / "images.npy", split.images)
        np.save(folder / "captions.npy", split.texts)
        write_json(folder / "images.ids.json", image_ids)
        write_json(folder / "captions.ids.json", caption_ids)


def _write_vectors(
    path: Path,
    vectors: np.ndarray,
    **ids: list[str],
) -> None:
    columns: dict[str, Any] = {}
    for name, values in ids.items():
        columns[name] = pa.array(values, pa.string())
    flat = pa.array(np.asarray(vectors).reshape(-1), pa.float32())
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    # Embeddings do not compress, and dictionaries of their values only cost room.
    pq.write_table(
        pa.table(columns),
        path,
        row_group_size=_ROW_GROUP,
        compression="none",
        use_dictionary=False,
        version="2.6",
    )


def write_runs(folder: Path, rankings: Path, tag: str) -> None:
    """Write `run.i2t.trec` and `run.t2i.trec`.

    Args:
        folder: exists.
        rankings: `rankings.parquet` of an evaluation.
        tag: name of the run.
    """
    for direction in SIDES:
        with (folder / f"run.{direction}.trec").open("w", encoding="utf-8") as stream:
            for batch in pq.ParquetFile(rankings).iter_batches(_QUERIES):
                queries = batch.filter(pc.field("direction") == direction)
                # Arrow writes the shortest text that is read as the same float32: equal scores stay equal.
                texts = queries["scores"].flatten().cast(pa.string())
                scores = iter(texts.to_pylist())
                query_ids = queries["query_id"].to_pylist()
                candidate_ids = queries["candidate_ids"].to_pylist()
                for query, candidates in zip(query_ids, candidate_ids, strict=True):
                    for rank, candidate in enumerate(candidates, 1):
                        stream.write(f"{escape(query)} Q0 {escape(candidate)} {rank} {next(scores)} {escape(tag)}\n")


def write_qrels(folder: Path, pairs: Path, prepared: Path) -> None:
    """Write `qrels.i2t.trec` and `qrels.t2i.trec`, of own pairs; where the dataset knows all matches `qrels.oracle.…`.

    Args:
        folder: exists.
        pairs: `cross_retrieval.parquet` of an evaluation, which names the image of every caption of the split.
        prepared: the dataset.

    Raises:
        DataError: the dataset's truth is damaged.
    """
    table = pq.read_table(pairs, columns=["caption_id", "image_id"])
    captions = table["caption_id"].to_pylist()
    owners = table["image_id"].to_pylist()
    _write_matches(folder, "qrels", captions, owners)
    images = np.array(list(dict.fromkeys(owners)))
    truth = known_pairs(prepared, images, np.array(captions))
    if truth is not None:
        matching_captions = np.array(captions)[truth.caption_rows].tolist()
        matching_images = images[truth.image_rows].tolist()
        _write_matches(folder, "qrels.oracle", matching_captions, matching_images)


def _write_matches(
    folder: Path,
    name: str,
    captions: list[str],
    images: list[str],
) -> None:
    of_images = []
    of_captions = []
    for caption, image in zip(captions, images, strict=True):
        of_images.append(f"{escape(image)} 0 {escape(caption)} 1\n")
        of_captions.append(f"{escape(caption)} 0 {escape(image)} 1\n")
    (folder / f"{name}.i2t.trec").write_text("".join(of_images), encoding="utf-8")
    (folder / f"{name}.t2i.trec").write_text("".join(of_captions), encoding="utf-8")


@cache
def escape(name: str) -> str:
    """Return a name without whitespace, which `urllib.parse.unquote` turns back."""
    return _UNSAFE.sub(lambda match: quote(match[0], safe=""), name)
