"""Ranks under complete ground truth, where every image that a caption truly describes counts as a match.

The usual ground truth calls only a caption's own image right, so that a model is charged for finding another
image the caption fits as well. Where all correct matches are known, as for generated scenes, these ranks tell how
much of a model's error is in the annotation.
"""

from __future__ import annotations

import numpy as np

from itrpipe.errors import DataError
from itrpipe.evaluation.mean_average_precision import Precision, precision_of_matches
from itrpipe.evaluation.ranks import Ranks, ranks_of_matches


def oracle_ranks(scores: np.ndarray, offsets: np.ndarray, match_images: np.ndarray) -> Ranks:
    """Ranks of the best correct match, with all correct matches of a caption, and of an image, as positives.

    Args:
        scores: [N, T] score of image n with caption t.
        offsets: [T + 1] ascending from 0 to M; the matches of caption t are `match_images[offsets[t]:offsets[t + 1]]`.
        match_images: [M] rows of the images each caption is true of, its own among them.

    Raises:
        DataError: a score is NaN or infinite, a caption or an image has no match, a row lies outside the
            matrix, or `offsets` does not fit the captions and matches.
    """
    return ranks_of_matches(scores, *_pairs(scores, offsets, match_images))


def oracle_precision(scores: np.ndarray, offsets: np.ndarray, match_images: np.ndarray) -> dict[str, Precision]:
    """How well all correct matches of an image (`i2t`), and of a caption (`t2i`), are gathered.

    Args:
        scores, offsets, match_images: as for `oracle_ranks`.

    Raises:
        DataError: as for `oracle_ranks`.
    """
    images, captions = _pairs(scores, offsets, match_images)
    return {
        "i2t": precision_of_matches(scores, images, captions),
        "t2i": precision_of_matches(scores.T, captions, images),
    }


def _pairs(scores: np.ndarray, offsets: np.ndarray, match_images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Image rows and caption columns of the correct matches, each once."""
    lengths = np.diff(offsets)
    if len(lengths) != scores.shape[1] or offsets[0] != 0 or offsets[-1] != len(match_images) or (lengths < 0).any():
        raise DataError(
            f"offsets of {len(lengths)} captions over {len(match_images)} correct matches do not fit the "
            f"{scores.shape[1]} captions of the scores: compute the correct matches of this split again"
        )
    captions = np.repeat(np.arange(scores.shape[1]), lengths)
    # A match listed twice would be taken for two positives with one score.
    pairs = np.unique(np.stack([np.asarray(match_images), captions], axis=1), axis=0)
    return pairs[:, 0], pairs[:, 1]
