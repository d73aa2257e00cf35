"""Ranks of the correct matches, which every other metric is computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.errors import DataError

_BLOCK_VALUES = 1 << 20
"""Scores compared at a time: small enough for the comparison to stay in the cache of a core."""


@dataclass(frozen=True)
class Ranks:
    """0-based ranks of the best correct match of each query: the number of negatives ahead of it.

    Attributes:
        images_to_texts: [N] int64, image queries (sentence retrieval).
        texts_to_images: [T] int64, caption queries (image retrieval).
    """

    images_to_texts: np.ndarray
    texts_to_images: np.ndarray


def ranks(scores: np.ndarray, caption_image: np.ndarray) -> Ranks:
    """Rank every image and every caption of a score matrix.

        rank(q) = #{negatives n of q : S(q, n) >= max over positives p of S(q, p)}

    A negative with the score of the best positive counts as ahead of it: ties count against the model, so that
    a model that scores everything alike ranks last and not first. Without ties this is the position in the
    descending sort, as in the published evaluations.

    Args:
        scores: [N, T] score of image n with caption t, higher is better.
        caption_image: [T] row of the image each caption belongs to; any number of captions per image.

    Raises:
        DataError: a score is NaN or infinite, an image has no caption, or the captions do not fit the matrix.

    Source: VSE++ §4.1; the tie rule is ours.
    """
    if scores.shape[1] != len(caption_image):
        raise DataError(
            f"the scores hold {scores.shape[1]} captions but {len(caption_image)} were given an image: "
            "score the split the captions belong to"
        )
    return ranks_of_matches(scores, caption_image, np.arange(scores.shape[1]))


def ranks_of_matches(scores: np.ndarray, match_image: np.ndarray, match_caption: np.ndarray) -> Ranks:
    """Ranks where the correct matches are any list of distinct image-caption pairs.

    Args:
        scores: [N, T] score of image n with caption t.
        match_image: [M] row of the image of each correct match.
        match_caption: [M] column of its caption.

    Raises:
        DataError: as for `ranks`; also if a caption has no match.
    """
    _check(scores, match_image, match_caption)
    matched = scores[match_image, match_caption]  # [M]
    best_of_image = np.full(scores.shape[0], -np.inf, dtype=scores.dtype)
    best_of_text = np.full(scores.shape[1], -np.inf, dtype=scores.dtype)
    np.maximum.at(best_of_image, match_image, matched)
    np.maximum.at(best_of_text, match_caption, matched)
    at_least_image, at_least_text = _count_at_least(scores, best_of_image, best_of_text)
    # The best positive, and any other positive with its very score, were counted too.
    tied_image = np.bincount(match_image[matched == best_of_image[match_image]], minlength=scores.shape[0])
    tied_text = np.bincount(match_caption[matched == best_of_text[match_caption]], minlength=scores.shape[1])
    return Ranks(at_least_image - tied_image, at_least_text - tied_text)


def query_ranks(scores: np.ndarray, match_query: np.ndarray, match_candidate: np.ndarray) -> np.ndarray:
    """0-based ranks [Q] of the best correct match of every query, where candidates may be no match of any query.

    Args:
        scores: [Q, C] score of every query with every candidate.
        match_query: [M] query of each correct match; matches are distinct.
        match_candidate: [M] its candidate.

    Raises:
        DataError: a score is NaN or infinite, or a query has no match.
    """
    check_finite(scores)
    refuse_unmatched(match_query, len(scores))
    matched = scores[match_query, match_candidate]  # [M]
    best = np.full(len(scores), -np.inf, dtype=scores.dtype)
    np.maximum.at(best, match_query, matched)
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    blocks = (slice(start, start + height) for start in range(0, len(scores), height))
    reached = np.concatenate([np.count_nonzero(scores[rows] >= best[rows, None], axis=1) for rows in blocks])
    return reached - np.bincount(match_query[matched == best[match_query]], minlength=len(scores))


def refuse_unmatched(match_query: np.ndarray, queries: int) -> None:
    """Refuse queries without a correct match.

    Raises:
        DataError: there are some; the message names how many.
    """
    if (without := queries - np.count_nonzero(np.bincount(match_query, minlength=queries))) > 0:
        raise DataError(f"{without} of {queries} queries have no correct match to rank: leave them out of the scores")


def _count_at_least(
    scores: np.ndarray, image_threshold: np.ndarray, text_threshold: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Per row and per column, the number of scores that reach the threshold of that row or column."""
    in_row = np.empty(scores.shape[0], dtype=np.int64)
    in_column = np.zeros(scores.shape[1], dtype=np.int64)
    # At most 255 rows: a block's column counts then fit into the bytes of the comparison itself.
    height = min(255, max(1, _BLOCK_VALUES // scores.shape[1]))
    for start in range(0, scores.shape[0], height):
        block = scores[start : start + height]
        reached = block >= image_threshold[start : start + height, None]
        in_row[start : start + height] = [np.count_nonzero(row) for row in reached]
        in_column += np.add.reduce((block >= text_threshold).view(np.uint8), axis=0, dtype=np.uint8)
    return in_row, in_column


def _check(scores: np.ndarray, match_image: np.ndarray, match_caption: np.ndarray) -> None:
    images, texts = scores.shape
    if scores.size == 0:
        raise DataError(f"a score matrix of {images} images and {texts} captions has nothing to rank")
    check_finite(scores)
    for name, index, size in (("image", match_image, images), ("caption", match_caption, texts)):
        if len(index) and (index.min() < 0 or index.max() >= size):
            raise DataError(
                f"correct matches name {name} rows {index.min()}..{index.max()} but the scores hold {size}: "
                "score the split the captions belong to"
            )
        missing = size - np.count_nonzero(np.bincount(index, minlength=size))
        if missing:
            raise DataError(f"{missing} of {size} {name}s have no correct match to rank: leave them out of the scores")


def check_finite(scores: np.ndarray) -> None:
    """Refuse scores that cannot be ordered.

    Raises:
        DataError: a score is NaN or infinite; the message names how many.
    """
    height = max(1, _BLOCK_VALUES // max(1, scores.shape[1]))
    blocks = range(0, scores.shape[0], height)
    bad = scores.size - sum(int(np.count_nonzero(np.isfinite(scores[row : row + height]))) for row in blocks)
    if bad:
        raise DataError(
            f"{bad} of {scores.size} scores are NaN or infinite, so there is no ranking: train the model again, "
            "with a lower learning rate if its loss diverged"
        )
