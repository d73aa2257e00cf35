"""Scores of image-caption pairs by cross-attention, from region-word products and small Gram matrices alone.

Every query q of one side attends to the context vectors c_s of the other, and is compared with what it found:

    a_s = softmax_s(lambda * norm(A)_sq)        w_q = sum_s a_s c_s        R_q = cos(q, w_q)

where A_sq = c_s . q. Neither w_q nor any other array of width D is needed for R_q, since

    q . w_q = sum_s a_s A_sq        |w_q|^2 = a^T G a,   G_st = c_s . c_t

so that one matrix product per tile of images and captions (`A`), one Gram matrix per image and one per caption
give the scores of both directions. Padding takes part in nothing: it is zeroed before the product, left out of the
softmax over the context, and left out when the R_q are put together.

Arrays of one direction are laid out [C, S, Q, N]: C context items (images when words attend to regions) of S
vectors, N query items (then captions) of Q vectors. The reductions over S and Q then run along whole rows of
memory, and the Gram product is one large matrix product per context item.

Source: Lee et al. (SCAN), "Stacked Cross Attention for Image-Text Matching", ECCV 2018; Liu et al. (BFAN), "Focus
Your Attention: A Bidirectional Focal Attention Network for Image-Text Matching", ACM MM 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NORM_EPSILON = 1e-8
"""Added to the norms that divide A; a cosine whose two lengths multiply to less is zero."""

_WITHIN_ONE = ("clipped_l2norm", "clipped_l1norm", "softmax")
_MILD = 30.0
"""Values of these normalisations lie between -0.1 and 1. With an inverse temperature up to this their exponentials, and
the squared length of a sum of these, stay far from the ends of single precision without a peak taken off."""


@dataclass(frozen=True)
class Attention:
    """How one side attends to the other, and how the relevances of its queries become one score.

    Attributes:
        lambda_softmax: inverse temperature of the attention.
        raw_feature_norm: normalisation of A over the queries before the softmax, a key of `RAW_FEATURE_NORMS`.
        focal: which context vectors are kept, a key of `FOCAL_THRESHOLDS`, or None for all.
        aggregation: how the relevances of the queries are put together, a key of `AGGREGATIONS`.
        lambda_lse: inverse temperature of the LogSumExp aggregation; the others do not read it.
    """

    lambda_softmax: float
    raw_feature_norm: str = "clipped_l2norm"
    focal: str | None = None
    aggregation: str = "Mean"
    lambda_lse: float = 1.0


@dataclass(frozen=True)
class CrossAttention:
    """The score of a pair: the sum over the directions that are there; at least one is.

    Attributes:
        words_to_regions: words as queries over regions (`t2i`), or None.
        regions_to_words: regions as queries over words (`i2t`), or None.
    """

    words_to_regions: Attention | None = None
    regions_to_words: Attention | None = None


@dataclass(frozen=True)
class Items:
    """One side: C images with S regions each, or C captions with S words each.

    Attributes:
        vectors: [C, S, D], zero at padding.
        gram: [C, S, S] inner products among the vectors of each item.
        padding: [C, S] bool, True at padding; or None where there is none.
    """

    vectors: Tensor
    gram: Tensor
    padding: Tensor | None = None

    @property
    def count(self) -> Tensor:
        """Number of real vectors per item, [C]."""
        if self.padding is None:
            return self.gram.new_full((self.gram.shape[0],), self.gram.shape[1])
        return (~self.padding).sum(dim=1).to(self.gram.dtype)

    def split(self, size: int) -> list[Items]:
        """The items in order, `size` at a time."""
        vectors, grams = self.vectors.split(size), self.gram.split(size)
        paddings = [None] * len(vectors) if self.padding is None else self.padding.split(size)
        return [Items(*parts) for parts in zip(vectors, grams, paddings, strict=True)]


def items(vectors: Tensor, count: Tensor | None) -> Items:
    """Items [C, S, D] of which the first `count` [C] vectors are real (None: all); whatever lies past is left out."""
    padding = None
    if count is not None:
        padding = torch.arange(vectors.shape[1], device=vectors.device) >= count[:, None]  # [C, S]
        vectors = vectors.masked_fill(padding[..., None], 0.0)
    return Items(vectors, vectors @ vectors.transpose(1, 2), padding)


def attended_scores(affinity: Tensor, context: Items, queries: Items, attention: Attention, paired: bool) -> Tensor:
    """Scores in one direction.

    Args:
        affinity: [C, S, Q, N] inner products A of context and query vectors, zero at padding.
        context: the C items attended to.
        queries: the N items that attend; for pairs C of them.
        attention: the options.
        paired: query item c meets context item c only, and N is 1.

    Returns:
        [C, N] scores.
    """
    padding = None if queries.padding is None else _as_queries(queries.padding, paired)  # [1 or C, Q, N]
    weights = _attention_weights(affinity, context, padding, attention)  # [C, S, Q, N]
    mixed = torch.bmm(context.gram, weights.flatten(2)).view_as(weights)
    squared = _dotted(mixed, weights)  # [C, Q, N], |w|^2
    inner = _dotted(weights, affinity)  # [C, Q, N], q . w
    lengths = _as_queries(queries.gram.diagonal(dim1=1, dim2=2), paired) * squared  # |q|^2 |w|^2
    # A vector of no length (rounding may even leave it below zero) has relevance zero. Published is a division by
    # max(|q| |w|, epsilon), which multiplies its gradient by 1/epsilon; here that is passed on unscaled.
    relevance = inner * lengths.masked_fill(lengths <= NORM_EPSILON**2, 1.0).rsqrt()
    count = queries.count[:, None] if paired else queries.count
    return AGGREGATIONS[attention.aggregation](relevance, padding, count, attention.lambda_lse)


def _multiplied(own: Tensor, factor: Tensor) -> Tensor:
    """own * factor; without gradients in the memory of `own`, which nothing else reads any more."""
    return own * factor if torch.is_grad_enabled() else own.mul_(factor)


def _dotted(left: Tensor, right: Tensor) -> Tensor:
    """Sum of left * right over the context vectors; without gradients in the memory of `left`, see `_multiplied`."""
    return _multiplied(left, right).sum(dim=1)


def _as_queries(per_vector: Tensor, paired: bool) -> Tensor:
    """[N, Q] as [1, Q, N], or for pairs [C, Q] as [C, Q, 1]."""
    return per_vector[:, :, None] if paired else per_vector.T[None]


def _attention_weights(affinity: Tensor, context: Items, query_padding: Tensor | None, attention: Attention) -> Tensor:
    """Weights [C, S, Q, N] of the context vectors; zero at padding and where the focal mask leaves them out.

    They are not scaled to a sum of one, before or behind a focal mask, since a cosine does not depend on the length of
    w. Before a focal mask, and where the exponentials could leave single precision, the greatest of a query is one.
    """
    # exp(lambda x) = 2^(rate x): on a CPU, powers of two are four times as fast as torch's softmax or exponential.
    rate = attention.lambda_softmax / math.log(2)
    exponents = RAW_FEATURE_NORMS[attention.raw_feature_norm](affinity, query_padding, rate)
    if context.padding is not None:
        never = torch.zeros_like(context.padding, dtype=affinity.dtype).masked_fill(context.padding, float("-inf"))
        exponents = exponents + never[:, :, None, None]  # many times faster than a masked fill of all [C, S, Q, N]
    mild = attention.raw_feature_norm in _WITHIN_ONE and attention.lambda_softmax <= _MILD
    if attention.focal is not None or not mild:
        peak = exponents.detach().amax(dim=1, keepdim=True)
        exponents = exponents - peak if torch.is_grad_enabled() else exponents.sub_(peak)
    weights = exponents.exp2() if torch.is_grad_enabled() else exponents.exp2_()
    if attention.focal is None:
        return weights
    factor = _focal_factor(weights.detach(), context.count, attention.focal)
    return F.threshold(_multiplied(weights, factor), 1.0, 0.0, inplace=not torch.is_grad_enabled())


def _focal_factor(weights: Tensor, count: Tensor, focal: str) -> Tensor:
    """What weights [C, S, Q, N] are multiplied by, so that those with a positive focal score F exceed one.

    F is linear in the weight that it judges, so that its sign is a comparison with a threshold per row; both scale
    with the weights p, whatever their sum.

    A row that would keep nothing, such as a flat one or a context of a single word, keeps everything: the
    published code divides zero by zero there. The greatest weight being one, all of a flat row are.
    """
    threshold = FOCAL_THRESHOLDS[focal](weights, count)  # [C, 1, Q, N]
    return torch.where(threshold < 1.0, threshold, 0.5).reciprocal()


def _equal_threshold(weights: Tensor, count: Tensor) -> Tensor:
    """F_i = sum_j (p_i - p_j) = s p_i - sum_j p_j over s context vectors: the mean weight.."""
    return weights.sum(dim=1, keepdim=True) / count[:, None, None, None]


def _prob_threshold(weights: Tensor, count: Tensor) -> Tensor:
    """F_i = sum_j (p_i - p_j) sqrt(p_j): the mean of p weighted by sqrt(p).."""
    roots = weights.sqrt()
    return (weights * roots).sum(dim=1, keepdim=True) / roots.sum(dim=1, keepdim=True)


FOCAL_THRESHOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"equal": _equal_threshold, "prob": _prob_threshold}
"""Focal variant -> threshold that a weight [C, S, Q, N] must exceed, given the number [C] of context vectors."""


def _leaky(affinity: Tensor) -> Tensor:
    """The published clipping; the paper has a plain ReLU."""
    return F.leaky_relu(affinity, 0.1)


def _l2_factor(affinity: Tensor) -> Tensor:
    # The root of an all-zero column, as padding has, must neither make its gradient NaN nor blow it up.
    squared = affinity.square().sum(dim=2, keepdim=True)  # [C, S, 1, N]
    return (squared.masked_fill(squared == 0, 1.0).sqrt() + NORM_EPSILON).reciprocal()


def _l2(affinity: Tensor, query_padding: Tensor | None, rate: float) -> Tensor:
    return affinity * (rate * _l2_factor(affinity))


def _clipped_l2(affinity: Tensor, query_padding: Tensor | None, rate: float) -> Tensor:
    clipped = _leaky(affinity)
    return _multiplied(clipped, rate * _l2_factor(clipped))


def _l1(affinity: Tensor, query_padding: Tensor | None, rate: float) -> Tensor:
    total = affinity.abs().sum(dim=2, keepdim=True)
    return affinity * (rate * (total.masked_fill(total == 0, 1.0) + NORM_EPSILON).reciprocal())


def _softmax(affinity: Tensor, query_padding: Tensor | None, rate: float) -> Tensor:
    if query_padding is not None:
        affinity = affinity.masked_fill(query_padding[:, None], float("-inf"))
    return affinity.softmax(dim=2) * rate


RAW_FEATURE_NORMS: dict[str, Callable[[Tensor, Tensor | None, float], Tensor]] = {
    "clipped_l2norm": _clipped_l2,
    "l2norm": _l2,
    "clipped": lambda affinity, padding, rate: _leaky(affinity) * rate,
    "softmax": _softmax,
    "no_norm": lambda affinity, padding, rate: affinity * rate,
    "l1norm": _l1,
    "clipped_l1norm": lambda affinity, padding, rate: _l1(_leaky(affinity), padding, rate),
}
"""Name -> normalisation of A [C, S, Q, N] over the queries Q times a rate, given the padding [1 or C, Q, N] of Q."""


def _log_sum_exp(relevance: Tensor, padding: Tensor | None, count: Tensor, inverse_temperature: float) -> Tensor:
    """A sum inside, not a mean: it grows with the number of queries and may exceed one."""
    return (inverse_temperature * _filled(relevance, padding, float("-inf"))).logsumexp(dim=1) / inverse_temperature


def _maximum(relevance: Tensor, padding: Tensor | None, count: Tensor, inverse_temperature: float) -> Tensor:
    return _filled(relevance, padding, float("-inf")).amax(dim=1)


def _sum(relevance: Tensor, padding: Tensor | None, count: Tensor, inverse_temperature: float) -> Tensor:
    return _filled(relevance, padding, 0.0).sum(dim=1)


def _mean(relevance: Tensor, padding: Tensor | None, count: Tensor, inverse_temperature: float) -> Tensor:
    return _filled(relevance, padding, 0.0).sum(dim=1) / count


def _filled(relevance: Tensor, padding: Tensor | None, value: float) -> Tensor:
    return relevance if padding is None else relevance.masked_fill(padding, value)


AGGREGATIONS: dict[str, Callable[[Tensor, Tensor | None, Tensor, float], Tensor]] = {
    "LogSumExp": _log_sum_exp,
    "Mean": _mean,
    "Max": _maximum,
    "Sum": _sum,
}
"""Name -> score [C, N] from relevances [C, Q, N], padding [1 or C, Q, N], counts [N] or [C, 1], lambda_lse."""
