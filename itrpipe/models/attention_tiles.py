"""Cross-attention scores of whole batches, tile by tile within a memory budget.

Captions are sorted by length and cut into groups of similar lengths, so that padding costs little; a tile is such
a group against a block of images. With gradients, a tile keeps only its inputs and is computed a second time in
the backward pass (`torch.utils.checkpoint`), unless the whole matrix is small.

Only the product of regions and words may run in bfloat16; the attention, its norms and the Gram matrices stay in
single precision, since a focal mask is decided by the sign of small differences.

Shapes: B images, R regions, T captions, W words, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from itrpipe.models.cross_attention import CrossAttention, Items, attended_scores, items
from itrpipe.models.vectors import at_least_single

Products = Literal["fp32", "bf16"]

TILE_VALUES = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Region-word products per tile: on a CPU what its caches hold, on a GPU what hides the launching of kernels."""

KEPT_VALUES = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Region-word products of a matrix up to which training keeps everything instead of computing it twice."""

SMALLEST_GROUP = 32
"""Captions that share a group whatever their lengths: fewer would leave vector units idle."""


@dataclass(frozen=True)
class Side:
    """The images or the captions of a tile.

    Attributes:
        items: their Gram matrices and padding.
        rows: [C * S, D] their vectors as the product takes them: item by item on the side attended to, on the
            other the first vectors of all items, then all second ones.
    """

    items: Items
    rows: Tensor


@dataclass(frozen=True)
class Group:
    """Captions of similar length.

    Attributes:
        index: [n] rows of the captions.
        width: length of the longest one.
        shortest: length of the shortest one.
    """

    index: Tensor
    width: int
    shortest: int


def score_matrix(
    regions: Tensor,
    count: Tensor | None,
    words: Tensor,
    lengths: Tensor,
    scoring: CrossAttention,
    products: Products = "fp32",
    tile_values: int | None = None,
    recompute: bool | None = None,
) -> Tensor:
    """Scores of every image with every caption.

    Args:
        regions: [B, R, D] region vectors; the published models scale them to unit length.
        count: [B] real regions per image (1..R), or None where all are real. What lies past it has no influence.
        words: [T, W, D] word vectors, likewise.
        lengths: [T] words per caption (1..W), in any order. What lies past them has no influence.
        scoring: the directions and their options.
        products: precision of the products of regions and words.
        tile_values: region-word products per tile; None for what suits the device.
        recompute: compute tiles again in the backward pass instead of keeping their intermediate values; None to
            do so where these would be many.

    Returns:
        [B, T] scores, in single precision (double for double input).
    """
    device, width = regions.device.type, regions.shape[1]
    tile_values = tile_values or TILE_VALUES[device]
    block = max(1, int(tile_values**0.5) // width)
    if recompute is None:
        recompute = regions.shape[:2].numel() * words.shape[:2].numel() > KEPT_VALUES[device]
    words_attend = scoring.words_to_regions is not None
    with torch.autocast(device, enabled=False):
        blocks = items(at_least_single(regions), count).split(block)
        sides = [_side(each, attended=words_attend, products=products) for each in blocks]
        columns, order = [], []
        for group in groups(lengths, tile_values // (width * min(block, regions.shape[0]))):
            captions = _side(_captions(words, lengths, group), attended=not words_attend, products=products)
            tiles = [_tile(images, captions, scoring, products, recompute) for images in sides]
            columns.append(torch.cat(tiles))  # [B, n]
            order.append(group.index)
        return torch.cat(columns, dim=1).index_select(1, torch.cat(order).argsort())


def score_pairs(
    regions: Tensor,
    count: Tensor | None,
    words: Tensor,
    lengths: Tensor,
    scoring: CrossAttention,
) -> Tensor:
    """Scores [B] of image k with caption k; arguments as in `score_matrix`, with T equal to B."""
    assert regions.shape[0] == words.shape[0]
    with torch.autocast(regions.device.type, enabled=False):
        images, captions = items(at_least_single(regions), count), items(at_least_single(words), lengths)
        affinity = images.vectors @ captions.vectors.transpose(1, 2)  # [B, R, W]
        scores = []
        if scoring.words_to_regions is not None:
            scores.append(attended_scores(affinity[..., None], images, captions, scoring.words_to_regions, True))
        if scoring.regions_to_words is not None:
            flipped = affinity.transpose(1, 2)[..., None]  # [B, W, R, 1]
            scores.append(attended_scores(flipped, captions, images, scoring.regions_to_words, True))
        return sum(scores[1:], scores[0])[:, 0]


def groups(lengths: Tensor, products_per_group: int) -> Iterator[Group]:
    """Cuts captions, longest first, into groups of at most `products_per_group` words, padding included.

    A group holds captions of one length, and shorter ones only to reach `SMALLEST_GROUP` captions.
    """
    ordered, index = lengths.sort(descending=True, stable=True)
    ordered = ordered.cpu()
    rising, start = ordered.flip(0).contiguous(), 0
    while start < len(ordered):
        width = int(ordered[start])
        same = len(ordered) - int(torch.searchsorted(rising, width)) - start
        most = max(1, products_per_group // width)
        end = min(start + min(max(same, SMALLEST_GROUP), most), len(ordered))
        yield Group(index[start:end], width, int(ordered[end - 1]))
        start = end


def _captions(words: Tensor, lengths: Tensor, group: Group) -> Items:
    vectors = at_least_single(words[:, : group.width].index_select(0, group.index))  # [n, W, D]
    return items(vectors, lengths[group.index] if group.shortest < group.width else None)


def _side(part: Items, attended: bool, products: Products) -> Side:
    """The rows are rounded once for all tiles; with gradients each tile rounds, and adds up unrounded."""
    rows = (part.vectors if attended else part.vectors.transpose(0, 1)).flatten(0, 1)
    return Side(part, rows if torch.is_grad_enabled() else _operand(rows, products))


def _tile(images: Side, captions: Side, scoring: CrossAttention, products: Products, recompute: bool) -> Tensor:
    if recompute and torch.is_grad_enabled():
        scores = checkpoint(
            tile_scores, images, captions, scoring, products, use_reentrant=False, preserve_rng_state=False
        )
        assert isinstance(scores, Tensor)
        return scores
    return tile_scores(images, captions, scoring, products)


def tile_scores(images: Side, captions: Side, scoring: CrossAttention, products: Products) -> Tensor:
    """Scores [B, T] of all images with all captions at once."""
    to_regions, to_words = scoring.words_to_regions, scoring.regions_to_words
    if to_regions is None:
        assert to_words is not None
        affinity = affinities(captions, images, products)  # [T, W, R, B]
        return attended_scores(affinity, captions.items, images.items, to_words, False).T
    affinity = affinities(images, captions, products)  # [B, R, W, T]
    scores = attended_scores(affinity, images.items, captions.items, to_regions, False)
    if to_words is None:
        return scores
    flipped = affinity.permute(3, 2, 1, 0).contiguous()  # [T, W, R, B]
    return scores + attended_scores(flipped, captions.items, images.items, to_words, False).T


def affinities(context: Side, queries: Side, products: Products) -> Tensor:
    """Inner products [C, S, Q, N] of all vectors of C items with all of N items, by one matrix product."""
    product = _Product.apply(context.rows, queries.rows, products)
    assert isinstance(product, Tensor)
    gram = context.items.gram  # [C, S, S]
    return product.to(gram.dtype).view(*gram.shape[:2], *queries.items.gram.shape[1::-1])


class _Product(torch.autograd.Function):
    """left [M, D] times right [N, D] transposed; its gradients are products in the same precision."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, products: Products) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.products = products
        return _product(left, right, products)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right = ctx.saved_tensors
        of_left = _product(gradient, right.T, ctx.products)
        of_right = _product(gradient.T, left.T, ctx.products)
        return of_left.to(left.dtype), of_right.to(right.dtype), None


def _product(left: Tensor, right: Tensor, products: Products) -> Tensor:
    left, right = _operand(left, products), _operand(right, products)
    return F.linear(left, right).to_dense() if left.is_mkldnn else left @ right.T


def _operand(matrix: Tensor, products: Products) -> Tensor:
    """The matrix in the precision of its products and the layout of the library that computes them."""
    if products == "bf16":
        return matrix.bfloat16()
    if matrix.device.type == "cpu" and matrix.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        # Single precision as well: on AMD, oneDNN is twice as fast as the library that `@` calls.
        return matrix if matrix.is_mkldnn else matrix.to_mkldnn()
    return matrix
