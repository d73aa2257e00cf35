"""Offline quintuplet losses: the max-violation triplet loss joined by negatives mined from the whole data set.

Symbols: (i, t) a positive pair of the batch; t_on, i_on its hardest negatives inside the batch; t_off, i_off
negatives drawn from the offline lists of i and of t. An offline negative is scored in three ways: against the
positive (a, b below), against the other offline negative (c), and through the positive partners of both (d):

    a = S(i, t_off)    b = S(i_off, t)    c = S(i_off, t_off)    d = S(i_off2, t_off2)

where t_off2 is a caption of the image i_off, and i_off2 the image of the caption t_off.

The three losses are Eq. 3, 4 and 5 of the paper; its ablations (Table 3) are options of theirs. In print, bars and
tildes over i and t change places between equations; the symbols here follow the text and the released code.

Source: Chen, Deng and Luo, "Adaptive Offline Quintuplet Loss for Image-Text Matching", ECCV 2020.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from itrpipe.losses.triplet import excluded_pairs, hinge, online_hard_negatives

PairSource = Literal["offline", "online"]
WeightReference = Literal["offline", "positive"]


class OfflineScores(NamedTuple):
    """Scores of the offline negatives of each positive pair (i, t), all [B].

    Attributes:
        image_with_offline_text: a = S(i, t_off).
        offline_image_with_text: b = S(i_off, t).
        offline_pair: c = S(i_off, t_off).
        derived_pair: d = S(i_off2, t_off2).
    """

    image_with_offline_text: Tensor
    offline_image_with_text: Tensor
    offline_pair: Tensor
    derived_pair: Tensor


def offline_triplet_loss(
    scores: Tensor,
    image_with_offline_text: Tensor,
    offline_image_with_text: Tensor,
    online_margin: float = 0.2,
    offline_margin: float = 0.0,
    not_negative: Tensor | None = None,
    *,
    online_term: bool = True,
) -> Tensor:
    """Triplet loss with one online and one offline negative per direction, summed over the batch (AOQ Eq. 3):

        L = sum_(i,t) [g1 - S(i,t) + S(i,t_on)]+ + [g2 - S(i,t) + a]+
                    + [g1 - S(i,t) + S(i_on,t)]+ + [g2 - S(i,t) + b]+

    Args:
        scores: [B, B] in-batch scores of image i with caption j, positives on the diagonal.
        image_with_offline_text: [B] a = S(i, t_off).
        offline_image_with_text: [B] b = S(i_off, t).
        online_margin: g1, the margin of the in-batch negatives.
        offline_margin: g2, the margin of the offline negatives.
        not_negative: [B, B] bool, pairs beside the diagonal that are not in-batch negatives.
        online_term: count the two terms with g1.

    Returns:
        Scalar, a sum (not a mean) over the batch.

    References:
        AOQ, Eq. 3.

    Relations:
        Without a and b: `itrpipe.losses.triplet.triplet_loss`. With c and d: `offline_quintuplet_loss`.
    """
    positive = scores.diagonal()
    offline = hinge(positive, image_with_offline_text, offline_margin)
    offline = offline + hinge(positive, offline_image_with_text, offline_margin)
    if not online_term:
        return offline.sum()
    return (offline + _online_hinges(scores, online_margin, not_negative)).sum()


def offline_quintuplet_loss(
    scores: Tensor,
    offline: OfflineScores,
    online_margin: float = 0.2,
    offline_margin: float = 0.0,
    not_negative: Tensor | None = None,
    *,
    online_term: bool = True,
    pairs: PairSource = "offline",
) -> Tensor:
    """Eq. 3 with the two pairs that offline negatives form among themselves, summed over the batch (AOQ Eq. 4):

        L = Eq. 3 + sum_(i,t) [g2 - S(i,t) + c]+ + [g2 - S(i,t) + d]+

    Args:
        scores: [B, B] in-batch scores of image i with caption j, positives on the diagonal.
        offline: a, b, c and d, each [B].
        online_margin: g1, the margin of the in-batch negatives.
        offline_margin: g2, the margin of the offline negatives.
        not_negative: [B, B] bool, pairs beside the diagonal that are not in-batch negatives.
        online_term: count the two terms with g1; without them training collapses ("OnlyOffline" of Table 3).
        pairs: what c and d are made of. `online` takes the hardest negatives of the batch ("OnlineQuin" of
            Table 3), c = S(i_on, t_on) and d = S(image of t_on, text of i_on); a and b stay offline.

    Returns:
        Scalar, a sum (not a mean) over the batch.

    References:
        AOQ, Eq. 4 and Table 3.

    Relations:
        Equals `adaptive_offline_quintuplet_loss` with alpha = infinity and beta = 1.
    """
    positive = scores.diagonal()
    if pairs == "online":
        offline = OfflineScores(*offline[:2], *online_pairs(scores, not_negative))
    terms = _offline_hinges(positive, offline, offline_margin)
    return (terms + _online_hinges(scores, online_margin, not_negative) if online_term else terms).sum()


def adaptive_offline_quintuplet_loss(
    scores: Tensor,
    offline: OfflineScores,
    online_margin: float = 0.2,
    offline_margin: float = 0.0,
    alpha: float = 0.3,
    beta: float = 1.5,
    not_negative: Tensor | None = None,
    *,
    weight_by: WeightReference = "offline",
) -> Tensor:
    """Eq. 4 with online terms that weigh less the harder the offline negative is (AOQ Eq. 5):

        L = sum_(i,t) (beta - (a - S(i,t_on)) / alpha) [g1 - S(i,t) + S(i,t_on)]+
                    + (beta - (b - S(i_on,t)) / alpha) [g1 - S(i,t) + S(i_on,t)]+
                    + [g2 - S(i,t) + a]+ + [g2 - S(i,t) + b]+ + [g2 - S(i,t) + c]+ + [g2 - S(i,t) + d]+

    The weight is part of what is differentiated, as the paper's Eq. 6 and its code agree, and it is not
    clamped: it turns negative where the offline negative beats the online one by more than alpha * beta.

    Args:
        scores: [B, B] in-batch scores of image i with caption j, positives on the diagonal.
        offline: a, b, c and d, each [B].
        online_margin: g1, the margin of the in-batch negatives.
        offline_margin: g2, the margin of the offline negatives.
        alpha: score difference that changes the weight by one.
        beta: weight of an online negative that is as hard as the offline one.
        not_negative: [B, B] bool, pairs beside the diagonal that are not in-batch negatives.
        weight_by: what the online negative is compared with. `positive` puts S(i,t) in place of a and b in the
            weights ("w/o OfflineAdap" of Table 3).

    Returns:
        Scalar, a sum (not a mean) over the batch; may be negative.

    References:
        AOQ, Eq. 5 and Table 3; its gradient, Eq. 6.

    Relations:
        Equals `offline_quintuplet_loss` with alpha = infinity and beta = 1.
    """
    positive = scores.diagonal()
    text_on, image_on = online_hard_negatives(scores, not_negative)
    by_text, by_image = offline[:2] if weight_by == "offline" else (positive, positive)
    online = _adaptive_weight(by_text, text_on, alpha, beta) * hinge(positive, text_on, online_margin)
    online = online + _adaptive_weight(by_image, image_on, alpha, beta) * hinge(positive, image_on, online_margin)
    return (online + _offline_hinges(positive, offline, offline_margin)).sum()


def online_pairs(scores: Tensor, not_negative: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores of the two pairs that the hardest in-batch negatives of a positive pair form among themselves.

    Args:
        scores: [B, B] scores of image i with caption j, positives on the diagonal.
        not_negative: [B, B] bool, further pairs that are not negatives, or None.

    Returns:
        S(i_on, t_on) [B] and S(image of t_on, text of i_on) [B]; -inf where the two are no negative pair.

    Source: AOQ, Table 3, "OnlineQuin".
    """
    excluded = excluded_pairs(scores, not_negative)
    negatives = scores.masked_fill(excluded, float("-inf"))
    text, image = negatives.argmax(dim=1), negatives.argmax(dim=0)  # of image k, and of caption k
    return negatives[image, text], negatives[text, image]


def _online_hinges(scores: Tensor, margin: float, not_negative: Tensor | None) -> Tensor:
    positive = scores.diagonal()
    text_on, image_on = online_hard_negatives(scores, not_negative)
    return hinge(positive, text_on, margin) + hinge(positive, image_on, margin)  # [B]


def _offline_hinges(positive: Tensor, offline: OfflineScores, margin: float) -> Tensor:
    return hinge(positive[:, None], torch.stack(offline, dim=1), margin).sum(dim=1)  # [B]


def _adaptive_weight(reference: Tensor, online: Tensor, alpha: float, beta: float) -> Tensor:
    # An anchor without an in-batch negative scores -inf there; its hinge is zero, and any finite weight keeps it so.
    online = torch.where(online.isneginf(), reference, online)
    return beta - (reference - online) / alpha
