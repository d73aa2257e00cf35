"""Cross-retrieval ranks: how well every positive pair does in both directions at once, as in Fig. 5 of AOQ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.evaluation.metrics import ranks

_BLOCK_VALUES = 1 << 20
"""Scores compared at a time: small enough for the comparison to stay in the cache of a core."""


@dataclass(frozen=True)
class CrossRetrieval:
    """1-based ranks of the T positive pairs, one for each caption with its image.

    Attributes:
        image_rank: [T] int64, 1..N, of the image among all images for its caption.
        text_rank: [T] int64, 1..T, of the caption for its image among the captions of other images.
        cross_rank: [T] int64, 1..T, the worse of the two on the scale of captions.
    """

    image_rank: np.ndarray
    text_rank: np.ndarray
    cross_rank: np.ndarray


def cross_retrieval(scores: np.ndarray, caption_image: np.ndarray) -> CrossRetrieval:
    """Rank every positive pair against the pairs that share its caption and those that share its image.

        r_i = 1 + #{images n != i : S(n, t) >= S(i, t)}
        r_t = 1 + #{captions n of other images than i : S(i, n) >= S(i, t)}
        cross rank = max(ceil((r_i - 1) T / N) + 1, r_t)

    With five captions for each image this is the paper's max(5 r_i - 4, r_t). Where the T captions are spread
    unevenly over the N images, their mean number takes the place of the five, rounded up. As in `ranks`, ties
    count against the model.

    Args:
        scores: [N, T] score of image n with caption t, higher is better.
        caption_image: [T] row of the image each caption belongs to.

    Raises:
        DataError: as for `itrpipe.evaluation.metrics.ranks`.

    Source: AOQ §4.3; the tie rule and other numbers of captions are ours.
    """
    image_rank = ranks(scores, caption_image).texts_to_images + 1
    text_rank = _text_ranks(scores, caption_image)
    images, texts = scores.shape
    on_caption_scale = -((1 - image_rank) * texts // images) + 1
    return CrossRetrieval(image_rank, text_rank, np.maximum(on_caption_scale, text_rank))


def _text_ranks(scores: np.ndarray, caption_image: np.ndarray) -> np.ndarray:
    """1-based rank [T] of each caption for its image, without the image's other captions."""
    found = np.empty(len(caption_image), dtype=np.int64)
    order = np.argsort(caption_image, kind="stable")
    bounds = np.searchsorted(caption_image[order], np.arange(len(scores) + 1))
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    for image, row in enumerate(scores):
        own = order[bounds[image] : bounds[image + 1]]
        for start in range(0, len(own), height):
            block = own[start : start + height]
            reached = row >= row[block, None]  # [height, T]
            # The image's own captions, the ranked one among them, are no negatives.
            found[block] = [np.count_nonzero(each) - np.count_nonzero(each[own]) + 1 for each in reached]
    return found
