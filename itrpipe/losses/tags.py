"""The losses of TAGS-DC: a masked language model, synthetic sentences, and which of their words are wrong.

A term belongs to an anchor, a positive pair with the sentences that were made of its caption. Every loss here is the
mean over T anchors of a mean inside each, as if there were a step for each anchor whose gradients are averaged; an
anchor without any sentence counts with 0.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022. The weights of `discrimination_loss` are in the released code only.

Shapes: T anchors, m synthetic sentences of an anchor, N sentences of all, W words, M words of all, V token ids.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.losses.triplet import hinge

MISMATCH_WEIGHT, MATCH_WEIGHT = 1.0, 0.11
_SMALLEST = 1e-10
"""Probabilities are not taken for less before their logarithm."""


def masked_word_loss(logits: Tensor, words: Tensor, anchors: Tensor, num_anchors: int) -> Tensor:
    """Cross-entropy of the words that stood at the labelled positions of the masked copies:

        L_MLM = mean -log p(w | I, T^(k))

    The mean counts words, not sentences.

    Args:
        logits: [M, V].
        words: [M] int64, what stood there.
        anchors: [M] int64, anchor of each.
        num_anchors: T.

    References:
        TAGS-DC, Eq. 1.
    """
    return _mean_cross_entropy(logits, words, anchors, num_anchors)


def synthetic_triplet_loss(positive: Tensor, negatives: Tensor, real: Tensor, margin: float) -> Tensor:
    """Triplet loss of an image with its caption and sentences made of it, s being the sigmoid of the model's score:

        L_ISTM = mean_t [margin - s(I, T) + s(I, T_t)]+

    Args:
        positive: [T] scores of the pairs.
        negatives: [T, m] scores of the image of each with its sentences; anything where there is none.
        real: bool [T, m], which sentences there are.
        margin: alpha, in units of s.

    References:
        TAGS-DC, Eq. 7.
    """
    with torch.autocast(positive.device.type, enabled=False):
        violation = hinge(positive.float().sigmoid()[:, None], negatives.float().sigmoid(), margin)
        counted = torch.where(real, violation, 0.0).sum(dim=1)
        return (counted / real.sum(dim=1).clamp(min=1)).mean()


def discrimination_loss(
    logits: Tensor,
    words: Tensor,
    originals: Tensor,
    anchors: Tensor,
    num_anchors: int,
    weights: tuple[float, float] = (MISMATCH_WEIGHT, MATCH_WEIGHT),
) -> Tensor:
    """Whether each word of a synthetic sentence is the one that its caption has there:

        L_WoD = mean -w_y log p(y),   y = 1 where the words are equal, else 0

    The mean is over the words and not divided by their weights.

    Args:
        logits: [M, 2] of the words of all sentences, those at `text_positions`; 1 is a word of the caption.
        words: [M] int64, of the sentences.
        originals: [M] int64, of the captions.
        anchors: [M] int64, anchor of each.
        num_anchors: T.
        weights: w_0 and w_1.

    References:
        TAGS-DC, Eq. 8, which has no weights.
    """
    with torch.autocast(logits.device.type, enabled=False):
        equal = words == originals
        chances = logits.float().softmax(dim=1).gather(1, equal.long()[:, None])[:, 0]
        losses = torch.where(equal, weights[1], weights[0]) * -chances.clamp(min=_SMALLEST).log()
        return _mean_over_anchors(losses, anchors, num_anchors)


def correction_loss(logits: Tensor, originals: Tensor, anchors: Tensor, num_anchors: int) -> Tensor:
    """Cross-entropy of the caption's own words, at some positions of its synthetic sentences:

        L_WoC = mean -log p(s_j | I, T_t)

    The positions are those that had been labelled when the sentence was made, also where the draw was the caption's
    own word, or all (`text_positions`); the paper reads as all, its code takes the first.

    Args:
        logits: [M, V].
        originals: [M] int64, words of the caption at these positions.
        anchors: [M] int64, anchor of each.
        num_anchors: T.

    References:
        TAGS-DC, Eq. 9.
    """
    return _mean_cross_entropy(logits, originals, anchors, num_anchors)


def text_positions(lengths: Tensor, width: int, specials: bool) -> Tensor:
    """Positions of the words of sentences.

    Args:
        lengths: [N] int64, tokens of each, start and end among them.
        width: W.
        specials: count start and end as words.

    Returns:
        bool [N, W].
    """
    position = torch.arange(width, device=lengths.device)
    inner = 0 if specials else 1
    return (position >= inner) & (position < lengths[:, None] - inner)


def _mean_cross_entropy(logits: Tensor, words: Tensor, anchors: Tensor, num_anchors: int) -> Tensor:
    with torch.autocast(logits.device.type, enabled=False):
        return _mean_over_anchors(F.cross_entropy(logits.float(), words, reduction="none"), anchors, num_anchors)


def _mean_over_anchors(losses: Tensor, anchors: Tensor, num_anchors: int) -> Tensor:
    """Mean over the anchors of the mean [M] of each; an anchor without a loss counts with 0."""
    sums = losses.new_zeros(num_anchors).index_add_(0, anchors, losses)
    counts = losses.new_zeros(num_anchors).index_add_(0, anchors, torch.ones_like(losses))
    return (sums / counts.clamp(min=1)).mean()
