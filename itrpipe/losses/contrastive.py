"""Contrastive objectives over any candidates, one direction a call, and which candidates are likely false negatives.

An anchor i has a positive with score p_i and C candidates with scores c_ij. The logarithm of a weight w_ij says how
much a candidate counts: 0 is a full negative, minus infinity none. A batch of B pairs gives the images B candidates
each, with minus infinity on the diagonal; captions from elsewhere are further columns.

Shapes: B anchors, C candidates of each.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.losses.triplet import hinge


def infonce(
    positive: Tensor, candidates: Tensor, log_weights: Tensor | None = None, temperature: float | Tensor = 0.07
) -> Tensor:
    """Cross-entropy of each anchor's positive among its candidates.

        L = -1/B sum_i log( exp(p_i / t) / (exp(p_i / t) + sum_j w_ij exp(c_ij / t)) )

    The mean of both directions of a batch is the loss of CLIP; with the negative captions of the batch as further
    columns of the images it is that of NegCLIP, whose logits are [B, 2 B].

    Args:
        positive: [B] scores of anchors with their positives.
        candidates: [B, C] scores of anchors with their candidates.
        log_weights: [B, C], at most 0, -inf for what is no candidate; None for zeros.
        temperature: t, above 0.

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
    logits = torch.cat([(positive / temperature)[:, None], logits], dim=1)  # [B, 1 + C]
    return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64))


def sigmoid(
    positive: Tensor,
    candidates: Tensor,
    log_weights: Tensor | None = None,
    scale: float | Tensor = 10.0,
    bias: float | Tensor = -10.0,
) -> Tensor:
    """Whether each pair matches, pair by pair.

        L = -1/B sum_i ( log sigma(s p_i + b) + sum_j w_ij log sigma(-s c_ij - b) )

    The mean of both directions of a batch is the loss of SigLIP.

    Args:
        positive, candidates, log_weights: see `infonce`.
        scale: s, above 0.
        bias: b.

    Returns:
        Scalar, a mean over the anchors of sums over their pairs.

    Source: Zhai et al. (SigLIP), ICCV 2023, section 3.2.
    """
    negative = F.softplus(candidates * scale + bias)
    if log_weights is not None:
        negative = negative * log_weights.exp()
    return (F.softplus(-(positive * scale + bias)) + negative.sum(dim=1)).mean()


def hardest_triplet(
    positive: Tensor, candidates: Tensor, log_weights: Tensor | None = None, margin: float = 0.2
) -> Tensor:
    """Hinge of each anchor with its highest candidate.

        L = 1/B sum_i [m - p_i + max_j c_ij]+    over the candidates with w_ij > 0

    Args:
        positive, candidates, log_weights: see `infonce`; a weight that is not 0 counts as 1, see `survivors`.
        margin: m.

    Returns:
        Scalar, a mean over the anchors; 0 for an anchor without candidates.

    Source: Faghri et al. (VSE++), BMVC 2018, Eq. 6.
    """
    if log_weights is not None:
        candidates = candidates.masked_fill(log_weights.isneginf(), float("-inf"))
    # One more column, so that there is a highest candidate where there is none.
    return hinge(positive, F.pad(candidates, (0, 1), value=float("-inf")).amax(dim=1), margin).mean()


def sum_of_triplets(
    positive: Tensor, candidates: Tensor, log_weights: Tensor | None = None, margin: float = 0.2
) -> Tensor:
    """Hinges of each anchor with all its candidates.

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


def survivors(log_weights: Tensor) -> Tensor:
    """Log-weights [B, C] of 0 or -inf: each candidate is kept with the probability that its weight is.

    Drawn with torch's own generator.
    """
    kept = torch.rand_like(log_weights).log() < log_weights
    return torch.where(kept, 0.0, float("-inf"))


def hardest_candidate(candidates: Tensor, log_weights: Tensor) -> Tensor:
    """Log-weights [B, C] that are as they were for the highest candidate of each anchor, and -inf elsewhere.

    Args:
        candidates, log_weights: [B, C], see `infonce`; what weighs nothing is never the highest.
    """
    ranked = candidates.masked_fill(log_weights.isneginf(), float("-inf")).argsort(dim=1, descending=True, stable=True)
    place = ranked[:, :1]
    return torch.full_like(log_weights, float("-inf")).scatter(1, place, log_weights.gather(1, place))


def above_positive(
    positive: Tensor,
    candidates: Tensor,
    *,
    relative_margin: float | None = None,
    absolute_margin: float | None = None,
    max_score: float | None = None,
) -> Tensor:
    """Candidates bool [B, C] that score so high beside the positive that they are taken for matches.

    A limit that is None sets none. The names are those of sentence-transformers' `mine_hard_negatives`, as in
    `itrpipe mine-negatives`.

    Args:
        positive: [B].
        candidates: [B, C].
        relative_margin: r, above p - r |p|, which is p (1 - r) where p is positive.
        absolute_margin: a, above p - a.
        max_score: above it.

    Source: Moreira et al. (NV-Retriever), 2024, section 3.2: `TopK-PercPos` at 95 % is r = 0.05, `TopK-MarginPos` is a.
    """
    found = torch.zeros_like(candidates, dtype=torch.bool)
    if relative_margin is not None:
        found |= candidates > (positive - relative_margin * positive.abs())[:, None]
    if absolute_margin is not None:
        found |= candidates > (positive - absolute_margin)[:, None]
    if max_score is not None:
        found |= candidates > max_score
    return found
