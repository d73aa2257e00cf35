"""Embeddings of a split for other tools: Parquet tables, NumPy arrays, and indexes of faiss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.storage.disk import require_space, write_json

EMBEDDINGS_FOLDER = "embeddings"
FORMS = ("parquet", "npy", "none")
TABLES = {side: f"{EMBEDDINGS_FOLDER}/{side}.parquet" for side in ("images", "captions")}
"""Name -> Parquet file in the exported folder."""
_ROW_GROUP = 8_192


def write_embeddings(folder: Path, split: SplitEmbeddings, form: str, *, index: bool = False) -> None:
    """Writes the embeddings of all images and captions with their ids.

    `parquet`: a table each with `image_id` (of captions `caption_id`, `image_id`) and `embedding`, a list of D float32.
    `npy`: an array [K, D] each. An index is a flat inner-product index of faiss each. With either of them the ids of
    the rows are a JSON list.

    Args:
        folder: exists.
        split: embeddings, for an index compared by inner product.
        form: one of `FORMS`; `none` writes no file of vectors.
        index: whether indexes are written.

    Raises:
        MissingInputError: faiss is not installed.
        DiskFullError: the disk cannot hold them.
    """
    owners = split.image_ids[split.caption_image]
    sides: dict[str, tuple[np.ndarray, dict[str, np.ndarray]]] = {
        "images": (split.images, {"image_id": split.image_ids}),
        "captions": (split.texts, {"caption_id": split.caption_ids, "image_id": owners}),
    }
    # faiss reports a full disk as an error of its own, which names no remedy.
    files = (form != "none") + index
    require_space(folder, files * sum(vectors.nbytes for vectors, _ in sides.values()), "the embeddings")
    for name, (vectors, ids) in sides.items():
        if form == "parquet":
            _write_table(folder / f"{name}.parquet", vectors, ids)
        if form == "npy":
            np.save(folder / f"{name}.npy", vectors)
        if index:
            from itrpipe.mining.faiss_engine import load_faiss

            faiss: Any = load_faiss()
            made = faiss.IndexFlatIP(vectors.shape[1])
            made.add(np.ascontiguousarray(vectors, dtype=np.float32))
            faiss.write_index(made, str(folder / f"{name}.faiss"))
        if index or form == "npy":
            write_json(folder / f"{name}.ids.json", next(iter(ids.values())).tolist())


def _write_table(path: Path, vectors: np.ndarray, ids: dict[str, np.ndarray]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, pa.Array] = {name: pa.array(each.tolist(), pa.string()) for name, each in ids.items()}
    values = pa.array(np.asarray(vectors).reshape(-1), pa.float32())
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    # Embeddings do not compress, and dictionaries of their values only cost room.
    how: dict[str, Any] = {"compression": "none", "use_dictionary": False, "version": "2.6"}
    pq.write_table(pa.table(columns), path, row_group_size=_ROW_GROUP, **how)
