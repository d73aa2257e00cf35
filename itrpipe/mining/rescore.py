"""Second ranking of mined lists by a model that has to look at every pair, such as one with cross-attention.

An embedding model finds the candidates, the slower model puts the hardest of them in its own order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import NO_ROW, CandidateLists, MinedLists, by_score

ScorePairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Image rows [P] and caption rows [P] -> scores [P], higher for a better match."""


def rescore(
    lists: MinedLists,
    score_pairs: ScorePairs,
    top_texts: int,
    top_images: int,
    batch_size: int = 1_024,
    advance: Callable[[int], object] = lambda pairs: None,
) -> MinedLists:
    """Scores the hardest candidates of both directions again and orders them by the new scores.

    Candidates behind the top are left out of the result: scores of two models cannot be compared. Equal scores
    are ordered by rising row.

    Args:
        lists: both directions.
        score_pairs: the second model. All pairs of one anchor come one after another.
        top_texts: candidates of each image that are scored again, 1..num_texts.
        top_images: candidates of each caption, 1..num_images.
        batch_size: pairs given to `score_pairs` at a time, at most.
        advance: called with the number of pairs after each batch.

    Raises:
        UsageError: more candidates are to be scored than the lists hold.
        DataError: `score_pairs` returned NaN, infinity, or another number of scores than pairs.
    """
    texts = rescore_one(lists.texts_for_images, score_pairs, top_texts, batch_size, advance)

    def swapped(anchors: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        return score_pairs(candidates, anchors)

    images = rescore_one(lists.images_for_texts, swapped, top_images, batch_size, advance)
    return MinedLists(texts.candidates, texts.scores, images.candidates, images.scores)


def rescore_one(
    lists: CandidateLists,
    score_pairs: ScorePairs,
    top: int,
    batch_size: int,
    advance: Callable[[int], object] = lambda pairs: None,
) -> CandidateLists:
    """One direction of `rescore`; here `score_pairs` takes anchor rows, then candidate rows."""
    width = lists.candidates.shape[1]
    if not 1 <= top <= width:
        raise UsageError(f"{top} candidates are to be scored again but the lists hold {width}: give 1..{width}")
    candidates = lists.candidates[:, :top]
    scores = np.full(candidates.shape, -np.inf, dtype=np.float32)
    row, column = (candidates != NO_ROW).nonzero()
    for start in range(0, len(row), batch_size):
        part = slice(start, start + batch_size)
        anchors = row[part]
        found = np.asarray(score_pairs(anchors, candidates[anchors, column[part]]))
        if found.shape != anchors.shape or not np.isfinite(found).all():
            raise DataError(
                f"scores {found.shape} of {len(anchors)} pairs have another number or are NaN or infinite: "
                "check the model that scores the mined lists again"
            )
        scores[anchors, column[part]] = found
        advance(len(anchors))
    return by_score(candidates, scores)
