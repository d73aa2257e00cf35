"""Losses that several methods share: triplets of a batch, and contrastive objectives over any candidates.

`triplet_loss` takes the scores [B, B] of a batch, image i in row i and text j in column j, and is summed over it.

The objectives (`infonce`, `sigmoid`, `hardest_triplet`, `sum_of_triplets`) take one direction a call: an anchor i has a
positive with score p_i and C candidates with scores c_ij. The logarithm of a weight w_ij says how much a candidate
counts: 0 is a full negative, minus infinity none. A batch of B pairs gives the images B candidates each, with minus
infinity on the diagonal; captions from elsewhere are further columns. A target P_ij says how likely a candidate is
right after all: 0 for a full negative, 1 for a second positive. Triplets have none, but soft margins (1 - P_ij) m where
P_ij m is subtracted from c_ij: the soft margin of Huang et al. (NCR), NeurIPS 2021, which there is a power of the label
of a positive that may be wrong, and here is linear in the target of a candidate.

Shapes: B anchors, C candidates of each.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def hinge(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """[margin - positive + negative]+, elementwise with broadcasting.

    At exactly zero, where an exact duplicate of the positive sits when the margin is zero, the gradient is
    passed on, as in the published losses. They used `clamp`, whose gradient there has since changed from 1 to
    0 between versions of torch; `relu` has always had 0. NaN stays NaN.
    """
    violation = margin - positive + negative
    return torch.where(violation < 0, 0.0, violation)


def twin_differences(scores: Tensor) -> Tensor:
    """Compute by how much negatives beat positives among twins: four differences of each, [n, 2, 2].

    Args:
        scores: [n, 2, 2] of the two images of a quadruple, in rows, with its two captions; matches on the diagonal.

    Source: the four scores of Thrush et al., "Winoground" (CVPR 2022).
    """
    matches = scores.diagonal(dim1=1, dim2=2)
    others = scores.flip(2).diagonal(dim1=1, dim2=2)
    return torch.stack([others, others.flip(1)], dim=1) - matches[:, None]


def excluded_pairs(scores: Tensor, not_negative: Tensor | None) -> Tensor:
    """Return bool [B, B], the pairs that are no negatives: the diagonal, and those of `not_negative`.

    Args:
        scores: [B, B] scores of image i with caption j.
        not_negative: [B, B] bool, further pairs to leave out, such as captions of the same image; or None.
    """
    diagonal = torch.eye(scores.shape[0], dtype=torch.bool, device=scores.device)
    if not_negative is None:
        return diagonal
    return diagonal | not_negative


def online_hard_negatives(scores: Tensor, not_negative: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the scores of the hardest in-batch negatives of each positive pair.

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
        `itrpipe.methods.aoq.method.aoq_loss` adds offline negatives to the max-violation form.
    """
    positive = scores.diagonal()
    if max_violation:
        hardest_text, hardest_image = online_hard_negatives(scores, not_negative)
        text_loss = hinge(positive, hardest_text, margin).sum()
        image_loss = hinge(positive, hardest_image, margin).sum()
        return text_loss + image_loss
    texts = hinge(positive[:, None], scores, margin)  # [B, B]
    images = hinge(positive[None, :], scores, margin)  # [B, B]
    excluded = excluded_pairs(scores, not_negative)
    return (texts + images).masked_fill(excluded, 0.0).sum()


def infonce(
    positive: Tensor,
    candidates: Tensor,
    log_weights: Tensor | None = None,
    temperature: float | Tensor = 0.07,
    targets: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of each anchor's positive among its candidates.

        L = -1/B sum_i log( exp(p_i / t) / (exp(p_i / t) + sum_j w_ij exp(c_ij / t)) )

    The mean of both directions of a batch is the loss of CLIP; with the negative captions of the batch as further
    columns of the images it is that of NegCLIP, whose logits are [B, 2 B].

    With targets it is the cross-entropy with (1, P_i1, ..., P_iC) / (1 + sum_j P_ij) over the positive and the
    candidates, in which weights count among the candidates of the softmax alone:

        L = 1/B sum_i ( log Z_i - (p_i / t + sum_j P_ij c_ij / t) / (1 + sum_j P_ij) )
        Z_i = exp(p_i / t) + sum_j w_ij exp(c_ij / t)

    Args:
        positive: [B] scores of anchors with their positives.
        candidates: [B, C] scores of anchors with their candidates, one of them at least.
        log_weights: [B, C], at most 0, -inf for what is no candidate; None for zeros.
        temperature: t, above 0.
        targets: [B, C] P, 0 to 1, and 0 where a log-weight is -inf; None for zeros.

    Returns:
        Scalar, a mean over the anchors; 0 for an anchor without candidates.

    Source: van den Oord et al., "Representation Learning with Contrastive Predictive Coding", 2018, Eq. 4; Radford et
        al. (CLIP), ICML 2021; Yuksekgonul et al. (NegCLIP), ICLR 2023.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> own = torch.zeros(2, 2).fill_diagonal_(float("-inf"))
        >>> infonce(scores.diagonal(), scores, own, temperature=0.5).item()  # image to text
        0.2235...
    """
    logits = candidates / temperature
    if log_weights is not None:
        logits = logits + log_weights
    positive_logits = (positive / temperature)[:, None]
    logits = torch.cat([positive_logits, logits], dim=1)  # [B, 1 + C]
    loss = F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64))
    if targets is None:
        return loss
    # The positive gives its candidates these shares of its target.
    shares = targets / (1 + targets.sum(dim=1, keepdim=True))
    differences = (positive[:, None] - candidates) / temperature
    return loss + (shares * differences).sum(dim=1).mean()


def sigmoid(
    positive: Tensor,
    candidates: Tensor,
    log_weights: Tensor | None = None,
    scale: float | Tensor = 10.0,
    bias: float | Tensor = -10.0,
    targets: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy of each pair.

        L = -1/B sum_i ( log sigma(s p_i + b) + sum_j w_ij log sigma(-s c_ij - b) )

    The mean of both directions of a batch is the loss of SigLIP. With targets a candidate's term is the convex
    combination of those of the labels 1 and -1:

        w_ij ( P_ij log sigma(s c_ij + b) + (1 - P_ij) log sigma(-s c_ij - b) )

    Args:
        positive, candidates, log_weights, targets: see `infonce`.
        scale: s, above 0.
        bias: b.

    Returns:
        Scalar, a mean over the anchors of sums over their pairs.

    Source: Zhai et al. (SigLIP), ICCV 2023, section 3.2.
    """
    positive_logits = positive * scale + bias
    logits = candidates * scale + bias
    negative_losses = F.softplus(logits)
    if targets is not None:
        negative_losses = negative_losses - targets * logits  # softplus(-x) = softplus(x) - x
    if log_weights is not None:
        negative_losses = negative_losses * log_weights.exp()
    positive_losses = F.softplus(-positive_logits)
    return (positive_losses + negative_losses.sum(dim=1)).mean()


def hardest_triplet(
    positive: Tensor, candidates: Tensor, log_weights: Tensor | None = None, margin: float = 0.2
) -> Tensor:
    """Compute the mean hinge of each anchor with its highest candidate.

        L = 1/B sum_i [m - p_i + max_j c_ij]+    over the candidates with w_ij > 0

    Args:
        positive, candidates, log_weights: see `infonce`; a weight that is not 0 counts as 1.
        margin: m.

    Returns:
        Scalar, a mean over the anchors; 0 for an anchor without candidates.

    Source: Faghri et al. (VSE++), BMVC 2018, Eq. 6.
    """
    if log_weights is not None:
        candidates = candidates.masked_fill(log_weights.isneginf(), float("-inf"))
    hardest = F.pad(candidates, (0, 1), value=float("-inf")).amax(dim=1)  # there may be no candidate at all
    return hinge(positive, hardest, margin).mean()


def sum_of_triplets(
    positive: Tensor, candidates: Tensor, log_weights: Tensor | None = None, margin: float = 0.2
) -> Tensor:
    """Compute the summed hinges of each anchor with all its candidates.

        L = 1/B sum_i sum_j w_ij [m - p_i + c_ij]+

    Args:
        positive, candidates, log_weights: see `infonce`.
        margin: m.

    Returns:
        Scalar, a mean over the anchors of sums over their candidates.

    Source: Kiros et al., 2014, Eq. 4.
    """
    hinges = hinge(positive[:, None], candidates, margin)
    if log_weights is not None:
        hinges = hinges * log_weights.exp()
    return hinges.sum(dim=1).mean()
