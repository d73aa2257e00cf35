"""SCAN: image regions and words in one space, matched by attention in one direction; BFAN has the same in both.

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

Whole batches are scored in tiles within a memory budget. Captions are sorted by length and cut into groups of similar
lengths, so that padding costs little; a tile is such a group against a block of images. With gradients, a tile keeps
only its inputs and is computed a second time in the backward pass (`torch.utils.checkpoint`), unless the whole matrix
is small.

Only the product of regions and words may run in bfloat16; the attention, its norms and the Gram matrices stay in
single precision, since a focal mask is decided by the sign of small differences.

Source: Lee et al. (SCAN), "Stacked Cross Attention for Image-Text Matching", ECCV 2018; Liu et al. (BFAN), "Focus
Your Attention: A Bidirectional Focal Attention Network for Image-Text Matching", ACM MM 2019. Where SCAN's paper clips
by ReLU, the published code has a leaky ReLU of slope 0.1; the code is followed.

Shapes: B images, R regions, T captions, W words, D embedding width.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from itrpipe.models.base import (
    ENCODERS,
    SCORERS,
    ImageBatch,
    Matcher,
    RegionEncoding,
    TextBatch,
    WordEncoding,
    at_least_single,
    first_places,
    placed_regions,
    region_width,
    tiled_scores,
    unit_vectors,
)
from itrpipe.models.declaration import PlacedRegionBackbone
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.vsepp.network import GruTextEncoder, image_projection, pack_captions

NORM_EPSILON = 1e-8
"""Added to the norms that divide A; a cosine whose two lengths multiply to less is zero."""

TILE_VALUES = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Region-word products per tile: on a CPU what its caches hold, on a GPU what hides the launching of kernels."""

KEPT_VALUES = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Region-word products of a matrix up to which training keeps everything instead of computing it twice."""

SMALLEST_GROUP = 32
"""Captions that share a group whatever their lengths: fewer would leave vector units idle."""

_WITHIN_ONE = ("clipped_l2norm", "clipped_l1norm", "softmax")
_MILD = 30.0
"""Values of these normalisations lie between -0.1 and 1. With an inverse temperature up to this their exponentials, and
the squared length of a sum of these, stay far from the ends of single precision without a peak taken off."""


@dataclass(frozen=True)
class Attention:
    """Options of one direction: how a side attends to the other, and how relevances become one score.

    Attributes:
        lambda_softmax: inverse temperature of the attention.
        raw_feature_norm: normalisation of A over the queries before the softmax, see `Scan`.
        focal: which context vectors are kept, `equal` or `prob` as of `Bfan`, or None for all.
        aggregation: how the relevances of the queries are put together, see `Scan`.
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


class CrossAttentionModel(Matcher[RegionEncoding, WordEncoding]):
    """SCAN and BFAN: a linear layer per region, a bidirectional GRU over words, every region compared with every word.

    Under bfloat16 autocast the products of regions and words of `score_matrix` run in bfloat16; nothing else of the
    scores does.

    Args:
        settings: the widths.
        scoring: the directions of attention and their options.
        image_dim: width D_in of the region features.
        vocabulary_size: number of token ids.
    """

    by_rows = ENCODERS | SCORERS

    def __init__(
        self,
        settings: PlacedRegionBackbone,
        scoring: CrossAttention,
        image_dim: int,
        vocabulary_size: int,
    ) -> None:
        super().__init__()
        self.scoring = scoring
        self.boxes = settings.boxes
        self.fc = image_projection(region_width(image_dim, settings.boxes), settings.embed_dim)
        self.text = BiGruWordEncoder(vocabulary_size, settings.word_dim, settings.embed_dim)

    def encode_images(self, images: ImageBatch) -> RegionEncoding:
        """Encode regions as vectors [B, R, D] of unit length; images may differ in their number of regions."""
        features = placed_regions(images, self.boxes)
        regions = self.fc(features.to(self.fc.weight.dtype))  # [B, R, D]
        return RegionEncoding(unit_vectors(regions), images.count)

    def encode_texts(self, texts: TextBatch) -> WordEncoding:
        """Encode words as vectors [T, W, D] of unit length."""
        return WordEncoding(self.text(texts), texts.lengths)

    def score_matrix(self, images: RegionEncoding, texts: WordEncoding) -> Tensor:
        """Score [B, T] every image with every caption, in tiles, in single precision (double for double input)."""
        device = images.regions.device.type
        rounded = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
        num_images, width = images.regions.shape[:2]
        tile_size = TILE_VALUES[device]
        block_size = max(1, int(tile_size**0.5) // width)
        group_size = tile_size // (width * min(block_size, num_images))
        products = images.regions.shape[:2].numel() * texts.words.shape[:2].numel()
        regions_are_context = self.scoring.words_to_regions is not None

        def caption_groups() -> Iterator[tuple[Tensor, Side]]:
            for rows, longest, shortest in groups(texts.lengths, group_size):
                words = texts.words[:, :longest].index_select(0, rows)
                counts = None
                if shortest < longest:
                    counts = texts.lengths[rows]
                yield rows, make_side(words, counts, is_context=not regions_are_context)

        with torch.autocast(device, enabled=False):
            blocks = []
            for start in range(0, num_images, block_size):
                block = images[start : start + block_size]
                blocks.append(make_side(block.regions, block.count, is_context=regions_are_context))
            score_tile = partial(tile_scores, scoring=self.scoring, rounded=rounded)
            return tiled_scores(blocks, caption_groups(), score_tile, recompute=products > KEPT_VALUES[device])

    def score_pairs(self, images: RegionEncoding, texts: WordEncoding) -> Tensor:
        """Score [B] image k with caption k; B and T are equal."""
        with torch.autocast(images.regions.device.type, enabled=False):
            regions = make_side(images.regions, images.count)
            words = make_side(texts.words, texts.lengths)
            region_vectors = regions.rows.unflatten(0, regions.gram.shape[:2])
            word_vectors = words.rows.unflatten(0, words.gram.shape[:2])
            affinity = region_vectors @ word_vectors.mT  # [B, R, W]
            to_regions = self.scoring.words_to_regions
            to_words = self.scoring.regions_to_words
            scores = []
            if to_regions:
                products = affinity[..., None]
                scores.append(attended_scores(products, regions, words, to_regions, paired=True))
            if to_words:
                products = affinity.mT[..., None]
                scores.append(attended_scores(products, words, regions, to_words, paired=True))
            return torch.stack(scores).sum(dim=0)[:, 0]


class BiGruWordEncoder(GruTextEncoder):
    """Words to unit vectors in their context, the two directions of the GRU averaged.

    Captions are packed, so that the backward direction starts at the last real token of each.

    Source: SCAN, its text representation; initialisation as in its published code.
    """

    bidirectional = True

    def forward(self, texts: TextBatch) -> Tensor:
        """Encode words [T, W, D] in the order of the batch: unit length up to the caption's length, then zero."""
        packed, _ = self.rnn(pack_captions(self.embed(texts.tokens), texts.host_lengths))
        longest_first = PackedSequence(packed.data, packed.batch_sizes)
        states, _ = pad_packed_sequence(longest_first, batch_first=True, total_length=texts.tokens.shape[1])
        states = at_least_single(states.index_select(0, packed.unsorted_indices))
        forward, backward = states.chunk(2, dim=-1)  # [T, W, D] each
        return unit_vectors((forward + backward) / 2)


class Side(NamedTuple):
    """The images or the captions of a tile: C items with S vectors each.

    Attributes:
        rows: [C * S, D] their vectors, zero at padding, as the product takes them: of a context item by item, of
            queries the first vectors of all items, then all second ones.
        gram: [C, S, S] inner products among the vectors of each item.
        counts: [C] number of real vectors per item, in the precision of `gram`.
        padding: [C, S] bool, True at padding; or None where there is none.
    """

    rows: Tensor
    gram: Tensor
    counts: Tensor
    padding: Tensor | None


def make_side(vectors: Tensor, counts: Tensor | None, is_context: bool = True) -> Side:
    """Prepare items [C, S, D] of which the first `counts` [C] vectors are real (None: all) for `attended_scores`."""
    vectors = at_least_single(vectors)
    padding = None
    if counts is None:
        counts = vectors.new_full((vectors.shape[0],), vectors.shape[1])
    else:
        padding = ~first_places(vectors, counts)
        vectors = vectors.masked_fill(padding[..., None], 0.0)
    gram = vectors @ vectors.transpose(1, 2)
    if not is_context:
        vectors = vectors.transpose(0, 1)
    return Side(vectors.flatten(0, 1), gram, counts.to(gram.dtype), padding)


def groups(lengths: Tensor, products_per_group: int) -> Iterator[tuple[Tensor, int, int]]:
    """Cut captions, longest first, into groups of at most `products_per_group` words, padding included.

    A group holds captions of one length, and shorter ones only to reach `SMALLEST_GROUP` captions.

    Yields:
        Rows [n] of the captions of a group, length of the longest and of the shortest of them.
    """
    ordered, rows = lengths.sort(descending=True, stable=True)
    ordered = ordered.cpu()
    start = 0
    while start < len(ordered):
        longest = int(ordered[start])
        equally_long = int((ordered[start:] == longest).sum())
        most = max(1, products_per_group // longest)
        size = min(max(equally_long, SMALLEST_GROUP), most)
        stop = min(start + size, len(ordered))
        yield rows[start:stop], longest, int(ordered[stop - 1])
        start = stop


def tile_scores(images: Side, captions: Side, scoring: CrossAttention, rounded: bool) -> Tensor:
    """Score [B, T] all images with all captions at once; `rounded`: with products in bfloat16."""
    to_regions = scoring.words_to_regions
    to_words = scoring.regions_to_words
    if to_regions is None:
        assert to_words is not None
        affinity = _affinity(captions, images, rounded)  # [T, W, R, B]
        return attended_scores(affinity, captions, images, to_words).T
    affinity = _affinity(images, captions, rounded)  # [B, R, W, T]
    scores = attended_scores(affinity, images, captions, to_regions)
    if to_words is None:
        return scores
    flipped = affinity.permute(3, 2, 1, 0).contiguous()  # [T, W, R, B]
    return scores + attended_scores(flipped, captions, images, to_words).T


def attended_scores(
    affinity: Tensor,
    context: Side,
    queries: Side,
    attention: Attention,
    paired: bool = False,
) -> Tensor:
    """Score items in one direction.

    Args:
        affinity: [C, S, Q, N] inner products A of context and query vectors in any precision, zero at padding.
        context: the C items attended to.
        queries: the N items that attend; for pairs C of them.
        attention: the options.
        paired: query item c meets context item c only, and N is 1.

    Returns:
        [C, N] scores.
    """
    padding = None
    if queries.padding is not None:
        padding = _as_queries(queries.padding, paired)  # [1 or C, Q, N]
    affinity = affinity.to(context.gram.dtype)
    weights = _attention_weights(affinity, context, padding, attention)  # [C, S, Q, N]
    mixed = torch.bmm(context.gram, weights.flatten(2)).view_as(weights)
    squared = _multiply(mixed, weights).sum(dim=1)  # [C, Q, N], |w|^2
    inner = _multiply(weights, affinity).sum(dim=1)  # [C, Q, N], q . w
    query_squared = queries.gram.diagonal(dim1=1, dim2=2)
    squared = _as_queries(query_squared, paired) * squared  # |q|^2 |w|^2
    relevance = cosines(inner, squared)

    if attention.aggregation in ("LogSumExp", "Max"):
        if padding is not None:
            relevance = relevance.masked_fill(padding, -math.inf)
        if attention.aggregation == "Max":
            return relevance.amax(dim=1)
        # A sum inside, not a mean: it grows with the number of queries and may exceed one.
        return (attention.lambda_lse * relevance).logsumexp(dim=1) / attention.lambda_lse
    if padding is not None:
        relevance = relevance.masked_fill(padding, 0.0)
    total = relevance.sum(dim=1)
    if attention.aggregation == "Sum":
        return total
    counts = queries.counts
    if paired:
        counts = counts[:, None]
    return total / counts


def cosines(inner: Tensor, squared: Tensor) -> Tensor:
    """Compute cosines from inner products and the products of the squared lengths.

    A vector of no length has cosine zero: padding, a word that noise has cut off, or one that rounding leaves below
    zero. Published is a division by max(|q| |w|, epsilon), which multiplies its gradient by 1/epsilon; here that is
    passed on unscaled.
    """
    return inner * squared.masked_fill(squared <= NORM_EPSILON**2, 1.0).rsqrt()


def _multiply(values: Tensor, factor: Tensor | float) -> Tensor:
    """Return values * factor; without gradients in the memory of `values`, which nothing else reads any more."""
    if torch.is_grad_enabled():
        return values * factor
    return values.mul_(factor)


def _as_queries(per_vector: Tensor, paired: bool) -> Tensor:
    """Return [N, Q] as [1, Q, N], or for pairs [C, Q] as [C, Q, 1]."""
    if paired:
        return per_vector[:, :, None]
    return per_vector.T[None]


def _attention_weights(affinity: Tensor, context: Side, query_padding: Tensor | None, attention: Attention) -> Tensor:
    """Return the weights [C, S, Q, N] of context vectors; zero at padding and where the focal mask leaves them out.

    They are not scaled to a sum of one, before or behind a focal mask, since a cosine does not depend on the length of
    w. Before a focal mask, and where the exponentials could leave single precision, the greatest of a query is one.
    """
    # exp(lambda x) = 2^(rate x): on a CPU, powers of two are four times as fast as torch's softmax or exponential.
    rate = attention.lambda_softmax / math.log(2)
    exponents = _normalise(affinity, query_padding, rate, attention.raw_feature_norm)
    if context.padding is not None:
        never = torch.zeros_like(context.padding, dtype=affinity.dtype).masked_fill(context.padding, -math.inf)
        exponents = exponents + never[:, :, None, None]  # many times faster than a masked fill of all [C, S, Q, N]

    with_gradients = torch.is_grad_enabled()
    is_mild = attention.raw_feature_norm in _WITHIN_ONE and attention.lambda_softmax <= _MILD
    if attention.focal is not None or not is_mild:
        peak = exponents.detach().amax(dim=1, keepdim=True)
        exponents = exponents - peak if with_gradients else exponents.sub_(peak)
    weights = exponents.exp2() if with_gradients else exponents.exp2_()
    if attention.focal is None:
        return weights

    # A focal score F is linear in the weight that it judges, so that its sign is a comparison with a threshold per row;
    # both scale with the weights p, whatever their sum. A row that would keep nothing, such as a flat one or a context
    # of a single word, keeps everything: the published code divides zero by zero there. The greatest weight being one,
    # all of a flat row are.
    judged = weights.detach()
    if attention.focal == "equal":  # F_i = sum_j (p_i - p_j) = s p_i - sum_j p_j: the mean of s context vectors
        threshold = judged.sum(dim=1, keepdim=True) / context.counts[:, None, None, None]  # [C, 1, Q, N]
    else:  # F_i = sum_j (p_i - p_j) sqrt(p_j): the mean of p weighted by sqrt(p)
        roots = judged.sqrt()
        threshold = (judged * roots).sum(dim=1, keepdim=True) / roots.sum(dim=1, keepdim=True)
    factor = torch.where(threshold < 1.0, threshold, 0.5).reciprocal()
    return F.threshold(_multiply(weights, factor), 1.0, 0.0, inplace=not with_gradients)


def _normalise(affinity: Tensor, padding: Tensor | None, rate: float, norm: str) -> Tensor:
    """Normalise A [C, S, Q, N] over the queries Q, and multiply it by a rate.

    Args:
        affinity: A.
        padding: bool [1 or C, Q, N], where queries are padding; None where none is.
        rate: the factor.
        norm: the option `raw_feature_norm`.
    """
    if norm == "softmax":
        if padding is not None:
            affinity = affinity.masked_fill(padding[:, None], -math.inf)
        return affinity.softmax(dim=2) * rate

    is_clipped = norm.startswith("clipped")
    if is_clipped:
        affinity = F.leaky_relu(affinity, 0.1)  # the published clipping; the paper has a plain ReLU
    factor = rate
    if norm != "clipped" and norm != "no_norm":
        is_squared = norm.endswith("l2norm")
        sizes = affinity.square() if is_squared else affinity.abs()
        length = sizes.sum(dim=2, keepdim=True)  # [C, S, 1, N]
        # The root of an all-zero column, as padding has, must neither make its gradient NaN nor blow it up.
        length = length.masked_fill(length == 0, 1.0)
        if is_squared:
            length = length.sqrt()
        factor = rate * (length + NORM_EPSILON).reciprocal()
    if is_clipped:
        return _multiply(affinity, factor)
    return affinity * factor


def _affinity(context: Side, queries: Side, rounded: bool) -> Tensor:
    """Return the inner products [C, S, Q, N] of all vectors of C items with all of N items, by one matrix product."""
    product = _Product.apply(context.rows, queries.rows, rounded)
    assert isinstance(product, Tensor)
    items, width = queries.gram.shape[:2]
    return product.view(*context.gram.shape[:2], width, items)


class _Product(torch.autograd.Function):
    """left [M, D] times right [N, D] transposed; its gradients are products in the same precision."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, rounded: bool) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.rounded = rounded
        return _product(left, right, rounded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        left, right = ctx.saved_tensors
        left_gradient = _product(gradient, right.T, ctx.rounded)
        right_gradient = _product(gradient.T, left.T, ctx.rounded)
        return left_gradient.to(left.dtype), right_gradient.to(right.dtype), None


def _product(left: Tensor, right: Tensor, rounded: bool) -> Tensor:
    if rounded:
        return left.bfloat16() @ right.bfloat16().T
    if left.device.type == "cpu" and left.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        # On AMD, oneDNN is twice as fast as the library that `@` calls.
        return F.linear(left.to_mkldnn(), right.to_mkldnn()).to_dense()
    return left @ right.T


def build(settings: Scan, image_dim: int, vocabulary_size: int) -> CrossAttentionModel:
    """Make a SCAN model with fresh weights."""
    attention = Attention(
        settings.lambda_softmax,
        settings.raw_feature_norm,
        aggregation=settings.aggregation,
        lambda_lse=settings.lambda_lse,
    )
    if settings.cross_attention == "t2i":
        scoring = CrossAttention(words_to_regions=attention)
    else:
        scoring = CrossAttention(regions_to_words=attention)
    return CrossAttentionModel(settings, scoring, image_dim, vocabulary_size)
