"""Embeddings of a split for other tools: Parquet tables, NumPy arrays, and indexes of faiss."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.storage.disk import require_space, write_json

EMBEDDINGS_FOLDER = "embeddings"
Form = Literal["parquet", "npy", "none"]
_ROW_GROUP = 8_192


class _Side(NamedTuple):
    """Images or captions of a split.

    Attributes:
        name: `images` or `captions`.
        vectors: [K, D] float32.
        ids: column -> K ids; the first is their own.
    """

    name: str
    vectors: np.ndarray
    ids: dict[str, np.ndarray]


def write_embeddings(folder: Path, split: SplitEmbeddings, form: Form) -> None:
    """Writes the embeddings of all images and captions with their ids.

    `parquet`: a table each with `image_id` (of captions `caption_id`, `image_id`) and `embedding`, a list of D float32.
    `npy`: an array [K, D] each, and the ids of its rows as a JSON list.

    Args:
        folder: exists.
        split: embeddings.
        form: of the files; `none` writes nothing.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    if form == "none":
        return
    require_space(folder, split.images.nbytes + split.texts.nbytes, "the embeddings")
    for side in _sides(split):
        if form == "parquet":
            _write_table(folder / f"{side.name}.parquet", side)
        else:
            np.save(folder / f"{side.name}.npy", side.vectors)
            _write_ids(folder, side)


def tables() -> dict[str, str]:
    """Name -> Parquet file in the exported folder, of those that `write_embeddings` writes."""
    return {side: f"{EMBEDDINGS_FOLDER}/{side}.parquet" for side in ("images", "captions")}


def write_index(folder: Path, split: SplitEmbeddings) -> None:
    """Writes a flat inner-product index of faiss over the images and one over the captions, and their ids as JSON.

    Row i of an index is entry i of the list of ids.

    Args:
        folder: exists.
        split: embeddings that are compared by inner product.

    Raises:
        MissingInputError: faiss is not installed.
        DiskFullError: the disk cannot hold them.
    """
    from itrpipe.mining.faiss_engine import load_faiss

    faiss = load_faiss()
    for side in _sides(split):
        # The library reports a full disk as an error of its own, which names no remedy.
        require_space(folder, side.vectors.nbytes, f"the index of the {side.name}")
        index = faiss.IndexFlatIP(side.vectors.shape[1])
        index.add(np.ascontiguousarray(side.vectors, dtype=np.float32))
        faiss.write_index(index, str(folder / f"{side.name}.faiss"))
        _write_ids(folder, side)


def _sides(split: SplitEmbeddings) -> tuple[_Side, _Side]:
    images = _Side("images", split.images, {"image_id": split.image_ids})
    ids = {"caption_id": split.caption_ids, "image_id": split.image_ids[split.caption_image]}
    return images, _Side("captions", split.texts, ids)


def _write_ids(folder: Path, side: _Side) -> None:
    write_json(folder / f"{side.name}.ids.json", next(iter(side.ids.values())).tolist())


def _write_table(path: Path, side: _Side) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, pa.Array] = {name: pa.array(ids.tolist(), pa.string()) for name, ids in side.ids.items()}
    values = pa.array(np.asarray(side.vectors).reshape(-1), pa.float32())
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(values, side.vectors.shape[1])
    # Embeddings do not compress, and dictionaries of their values only cost room.
    pq.write_table(
        pa.table(columns), path, row_group_size=_ROW_GROUP, compression="none", use_dictionary=False, version="2.6"
    )
