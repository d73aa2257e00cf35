"""The best candidates of every query, and the ranks of pairs, as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation.cross_retrieval import cross_retrieval
from itrpipe.evaluation.metrics import Ranks, check_finite
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.disk import unavailable
from itrpipe.storage.integrity import checked
from itrpipe.storage.tables import rows_of

_BLOCK_VALUES = 1 << 22
"""Scores selected from at a time."""


@dataclass(frozen=True)
class Candidates:
    """The k best candidates of each query, best first.

    Attributes:
        indices: [Q, k] int32, rows or columns of the score matrix.
        scores: [Q, k] their scores.
    """

    indices: np.ndarray
    scores: np.ndarray


def rankings(
    scores: np.ndarray, k: int, image_ids: Sequence[str], caption_ids: Sequence[str]
) -> tuple[Candidates, Candidates]:
    """The k best captions of each image and the k best images of each caption.

    Candidates with equal scores come in the order of their ids, so that a ranking does not depend on the order
    of the rows, nor on the machine.

    Args:
        scores: [N, T] score of image n with caption t.
        k: candidates per query.
        image_ids: N ids, in the order of the rows.
        caption_ids: T ids, in the order of the columns.

    Returns:
        Captions per image [N, k], and images per caption [T, k].

    Raises:
        UsageError: there are fewer than k captions or images.
        DataError: a score is NaN or infinite.
    """
    if not 1 <= k <= min(scores.shape):
        raise UsageError(
            f"{k} candidates per query were asked for, but there are {scores.shape[0]} images and "
            f"{scores.shape[1]} captions: ask for 1..{min(scores.shape)}"
        )
    check_finite(scores)
    return _best(scores, k, caption_ids), _best(scores.T, k, image_ids)


def _best(scores: np.ndarray, k: int, ids: Sequence[str]) -> Candidates:
    """Best k columns of every row; equal scores in the order of `ids`."""
    by_id = np.argsort(np.asarray(ids), kind="stable")
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    found = [_best_of_block(scores[row : row + height][:, by_id], k) for row in range(0, len(scores), height)]
    columns = np.concatenate([columns for columns, _ in found])
    return Candidates(by_id[columns].astype(np.int32), np.concatenate([values for _, values in found]))


def _best_of_block(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Best k columns of every row and their scores; equal scores by ascending column."""
    threshold = np.partition(scores, scores.shape[1] - k, axis=1)[:, -k, None]  # [Q, 1] the k-th largest
    chosen = scores > threshold
    tied = scores == threshold
    places = k - chosen.sum(axis=1, keepdims=True)  # how many of the tied ones still fit
    chosen |= tied & (np.cumsum(tied, axis=1) <= places)
    columns = np.nonzero(chosen)[1].reshape(len(scores), k)
    values = np.take_along_axis(scores, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(values, order, axis=1)


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
