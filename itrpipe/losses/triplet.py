"""The hinge triplet loss over in-batch negatives, and the hinge and hard negatives the other losses share with it."""

from __future__ import annotations

import torch
from torch import Tensor


def hinge(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """[margin - positive + negative]+, elementwise with broadcasting.

    At exactly zero, where an exact duplicate of the positive sits when the margin is zero, the gradient is
    passed on, as in the published losses. They used `clamp`, whose gradient there has since changed from 1 to
    0 between versions of torch; `relu` has always had 0. NaN stays NaN.
    """
    violation = margin - positive + negative
    return torch.where(violation < 0, 0.0, violation)


def excluded_pairs(scores: Tensor, not_negative: Tensor | None) -> Tensor:
    """Pairs [B, B] that are no negatives: the diagonal, and those of `not_negative`.

    Args:
        scores: [B, B] scores of image i with caption j.
        not_negative: [B, B] bool, further pairs to leave out, such as captions of the same image; or None.
    """
    diagonal = torch.eye(scores.shape[0], dtype=torch.bool, device=scores.device)
    return diagonal if not_negative is None else diagonal | not_negative


def online_hard_negatives(scores: Tensor, not_negative: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores of the hardest in-batch negatives of each positive pair.

    The gradient flows to one arg max per row and column. An anchor without any negative in the batch gets
    -inf, which every hinge turns into zero.

    Args:
        scores: [B, B] scores of image i with caption j, positives on the diagonal.
        not_negative: [B, B] bool, further pairs that are not negatives, or None.

    Returns:
        S(i, t_on) [B], the highest score of image k with a caption of another pair, and
        S(i_on, t) [B], the highest score of caption k with an image of another pair.
    """
    negatives = scores.masked_fill(excluded_pairs(scores, not_negative), float("-inf"))
    return negatives.max(dim=1).values, negatives.max(dim=0).values


def triplet_loss(
    scores: Tensor, margin: float = 0.2, max_violation: bool = True, not_negative: Tensor | None = None
) -> Tensor:
    """Hinge triplet loss in both directions, summed over the batch.

    Over all negatives (`max_violation=False`; AOQ Eq. 1):

        L = sum_(i,t) sum_(t-) [margin - S(i,t) + S(i,t-)]+ + sum_(i-) [margin - S(i,t) + S(i-,t)]+

    or over the hardest one of each direction only (`max_violation=True`; AOQ Eq. 2):

        L = sum_(i,t) [margin - S(i,t) + S(i,t_on)]+ + [margin - S(i,t) + S(i_on,t)]+

    Args:
        scores: [B, B] scores of image i with caption j, positives on the diagonal.
        margin: by how much a positive must beat a negative, in units of the score.
        max_violation: count the hardest negative instead of all.
        not_negative: [B, B] bool, pairs beside the diagonal that are not negatives. The published losses leave
            out only the diagonal, so that two captions of one image in a batch push each other's image away.

    Returns:
        Scalar, a sum (not a mean) over the batch: it grows with B.

    References:
        Sum: Kiros et al., 2014, Eq. 4. Maximum: Faghri et al. (VSE++), BMVC 2018, Eq. 6. In this notation:
        Chen et al. (AOQ), ECCV 2020, Eq. 1 and 2.

    Relations:
        `itrpipe.losses.quintuplet` adds offline negatives to the max-violation form; `offline_triplet_loss` is the
        nearest.
    """
    positive = scores.diagonal()
    if max_violation:
        hardest_text, hardest_image = online_hard_negatives(scores, not_negative)
        return hinge(positive, hardest_text, margin).sum() + hinge(positive, hardest_image, margin).sum()
    texts = hinge(positive[:, None], scores, margin)  # [B, B]
    images = hinge(positive[None, :], scores, margin)  # [B, B]
    return (texts + images).masked_fill(excluded_pairs(scores, not_negative), 0.0).sum()


def hardest_sentence_loss(positive: Tensor, negatives: Tensor, owners: Tensor, margin: float) -> Tensor:
    """Hinge of each pair with the hardest of the sentences that are negatives of its image alone, summed.

        L = sum_(i,t) max_(t') [margin - S(i,t) + S(i,t')]+

    Args:
        positive: [B] scores of the pairs.
        negatives: [n] scores of the image of each sentence's pair with the sentence.
        owners: [n] int64, number of that pair.
        margin: by how much a positive must beat a negative, in units of the score.

    Returns:
        Scalar; a pair without sentences counts with 0.

    References:
        Shi et al. (VSE-C), COLING 2018, section 3.3.
    """
    hardest = torch.full_like(positive, float("-inf")).scatter_reduce(0, owners, negatives, "amax")
    return hinge(positive, hardest, margin).sum()
