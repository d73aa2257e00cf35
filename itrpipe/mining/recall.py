"""How much of what exact search finds an approximate search has found, measured on some anchors."""

from __future__ import annotations

import numpy as np

from itrpipe.mining.lists import CandidateLists, MinedLists

SAMPLED_ANCHORS = 200
_ANCHORS_AT_ONCE = 16
_ROUNDING = 1e-5
"""Scores that differ by less than this share of the best one count as equal: engines add up in different orders."""


def search_recall(
    images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray, mined: MinedLists, anchors: int = SAMPLED_ANCHORS
) -> dict[str, float]:
    """Compares sampled lists with exact ones.

    Args:
        images: [N, D] embeddings.
        texts: [T, D].
        caption_image: [T] image row of each caption.
        mined: lists by the scores of these embeddings, before any filter.
        anchors: how many of each direction are compared; the same ones every time.

    Returns:
        direction -> share, 0..1, of the exact candidates that the lists hold. One of several candidates with the last
        score of a list is as good as another.
    """
    generator = np.random.default_rng(0)
    found = {}
    for name, lists, own_side, other_side in (
        ("texts_for_images", mined.texts_for_images, images, texts),
        ("images_for_texts", mined.images_for_texts, texts, images),
    ):
        rows = np.sort(generator.permutation(len(own_side))[:anchors])
        hits = 0
        for part in np.array_split(rows, -(-len(rows) // _ANCHORS_AT_ONCE)):
            scores = own_side[part] @ other_side.T
            scores[_own(name, part, caption_image, scores.shape[1])] = -np.inf
            hits += _hits(lists, part, scores)
        found[name] = hits / lists.candidates[rows].size
    return found


def _own(direction: str, rows: np.ndarray, caption_image: np.ndarray, candidates: int) -> np.ndarray:
    """[a, c] bool: candidates that are no negatives of an anchor."""
    if direction == "texts_for_images":
        return caption_image == rows[:, None]
    return caption_image[rows][:, None] == np.arange(candidates)


def _hits(lists: CandidateLists, rows: np.ndarray, exact: np.ndarray) -> int:
    """Candidates of some anchors that score high enough for the exact lists; exact scores [a, c]."""
    width = lists.candidates.shape[1]
    top = np.partition(exact, exact.shape[1] - width, axis=1)[:, -width:]
    last = top.min(axis=1) - _ROUNDING * np.abs(top).max(axis=1)
    return int((lists.scores[rows] >= last[:, None]).sum())
