"""The files of an evaluation: its figures as JSON; the best candidates of every query and ranks of pairs as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from itrpipe.datasets.truth import PairSet
from itrpipe.evaluation.intervals import Figures, fold_figures
from itrpipe.evaluation.metrics import PROTOCOLS, Ranks, cross_retrieval, protocol_folds, ranks, ranks_of_matches
from itrpipe.evaluation.results import FULL, ORACLE, with_matches
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import CROSS_RETRIEVAL, METRICS, RANKINGS
from itrpipe.storage.disk import reading, write_json
from itrpipe.storage.tables import read_table, rows_of

_BLOCK_VALUES = 1 << 22
"""Scores selected from at a time."""
_REMEDY = "run `itrpipe evaluate` again"
Best = tuple[np.ndarray, np.ndarray]
"""The k best candidates of each query, best first: int32 [Q, k], rows or columns of the score matrix, and scores."""


def rankings(
    scores: np.ndarray,
    k: int,
    image_ids: Sequence[str],
    caption_ids: Sequence[str],
) -> tuple[Best, Best]:
    """Return the k best captions of each image and the k best images of each caption.

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
    """Return the best k columns of every row; equal scores in the order of `ids`."""
    queries, candidates = scores.shape
    by_id = np.argsort(np.asarray(ids), kind="stable")
    indices = np.empty((queries, k), np.int32)
    values = np.empty((queries, k), scores.dtype)
    height = max(1, _BLOCK_VALUES // candidates)
    for start in range(0, queries, height):
        rows = slice(start, start + height)
        block = scores[rows][:, by_id]
        threshold = np.partition(block, -k, axis=1)[:, -k, None]  # [q, 1] the k-th largest
        is_above = block > threshold
        is_tied = block == threshold
        free = k - is_above.sum(axis=1, keepdims=True)  # places for some of the tied ones
        has_place = np.cumsum(is_tied, axis=1) <= free
        _, columns = np.nonzero(is_above | is_tied & has_place)
        columns = columns.reshape(-1, k)
        chosen = np.take_along_axis(block, columns, axis=1)
        order = np.argsort(-chosen, axis=1, kind="stable")
        indices[rows] = np.take_along_axis(by_id[columns], order, axis=1)
        values[rows] = np.take_along_axis(chosen, order, axis=1)
    return indices, values


def write_results(
    folder: Path,
    split: SplitScores,
    matches: PairSet | None,
    *,
    protocols: Sequence[str],
    samples: int,
    level: float,
    depth: int,
) -> dict[str, Figures]:
    """Measure the scores of a split, and write metrics.json, rankings.parquet and cross_retrieval.parquet.

    Args:
        folder: where to.
        split: scores.
        matches: all correct matches, where they are known.
        protocols: names in `itrpipe.evaluation.metrics`; those that need more images than there are do not apply.
        samples: resampled test sets behind every interval.
        level: share of them inside an interval, 0..1.
        depth: candidates kept for each query.

    Returns:
        Figures by protocol, `oracle` among them where all correct matches are known.

    Raises:
        DataError: a score is NaN or infinite, or an image has no caption.
    """
    scores = split.matrix
    owners = split.caption_image
    own_ranks = ranks(scores, owners)
    results = {FULL: fold_figures([(own_ranks, owners)], samples, level)}
    for name in protocols:
        if name != FULL and PROTOCOLS[name].images <= len(scores):
            folds = protocol_folds(name, scores, owners)
            results[name] = fold_figures(folds, samples, level)
    oracle = None
    if matches is not None:
        pairs = matches.image_rows, matches.caption_rows
        oracle = ranks_of_matches(scores, *pairs)
        results[ORACLE] = with_matches(scores, owners, oracle, pairs, samples, level)
    write_json(folder / METRICS, results)
    write_rankings(folder / RANKINGS, split, own_ranks, oracle, depth)
    write_cross_retrieval(folder / CROSS_RETRIEVAL, split)
    return results


def write_rankings(
    path: Path,
    split: SplitScores,
    full: Ranks,
    oracle: Ranks | None,
    depth: int,
) -> None:
    """Write one row per query of either direction: the rank of its best correct match and its best candidates.

    Args:
        path: replaced if it exists.
        split: scores.
        full: ranks with a caption's own image as its only match.
        oracle: ranks with all correct matches counted, where the truth is known.
        depth: candidates kept for each query, as far as there are so many.
    """
    images = split.image_ids.tolist()
    captions = split.caption_ids.tolist()
    depth = min(depth, *split.matrix.shape)
    best_captions, best_images = rankings(split.matrix, depth, images, captions)
    tables = []
    for side, best, queries, candidates in (
        ("i2t", best_captions, images, split.caption_ids),
        ("t2i", best_images, captions, split.image_ids),
    ):
        indices, scores = best
        oracle_ranks = pa.nulls(len(queries), pa.int32())
        if oracle is not None:
            oracle_ranks = pa.array(oracle.sides[side], pa.int32())
        columns = {
            "direction": pa.array([side] * len(queries)),
            "query_id": pa.array(queries, pa.string()),
            "rank": pa.array(full.sides[side], pa.int32()),
            "oracle_rank": oracle_ranks,
            "candidate_ids": _lists(candidates[indices], pa.string()),
            "scores": _lists(scores.astype("float32"), pa.float32()),
        }
        tables.append(pa.table(columns))
    pq.write_table(pa.concat_tables(tables), path, compression="zstd")


def _lists(matrix: np.ndarray, kind: pa.DataType) -> pa.FixedSizeListArray:
    values = pa.array(matrix.reshape(-1).tolist(), kind)
    return pa.FixedSizeListArray.from_arrays(values, matrix.shape[1])


def read_rankings(
    path: Path,
    image_ids: np.ndarray,
    caption_ids: np.ndarray,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Read the file of `write_rankings` as rows of the split: of images as queries, then of captions.

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
    images = pa.array(image_ids.tolist(), pa.string())
    captions = pa.array(caption_ids.tolist(), pa.string())
    directions = []
    with reading(path, "rankings of this split", _REMEDY):
        for side, queries, candidates in (
            ("i2t", images, captions),
            ("t2i", captions, images),
        ):
            rows = table.filter(pc.field("direction") == side).combine_chunks()
            ids = rows["candidate_ids"].combine_chunks().flatten()
            scores = rows["scores"].combine_chunks().flatten().to_numpy()
            query_rows = rows_of(rows["query_id"], queries)
            candidate_rows = rows_of(ids, candidates)
            if np.any(query_rows < 0) or np.any(candidate_rows < 0):
                raise ValueError("it names images or captions that the split lacks")
            shape = len(rows), len(scores) // max(1, len(rows))
            candidate_rows = candidate_rows.reshape(shape)
            directions.append((query_rows, candidate_rows, scores.reshape(shape)))
    return directions


def write_cross_retrieval(path: Path, split: SplitScores) -> None:
    """Write one row per caption, in the order of the split: its ranks with its image in both directions."""
    image_ids = split.image_ids[split.caption_image]
    columns = {
        "caption_id": pa.array(split.caption_ids.tolist(), pa.string()),
        "image_id": pa.array(image_ids.tolist(), pa.string()),
    }
    for name, values in cross_retrieval(split.matrix, split.caption_image).items():
        columns[name] = pa.array(values, pa.int32())
    pq.write_table(pa.table(columns), path, compression="zstd")
