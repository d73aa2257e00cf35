"""The cross-modal fusion of AsCL: attention between regions and words with several heads, and the score of a pair.

Regions look at words and words at regions; each finds a vector of the other side (Eq. 1):

    w*_r = Concat_h(softmax_w(scale q_hr . k_hw) k_hw) Z^O        q = v Z^X, k = w Z^Y

and v*_w likewise with matrices of its own. Keys and values share Z^Y, as the paper has it. Then

    S_local  = 1/2 mean_r cos(v_r, w*_r) + 1/2 mean_w cos(w_w, v*_w)                        (Eq. 2)
    S_global = cos(V_g, W_g)                                                                (Eq. 3)
    S        = u1 S_local + (1 - u1) S_global                                               (Eq. 4)

with W_g = X_w(mean_r w*_r) and V_g = t V_g2 + (1 - t) V_g1, V_g1 = X_v(mean_w v*_w), V_g2 = X_g(G) of the vector G of
the whole image, and t = sigmoid(Linear([V_g2; V_g1])).

V_g and W_g belong to the pair, not to the image or the caption: each depends on what the other side was looked at
with. A matrix of scores therefore needs the fusion of all its pairs. Code of the first author for a later method fuses
each item with its own partner once and compares the vectors so made, which tells every vector its answer.

Z^O is applied to the keys of each head and not to what a query finds: what belongs to one side is then computed once
for all pairs of a batch. Pairs are scored in tiles; with gradients, a tile keeps its inputs only and is computed a
second time in the backward pass (`torch.utils.checkpoint`).

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion". The gate, and the variant without matrices, are in the code of their later method ACF-R only.

Shapes: B images, T captions, N pairs, R regions, W words, D width, H heads, d = D / H; N items of Q queries over C
items of S context vectors.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from itrpipe.models.cross_attention import NORM_EPSILON
from itrpipe.models.vectors import at_least_single

Variant = Literal["paper", "released"]

RELEASED_SCALES = {"to_words": 4.0, "to_regions": 9.0}
"""Fixed factors of the products that replace 1 / sqrt(d) in the released code."""

TILE = 16
"""Images of a tile, and captions."""


class Side(NamedTuple):
    """Images or captions as those that look and those that are looked at.

    Attributes:
        vectors: [..., N, S, D], zero where they are not real.
        real: bool [..., N, S].
        asked: [..., N, S, H, d] what they ask the other side.
        keys: [..., N, S, H, d] what the other side finds them by.
        values: [..., N, S, H, D] what it finds.
    """

    vectors: Tensor
    real: Tensor
    asked: Tensor
    keys: Tensor
    values: Tensor


class CrossModalFusion(nn.Module):
    """Scores of image-caption pairs.

    Args:
        width: D.
        heads: H, a divisor of D.
        variant: `paper`, or `released`: heads are slices of the vectors themselves, without matrices, and the products
            have fixed factors.
        u1: share of the local score.
    """

    def __init__(self, width: int, heads: int, variant: Variant, u1: float) -> None:
        super().__init__()
        scales = RELEASED_SCALES if variant == "released" else dict.fromkeys(RELEASED_SCALES)
        self.u1 = u1
        self.to_words, self.to_regions = (HeadedAttention(width, heads, scale) for scale in scales.values())
        self.global_text, self.global_regions = nn.Linear(width, width), nn.Linear(width, width)
        self.gate = nn.Linear(2 * width, width)

    def score_pairs(
        self, regions: Tensor, count: Tensor | None, whole: Tensor, words: Tensor, lengths: Tensor
    ) -> Tensor:
        """Scores [N] of image k with caption k; arguments as for `pair_parts`."""
        local, image, text = self.pair_parts(regions, count, whole, words, lengths)
        return self.u1 * local + (1 - self.u1) * _cosine(image, text)

    def pair_parts(
        self, regions: Tensor, count: Tensor | None, whole: Tensor, words: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """S_local [N], V_g [N, D] and W_g [N, D] of image k with caption k.

        Args:
            regions: [N, R, D].
            count: [N] real regions per image, or None where all are real. What lies past it has no influence.
            whole: [N, D] V_g2.
            words: [N, W, D].
            lengths: [N] words per caption. What lies past them has no influence.
        """
        sides = self._images(regions, count), self._captions(words, lengths)
        images, captions = (Side._make(each[:, None] for each in side) for side in sides)
        local, image, text = self._parts(images, captions, whole[:, None])
        return local[:, 0, 0], image[:, 0, 0], text[:, 0, 0]

    def score_matrix(
        self, regions: Tensor, count: Tensor | None, whole: Tensor, words: Tensor, lengths: Tensor
    ) -> Tensor:
        """Scores [B, T] of every image with every caption; regions [B, R, D], words [T, W, D], as for `pair_parts`."""
        order = lengths.argsort(descending=True, stable=True)  # captions of a tile have about one length
        captions = []
        for rows in order.split(TILE):
            own = lengths[rows]
            captions.append(self._captions(words[rows, : int(own.max())], own))
        scores = []
        for rows in torch.arange(len(regions), device=regions.device).split(TILE):
            images = self._images(regions[rows], None if count is None else count[rows])
            scores.append(torch.cat([self._tile(images, each, whole[rows]) for each in captions], dim=1))
        return torch.cat(scores).index_select(1, order.argsort())

    def _images(self, regions: Tensor, count: Tensor | None) -> Side:
        return _side(regions, count, self.to_words, self.to_regions)

    def _captions(self, words: Tensor, lengths: Tensor) -> Side:
        return _side(words, lengths, self.to_regions, self.to_words)

    def _tile(self, images: Side, captions: Side, whole: Tensor) -> Tensor:
        def score(images: Side, captions: Side, whole: Tensor) -> Tensor:
            local, image, text = self._parts(images, captions, whole)
            return self.u1 * local + (1 - self.u1) * _cosine(image, text)

        if not torch.is_grad_enabled():
            return score(images, captions, whole)
        scores = checkpoint(score, images, captions, whole, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(scores, Tensor)
        return scores

    def _parts(self, images: Side, captions: Side, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """S_local [..., B, T], V_g and W_g [..., B, T, D] of every image with every caption."""
        of_regions, words = found(images, captions, self.to_words.scale)  # [..., T, B], [..., T, B, D]
        of_words, regions = found(captions, images, self.to_regions.scale)  # [..., B, T], [..., B, T, D]
        whole, seen = whole[..., None, :].expand_as(regions), self.global_regions(regions)
        gate = torch.sigmoid(self.gate(torch.cat([whole, seen], dim=-1)))
        text = self.global_text(words).transpose(-3, -2)
        return (of_regions.mT + of_words) / 2, seen + gate * (whole - seen), text


class HeadedAttention(nn.Module):
    """Queries of one side look at the vectors of the other (Eq. 1).

    Args:
        width: D.
        heads: H.
        scale: factor of the products of a variant without matrices; None for the paper's matrices and 1 / sqrt(d).

    Attributes:
        query, key, output: [D, D] Z^X, Z^Y and Z^O, the heads side by side, applied from the right; identities in the
            variant without.
        heads, scale: H, and the factor of the products.
    """

    query: Tensor
    key: Tensor
    output: Tensor

    def __init__(self, width: int, heads: int, scale: float | None) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5 if scale is None else scale
        for name in ("query", "key", "output"):
            if scale is None:
                setattr(self, name, nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width))))
            else:
                self.register_buffer(name, torch.eye(width), persistent=False)


def found(queries: Side, context: Side, scale: float) -> tuple[Tensor, Tensor]:
    """What every item looks up in every one of the other side (Eq. 1).

    Returns:
        Mean cosines [..., C, N] of vectors with what they find, and the means [..., C, N, D] of what they find.
    """
    products = scale * torch.einsum("...nqhd,...cshd->...cnqsh", queries.asked, context.keys)
    closed = ~context.real[..., :, None, None, :, None]
    weights = products.masked_fill(closed, float("-inf")).softmax(dim=-2).flatten(-2)  # [..., C, N, Q, S H]
    vectors = torch.einsum("...cnqk,...cke->...cnqe", weights, context.values.flatten(-3, -2))
    share = queries.real / queries.real.sum(dim=-1, keepdim=True)  # [..., N, Q]
    cosines = _cosine(queries.vectors[..., None, :, :, :], vectors)  # [..., C, N, Q]
    share = share[..., None, :, :]
    return (cosines * share).sum(dim=-1), (vectors * share[..., None]).sum(dim=-2)


def _side(vectors: Tensor, count: Tensor | None, asks: HeadedAttention, answers: HeadedAttention) -> Side:
    real = real_places(vectors, count)
    vectors = at_least_single(vectors).masked_fill(~real[..., None], 0.0)
    asked, keys = ((vectors @ matrix).unflatten(-1, (asks.heads, -1)) for matrix in (asks.query, answers.key))
    values = torch.einsum("nshd,hde->nshe", keys, answers.output.unflatten(0, (asks.heads, -1)))
    return Side(vectors, real, asked, keys, values)


def real_places(vectors: Tensor, count: Tensor | None) -> Tensor:
    """Which of the vectors [N, S, D] are real, bool [N, S]: the first `count` [N] of each item, or all for None."""
    places = torch.arange(vectors.shape[1], device=vectors.device)
    return (places < (vectors.shape[1] if count is None else count[:, None])).expand(len(vectors), -1)


def mean_of_real(vectors: Tensor, real: Tensor) -> Tensor:
    """Mean [N, D] of the `real` [N, S] ones of [N, S, D]."""
    return vectors.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1, keepdim=True)


def _cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosines along the last axis.

    A vector of no length, such as a word that noise has cut off, has cosine zero; its gradient is passed on unscaled.
    """
    squared = left.square().sum(dim=-1) * right.square().sum(dim=-1)
    return (left * right).sum(dim=-1) * squared.masked_fill(squared <= NORM_EPSILON**2, 1.0).rsqrt()
