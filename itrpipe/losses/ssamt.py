"""The losses of SSAMT: triplets at the level of pairs, of fragments and of phrases.

For a positive pair (i, i) with a negative caption j and a negative image k, three pairs are scored: (i, i), (i, j) and
(k, i). Every loss here is a mean over the batch, of scores that a model gives.

Source: Fan et al., "Constructing Phrase-level Semantic Labels to Form Multi-Grained Supervision for Image-Text
Retrieval" (SSAMT), 2021, section on training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from itrpipe.losses.triplet import hinge


def pair_loss(positive: Tensor, negative_text: Tensor, negative_image: Tensor, margin: float) -> Tensor:
    """Triplet loss of both directions with the scores of the inter encoder:

        mean_i [margin - S(i,i) + S(i,j)]+ + [margin - S(i,i) + S(k,i)]+

    Args:
        positive: [B] scores of the pairs (i, i).
        negative_text: [B] scores of (i, j).
        negative_image: [B] scores of (k, i).
        margin: alpha_1.

    References:
        SSAMT, L1^G. L0^G is `itrpipe.losses.triplet.triplet_loss` divided by the batch size.
    """
    return (hinge(positive, negative_text, margin) + hinge(positive, negative_image, margin)).mean()


def fragment_loss(
    positive_texts: Tensor, negative_texts: Tensor, positive_regions: Tensor, negative_regions: Tensor, margin: float
) -> Tensor:
    """Triplet loss of the mean fragments, phrases and words on one side and regions on the other:

        mean_i [margin - F(i,i) + F(i,j)]+ + [margin - G(i,i) + G(k,i)]+

    with F the mean cosine of an image with the fragments of a caption, and G of a caption with the regions of an image.

    Args:
        positive_texts, negative_texts: [B] F of (i, i) and of (i, j).
        positive_regions, negative_regions: [B] G of (i, i) and of (k, i).
        margin: alpha_2.

    References:
        SSAMT, L2^L.
    """
    texts = hinge(positive_texts, negative_texts, margin)
    return (texts + hinge(positive_regions, negative_regions, margin)).mean()


def phrase_loss(fragments: Tensor, matching: Tensor, real: Tensor, margin: float) -> Tensor:
    """Triplet loss inside a negative pair: phrases that hold for the image against those that do not:

        mean [margin - mean_{+} cos(h^I, H^T_k) + mean_{-} cos(h^I, H^T_k)]+

    A pair whose phrases and words are all of one sort is left out of the mean; if all pairs are, the loss is 0.

    Args:
        fragments: [N, M] cosine of each phrase or word with the image of its pair.
        matching: bool [N, M], those that hold for the image.
        real: bool [N, M], those that exist.
        margin: alpha_3.

    References:
        SSAMT, L3^P, one of its two terms; the paper does not say what happens to empty sets.
    """
    holds, fails = matching & real, ~matching & real
    live = holds.any(dim=1) & fails.any(dim=1)
    violation = hinge(_mean_of(fragments, holds), _mean_of(fragments, fails), margin)
    return torch.where(live, violation, 0.0).sum() / live.sum().clamp(min=1)


def _mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean [N] over the chosen of [N, M]; 0 where there is none."""
    return torch.where(chosen, values, 0.0).sum(dim=1) / chosen.sum(dim=1).clamp(min=1)
