"""How much of what exact search finds an approximate search has found, measured on some anchors."""

from __future__ import annotations

import numpy as np

from itrpipe.mining.mined import DIRECTIONS, MinedFile
from itrpipe.mining.vectors import Rows, rows_at_once, slices, take

SAMPLED_ANCHORS = 200
_ANCHORS_AT_ONCE = 16
_ROUNDING = 1e-5
"""Scores that differ by less than this share of the best one count as equal: engines add up in different orders."""


def search_recall(
    images: Rows, texts: Rows, caption_image: np.ndarray, mined: MinedFile, anchors: int = SAMPLED_ANCHORS
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
    for name, own_side, other_side in zip(DIRECTIONS, (images, texts), (texts, images), strict=True):
        rows = np.sort(generator.permutation(mined.shapes[name][0])[:anchors])
        hits = 0
        for part in np.array_split(rows, -(-len(rows) // _ANCHORS_AT_ONCE)):
            own_vectors = take(own_side, part)
            pieces = slices(other_side.shape[0], rows_at_once(other_side))
            scores = np.concatenate([own_vectors @ other_side.read(each.start, each.stop).T for each in pieces], axis=1)
            scores[_own(name, part, caption_image, scores.shape[1])] = -np.inf
            lists = np.concatenate([mined.read(name, row, row + 1).scores for row in part.tolist()])
            hits += _hits(lists, scores)
        found[name] = hits / (len(rows) * mined.shapes[name][1])
    return found


def _own(direction: str, rows: np.ndarray, caption_image: np.ndarray, candidates: int) -> np.ndarray:
    """[a, c] bool: candidates that are no negatives of an anchor."""
    if direction == "texts_for_images":
        return caption_image == rows[:, None]
    return caption_image[rows][:, None] == np.arange(candidates)


def _hits(found: np.ndarray, exact: np.ndarray) -> int:
    """Scores [a, K] of what was found that are high enough for the exact lists; exact scores [a, c]."""
    width = found.shape[1]
    top = np.partition(exact, exact.shape[1] - width, axis=1)[:, -width:]
    last = top.min(axis=1) - _ROUNDING * np.abs(top).max(axis=1)
    return int((found >= last[:, None]).sum())
