"""The scores of `itrpipe.models.ascl.fusion` for every image with every caption, in tiles of bounded memory.

A query x finds y* = sum_hs a_hs o_hs, with a_hs the weight of context vector s in head h and o_hs = k_hs Z^O_h, where
Z^O_h are the rows of Z^O that belong to the head. No y* is needed:

    x . y*   = sum_hs a_hs k_hs . u_h,   u = x Z^O^T
    |y*|^2   = a^T G a,                  G_hs,gt = o_hs . o_gt
    X(mean y*) = sum_hs mean(a_hs) k_hs Z^O_h X

so that beside the products of queries and keys a pair costs no product with a D x D matrix: these are applied to each
image and each caption once. At D = 1024, with 36 regions and 15 words, that is a thirteenth of the multiplications.

With gradients, a tile keeps its inputs only and is computed a second time in the backward pass
(`torch.utils.checkpoint`).

Shapes: B images, T captions, D width, H heads, d = D / H, E width of global vectors. One side of a direction are C
context items of S vectors, the other N query items of Q vectors; their arrays are laid out [C, H, S, Q, N], so that
reductions over S and Q run along whole rows of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from itrpipe.models.ascl.fusion import CrossModalFusion, HeadedAttention, cleared, cosine_of, real_places
from itrpipe.models.attention_tiles import groups

TILE_VALUES = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Attention weights of one direction per tile: on a CPU what its caches hold, on a GPU what hides kernel launches."""

IMAGES_PER_TILE = {"cpu": 16, "cuda": 64}
"""Images of a tile; many captions join them, as gradients of what belongs to one side are added up tile by tile."""

IMAGES_AT_ONCE = 64
"""Images whose keys, Gram matrices and summands are held at a time, 4 MB each at D = 1024 and 36 regions."""


@dataclass(frozen=True)
class Queries:
    """N items as those that look.

    Attributes:
        vectors: [H, d, 2 Q N] first log2(e) scale q, then u; of each the first vectors of all items, then the second.
        squared: [Q N] squared lengths of the vectors before any matrix.
        share: [Q, N] one over the number of real queries of the item; zero at padding.
    """

    vectors: Tensor
    squared: Tensor
    share: Tensor


@dataclass(frozen=True)
class Context:
    """C items as those that are looked at.

    Attributes:
        keys: [H, C S, d].
        gram: [C, H S, H S].
        summands: [C, H S, E] what each key adds to the global vectors.
        closed: [C, 1, S, 1] zero, and -inf at padding.
    """

    keys: Tensor
    gram: Tensor
    summands: Tensor
    closed: Tensor


@dataclass(frozen=True)
class Side:
    """Images or captions in both roles.

    Attributes:
        queries, context: the roles.
        whole: [b, 2, D] of images: V_g2, and what it adds to the gate; None for captions.
    """

    queries: Queries
    context: Context
    whole: Tensor | None


@dataclass(frozen=True)
class Weights:
    """The parameters of one direction as tiles need them.

    Attributes:
        query: [D, 2 D] log2(e) scale Z^X, and Z^O transposed; powers of two are faster than exponentials.
        key: [D, D] Z^Y.
        output: [H, d, D + E] Z^O, and Z^O times what makes global vectors of mean ones.
        bias: [E] of the global vectors.
    """

    query: Tensor
    key: Tensor
    output: Tensor
    bias: Tensor

    @classmethod
    def of(cls, attention: HeadedAttention, matrix: Tensor, bias: Tensor) -> Weights:
        """Those of a direction whose global vectors are y* matrix + bias of the mean y* [D], with a matrix [D, E]."""
        query = torch.cat([attention.query * (attention.scale / math.log(2)), attention.output.T], dim=1)
        output = torch.cat([attention.output, attention.output @ matrix], dim=1)
        return cls(query, attention.key, output.unflatten(0, (attention.heads, -1)), bias)


def score_matrix(
    fusion: CrossModalFusion,
    regions: Tensor,
    count: Tensor | None,
    whole: Tensor,
    words: Tensor,
    lengths: Tensor,
    tile_values: int | None = None,
) -> Tensor:
    """Scores [B, T] of every image with every caption, equal to those of `CrossModalFusion.score_pairs`.

    Under bfloat16 autocast the matrix products of tiles run in bfloat16; nothing else does.

    Args:
        fusion: the parameters.
        regions: [B, R, D].
        count: [B] real regions per image, or None where all are real. What lies past it has no influence.
        whole: [B, D] V_g2.
        words: [T, W, D].
        lengths: [T] words per caption. What lies past them has no influence.
        tile_values: attention weights of one direction per tile; None for what suits the device.
    """
    device = regions.device.type
    block = min(IMAGES_PER_TILE[device], len(regions))
    room = (tile_values or TILE_VALUES[device]) // (fusion.to_words.heads * regions.shape[1] * block)
    bfloat16 = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    with torch.autocast(device, enabled=False):
        tiles = Tiles(fusion, bfloat16)
        rows = []
        for held in torch.arange(len(regions), device=regions.device).split(IMAGES_AT_ONCE):
            images = [
                tiles.images(regions[part], None if count is None else count[part], whole[part])
                for part in held.split(block)
            ]
            columns, order = [], []
            for group in groups(lengths, room):
                captions = tiles.captions(words[group.index, : group.width], lengths[group.index])
                columns.append(torch.cat([tiles.scores(each, captions) for each in images]))  # [b, n]
                order.append(group.index)
            rows.append(torch.cat(columns, dim=1).index_select(1, torch.cat(order).argsort()))
        return torch.cat(rows)


class Tiles:
    """Scores of some images with some captions.

    Args:
        fusion: the parameters; what they are multiplied out to is kept, and is part of the graph of gradients.
        bfloat16: precision of the products of tiles.
    """

    def __init__(self, fusion: CrossModalFusion, bfloat16: bool) -> None:
        width = fusion.gate.out_features
        self._fusion, self._bfloat16 = fusion, bfloat16
        self._gate_whole, gate_seen = fusion.gate.weight.split(width, dim=1)
        text, seen = fusion.global_text, fusion.global_regions
        self._to_words = Weights.of(fusion.to_words, text.weight.T, text.bias)
        matrix = torch.cat([seen.weight, gate_seen @ seen.weight]).T
        bias = torch.cat([seen.bias, F.linear(seen.bias, gate_seen, fusion.gate.bias)])
        self._to_regions = Weights.of(fusion.to_regions, matrix, bias)

    def images(self, regions: Tensor, count: Tensor | None, whole: Tensor) -> Side:
        """The side of b images: regions [b, R, D], count [b] or None, V_g2 [b, D]."""
        whole = torch.stack([whole, F.linear(whole, self._gate_whole)], dim=1)
        return self._side(regions, count, self._to_words, self._to_regions, whole)

    def captions(self, words: Tensor, lengths: Tensor) -> Side:
        """The side of t captions: words [t, W, D], lengths [t]."""
        return self._side(words, lengths, self._to_regions, self._to_words)

    def scores(self, images: Side, captions: Side) -> Tensor:
        """Scores [b, t] of the images with the captions; with gradients nothing but the sides is kept."""
        if not torch.is_grad_enabled():
            return self._scores(images, captions)
        scores = checkpoint(self._scores, images, captions, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(scores, Tensor)
        return scores

    def _side(
        self, vectors: Tensor, count: Tensor | None, asks: Weights, answers: Weights, whole: Tensor | None = None
    ) -> Side:
        real = real_places(vectors, count)  # [N, S]
        vectors = cleared(vectors, real)
        return Side(_queries(vectors, real, asks), _context(vectors, real, answers), whole)

    def _scores(self, images: Side, captions: Side) -> Tensor:
        assert images.whole is not None
        of_regions, text = self._looked(images.queries, captions.context, self._to_words.bias)  # [t, b], [t, b, D]
        of_words, seen = self._looked(captions.queries, images.context, self._to_regions.bias)  # [b, t], [b, t, 2 D]
        seen, gate = seen.chunk(2, dim=-1)
        whole, gate_whole = images.whole[:, None].unbind(dim=2)  # [b, 1, D] each
        gate = torch.sigmoid(gate + gate_whole)
        return self._fusion.combined((of_regions.T + of_words) / 2, gate, whole, seen, text.transpose(0, 1))

    def _looked(self, queries: Queries, context: Context, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cosine [C, N] of queries with what they find, and global vectors [C, N, E] of its mean."""
        heads, items = len(context.keys), len(context.gram)
        found = self._product(context.keys, queries.vectors)  # [H, C S, 2 Q N]
        found = found.view(heads, items, -1, 2, len(queries.squared)).permute(3, 1, 0, 2, 4)  # [2, C, H, S, Q N]
        weights = _softmax(found[0] + context.closed).flatten(1, 2)  # [C, H S, Q N]
        inner = (found[1].flatten(1, 2) * weights).sum(dim=1)
        squared = self._squared_lengths(context.gram, weights)  # [C, Q N]
        cosines = cosine_of(inner, squared * queries.squared).unflatten(1, queries.share.shape)
        mean = (weights.unflatten(2, queries.share.shape) * queries.share).sum(dim=2)  # [C, H S, N]
        return (cosines * queries.share).sum(dim=1), bias + self._product(mean.transpose(1, 2), context.summands)

    def _squared_lengths(self, gram: Tensor, weights: Tensor) -> Tensor:
        squared = _QuadraticForm.apply(gram, weights, self._product)
        assert isinstance(squared, Tensor)
        return squared

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        if not self._bfloat16:
            return left @ right
        return (left.bfloat16() @ right.bfloat16()).float()


class _QuadraticForm(torch.autograd.Function):
    """a^T G a [C, P] of symmetric G [C, K, K] and a [C, K, P]; the symmetry saves one product in three of training."""

    @staticmethod
    def forward(ctx: Any, gram: Tensor, weights: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        mixed = product(gram, weights)
        ctx.save_for_backward(weights, mixed)
        ctx.product = product
        return (mixed * weights).sum(dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, mixed = ctx.saved_tensors
        weighted = gradient[:, None] * weights
        return ctx.product(weighted, weights.transpose(1, 2)), (2 * gradient)[:, None] * mixed, None


def _queries(vectors: Tensor, real: Tensor, weights: Weights) -> Queries:
    heads = len(weights.output)
    asked = (vectors @ weights.query).unflatten(-1, (2, heads, -1))  # [N, Q, 2, H, d]
    share = real.to(vectors.dtype) / real.sum(dim=1, keepdim=True)  # [N, Q]
    squared = vectors.square().sum(dim=-1)
    return Queries(asked.permute(3, 4, 2, 1, 0).flatten(2), squared.T.flatten(), share.T.contiguous())


def _context(vectors: Tensor, real: Tensor, weights: Weights) -> Context:
    items, places, width = vectors.shape
    keys = (vectors @ weights.key).view(items * places, len(weights.output), -1).transpose(0, 1)  # [H, C S, d]
    values = (keys @ weights.output).view(len(keys), items, places, -1).transpose(0, 1).flatten(1, 2)  # [C, H S, D + E]
    values, summands = values.split([width, values.shape[-1] - width], dim=-1)
    closed = torch.zeros_like(real, dtype=vectors.dtype).masked_fill(~real, float("-inf"))
    return Context(keys, values @ values.transpose(1, 2), summands, closed[:, None, :, None])


def _softmax(exponents: Tensor) -> Tensor:
    """Powers of two over [C, H, S, Q N], scaled to a sum of one over S."""
    powers = (exponents - exponents.detach().amax(dim=2, keepdim=True)).exp2()
    return powers / powers.sum(dim=2, keepdim=True)
