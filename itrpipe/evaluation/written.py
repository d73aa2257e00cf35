"""Rankings and ranks as Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.errors import DataError
from itrpipe.evaluation.cross_retrieval import cross_retrieval
from itrpipe.evaluation.rankings import rankings
from itrpipe.evaluation.ranks import Ranks
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.disk import unavailable
from itrpipe.storage.integrity import checked
from itrpipe.storage.tables import rows_of


def write_rankings(path: Path, split: SplitScores, full: Ranks, oracle: Ranks | None, depth: int) -> None:
    """One row per query of either direction: the rank of its best correct match and its best candidates.

    Args:
        path: replaced if it exists.
        split: scores.
        full: ranks with a caption's own image as its only match.
        oracle: ranks with all correct matches counted, where the truth is known.
        depth: candidates kept for each query, as far as there are so many.
    """
    depth = min(depth, *split.matrix.shape)
    tables = []
    sides = zip(
        ("i2t", "t2i"),
        ("images_to_texts", "texts_to_images"),
        rankings(split.matrix, depth, split.image_ids.tolist(), split.caption_ids.tolist()),
        (split.image_ids, split.caption_ids),
        (split.caption_ids, split.image_ids),
        strict=True,
    )
    for direction, side, found, queries, candidates in sides:
        count = len(queries)
        columns = {
            "direction": pa.array([direction] * count),
            "query_id": pa.array(queries.tolist(), pa.string()),
            "rank": pa.array(getattr(full, side), pa.int32()),
            "oracle_rank": pa.array(getattr(oracle, side), pa.int32()) if oracle else pa.nulls(count, pa.int32()),
            "candidate_ids": _lists(candidates[found.indices], depth, pa.string()),
            "scores": _lists(found.scores.astype("float32"), depth, pa.float32()),
        }
        tables.append(pa.table(columns))
    pq.write_table(pa.concat_tables(tables), path, compression="zstd")


def read_rankings(
    path: Path, image_ids: np.ndarray, caption_ids: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """What `write_rankings` wrote, as rows: of images as queries, then of captions.

    Args:
        path: the file.
        image_ids, caption_ids: of the split, text [N] and [T].

    Returns:
        For each direction rows of its Q queries, and of their D candidates [Q, D], best first, and scores [Q, D].

    Raises:
        DataError: the file is damaged, or of another split.
    """
    found = []
    try:
        table = pq.read_table(checked(path))
        ids = {"i2t": (image_ids, caption_ids), "t2i": (caption_ids, image_ids)}
        for direction, (queries, candidates) in ids.items():
            own = table.filter(pc.field("direction") == direction).combine_chunks()
            values = own["candidate_ids"].combine_chunks().flatten(), own["scores"].combine_chunks().flatten()
            depth = len(values[0]) // max(1, len(own))
            rows = _rows(values[0], candidates).reshape(-1, depth)
            found.append((_rows(own["query_id"], queries), rows, values[1].to_numpy().reshape(-1, depth)))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        damage = DataError(f"{path} is damaged or of another split ({reason}); run `itrpipe evaluate` again")
        raise unavailable(error, path) or damage from None
    return found


def size_of_rankings(path: Path) -> tuple[int, int]:
    """How many images and captions were ranked.

    Raises:
        DataError: the file is damaged.
    """
    try:
        sides = pq.read_table(checked(path), columns=["direction"])["direction"].to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        damage = DataError(f"{path} is damaged; run `itrpipe evaluate` again")
        raise unavailable(error, path) or damage from None
    return sides.count("i2t"), sides.count("t2i")


def _rows(wanted: pa.Array | pa.ChunkedArray, ids: np.ndarray) -> np.ndarray:
    places = rows_of(wanted, pa.array(ids.tolist(), pa.string()))
    if np.any(places < 0):
        raise ValueError("it names images or captions that the split lacks")
    return places


def write_cross_retrieval(path: Path, split: SplitScores) -> None:
    """One row per caption, in the order of the split: its ranks with its image in both directions."""
    found = cross_retrieval(split.matrix, split.caption_image)
    columns = {
        "caption_id": pa.array(split.caption_ids.tolist(), pa.string()),
        "image_id": pa.array(split.image_ids[split.caption_image].tolist(), pa.string()),
        "image_rank": pa.array(found.image_rank, pa.int32()),
        "text_rank": pa.array(found.text_rank, pa.int32()),
        "cross_rank": pa.array(found.cross_rank, pa.int32()),
    }
    pq.write_table(pa.table(columns), path, compression="zstd")


def _lists(matrix: np.ndarray, width: int, kind: pa.DataType) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1).tolist(), kind), width)
