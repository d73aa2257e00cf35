"""How likely any candidate of the training set is a false negative, by the embeddings of a trained model.

The two distributions are those of training (see `itrpipe.losses.fne`), taken from embeddings in random batches, so
that they exist for every dual encoder, whatever it was trained with.

Shapes: N images, T captions, D embedding width.
"""

from __future__ import annotations

import numpy as np
import torch

from itrpipe.losses.fne import Gaussians, NegativeSource, SimilarityStatistics, Ties, false_negative_probability

_VALUES_AT_ONCE = 1 << 22


def estimate_gaussians(
    images: np.ndarray,
    texts: np.ndarray,
    caption_image: np.ndarray,
    *,
    batch_size: int,
    mask_same_image: bool = True,
    source: NegativeSource = "hardest",
    ties: Ties = "none",
    floor: bool = False,
) -> Gaussians:
    """The distributions of matches and mismatches after one epoch over embeddings that do not change.

    Args:
        images: [N, D] embeddings that compare by inner product.
        texts: [T, D].
        caption_image: [T] image row of each caption.
        batch_size: pairs whose negatives compete; the more, the harder the hardest.
        mask_same_image: whether captions of one image are no negatives of each other.
        source, ties, floor: see `SimilarityStatistics.update`.
    """
    statistics = SimilarityStatistics()
    order = np.random.default_rng(0).permutation(len(texts))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        image_rows = torch.from_numpy(caption_image[rows])
        scores = torch.from_numpy(images[caption_image[rows]]) @ torch.from_numpy(texts[rows]).T
        mask = image_rows[:, None] == image_rows[None, :] if mask_same_image else None
        statistics.update(scores, mask, source, ties, floor)
    return statistics.gaussians()


def probabilities(scores: np.ndarray, gaussians: Gaussians, prior: float) -> np.ndarray:
    """Probability of each candidate to be a false negative; the more similar, the likelier.

    Args:
        scores: similarities of any shape; those of padding are minus infinity.
        gaussians: of matches and mismatches.
        prior: share of matches among all pairs, 0..1.

    Returns:
        Of the shape of `scores`, float32, 0..1; 0 for padding.
    """
    flat = torch.from_numpy(np.ascontiguousarray(scores, dtype=np.float32).reshape(-1))
    found = [
        false_negative_probability(part, gaussians, prior, monotone=True).masked_fill(part.isneginf(), 0.0)
        for part in flat.split(_VALUES_AT_ONCE)
    ]
    return torch.cat(found).numpy().reshape(scores.shape)
