"""The best candidates of every query, and the ranks of pairs, as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.evaluation.metrics import SIDES, Ranks, cross_retrieval
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.disk import reading
from itrpipe.storage.tables import read_table, rows_of

_BLOCK_VALUES = 1 << 22
"""Scores selected from at a time."""
_REMEDY = "run `itrpipe evaluate` again"
Best = tuple[np.ndarray, np.ndarray]
"""The k best candidates of each query, best first: int32 [Q, k], rows or columns of the score matrix, and scores."""


def rankings(scores: np.ndarray, k: int, image_ids: Sequence[str], caption_ids: Sequence[str]) -> tuple[Best, Best]:
    """The k best captions of each image and the k best images of each caption.

    Candidates with equal scores come in the order of their ids, so that a ranking does not depend on the order
    of the rows, nor on the machine.

    Args:
        scores: [N, T] score of image n with caption t, finite, see `itrpipe.evaluation.metrics.ranks`.
        k: candidates per query, 1 to the lesser of N and T.
        image_ids: N ids, in the order of the rows.
        caption_ids: T ids, in the order of the columns.

    Returns:
        Captions per image [N, k], and images per caption [T, k].
    """
    return _best(scores, k, caption_ids), _best(scores.T, k, image_ids)


def _best(scores: np.ndarray, k: int, ids: Sequence[str]) -> Best:
    """Best k columns of every row; equal scores in the order of `ids`."""
    by_id = np.argsort(np.asarray(ids), kind="stable")
    height, found = max(1, _BLOCK_VALUES // scores.shape[1]), []
    for row in range(0, len(scores), height):
        block = scores[row : row + height][:, by_id]
        threshold = np.partition(block, -k, axis=1)[:, -k, None]  # [q, 1] the k-th largest
        chosen, tied = block > threshold, block == threshold
        places = k - chosen.sum(axis=1, keepdims=True)  # how many of the tied ones still fit
        columns = np.nonzero(chosen | tied & (np.cumsum(tied, axis=1) <= places))[1].reshape(len(block), k)
        values = np.take_along_axis(block, columns, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        found.append([np.take_along_axis(each, order, axis=1) for each in (by_id[columns], values)])
    indices, values = map(np.concatenate, zip(*found, strict=True))
    return indices.astype(np.int32), values


def write_rankings(path: Path, split: SplitScores, full: Ranks, oracle: Ranks | None, depth: int) -> None:
    """One row per query of either direction: the rank of its best correct match and its best candidates.

    Args:
        path: replaced if it exists.
        split: scores.
        full: ranks with a caption's own image as its only match.
        oracle: ranks with all correct matches counted, where the truth is known.
        depth: candidates kept for each query, as far as there are so many.
    """
    depth, ids = min(depth, *split.matrix.shape), (split.image_ids, split.caption_ids)
    found, tables = rankings(split.matrix, depth, *(each.tolist() for each in ids)), []
    for direction, side, (indices, scores), queries, candidates in zip(
        SIDES, ("images_to_texts", "texts_to_images"), found, ids, ids[::-1], strict=True
    ):
        count = len(queries)
        columns = {
            "direction": pa.array([direction] * count),
            "query_id": pa.array(queries.tolist(), pa.string()),
            "rank": pa.array(getattr(full, side), pa.int32()),
            "oracle_rank": pa.array(getattr(oracle, side), pa.int32()) if oracle else pa.nulls(count, pa.int32()),
            "candidate_ids": _lists(candidates[indices], pa.string()),
            "scores": _lists(scores.astype("float32"), pa.float32()),
        }
        tables.append(pa.table(columns))
    pq.write_table(pa.concat_tables(tables), path, compression="zstd")


def _lists(matrix: np.ndarray, kind: pa.DataType) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1).tolist(), kind), matrix.shape[1])


def read_rankings(
    path: Path, image_ids: np.ndarray, caption_ids: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return what `write_rankings` wrote, as rows: of images as queries, then of captions.

    Args:
        path: the file.
        image_ids, caption_ids: of the split, text [N] and [T].

    Returns:
        For each direction rows of its Q queries, and of their D candidates [Q, D], best first, and scores [Q, D].

    Raises:
        DataError: the file is damaged, or of another split.
    """
    columns = ("direction", "query_id", "candidate_ids", "scores")
    table = read_table(path, columns, _REMEDY, columns)
    known = [pa.array(each.tolist(), pa.string()) for each in (image_ids, caption_ids)]
    found = []
    with reading(path, "rankings of this split", _REMEDY):
        for direction, queries, candidates in zip(SIDES, known, known[::-1], strict=True):
            own = table.filter(pc.field("direction") == direction).combine_chunks()
            ids, scores = (own[name].combine_chunks().flatten() for name in ("candidate_ids", "scores"))
            rows = rows_of(own["query_id"], queries), rows_of(ids, candidates)
            if any(np.any(each < 0) for each in rows):
                raise ValueError("it names images or captions that the split lacks")
            shape = len(own), len(ids) // max(1, len(own))
            found.append((rows[0], rows[1].reshape(shape), scores.to_numpy().reshape(shape)))
    return found


def write_cross_retrieval(path: Path, split: SplitScores) -> None:
    """One row per caption, in the order of the split: its ranks with its image in both directions."""
    ids = {"caption_id": split.caption_ids, "image_id": split.image_ids[split.caption_image]}
    columns = {name: pa.array(each.tolist(), pa.string()) for name, each in ids.items()}
    found = cross_retrieval(split.matrix, split.caption_image)
    columns |= {name: pa.array(each, pa.int32()) for name, each in found.items()}
    pq.write_table(pa.table(columns), path, compression="zstd")
