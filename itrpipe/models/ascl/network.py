"""AsCL: regions and words fused by attention, pair by pair, and a vector of the whole image beside its regions.

Images are projected regions of unit length and one projected vector of the whole image; captions are the projected
states of a BERT, frozen unless it is to be tuned. No encoding of an image knows a caption, and none of a caption an
image. Noise on words (`itrpipe.methods.ascl.method`) is put behind `encode_texts`: `replace(texts, words=noisy)`.

The fusion is attention between regions and words with several heads. Regions look at words and words at regions; each
finds a vector of the other side (Eq. 1):

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
for all pairs of a batch. With the values u_k so made, one for each head and place, a query of weights a finds
x = sum_k a_k u_k. A cosine needs v.x = sum_k a_k v.u_k and x.x = a^T (U U^T) a only, so that x itself, which is the
most work, is never computed; of all queries of a pair the mean x is. Pairs are scored in tiles; with gradients, a tile
keeps its inputs only and is computed a second time in the backward pass (`torch.utils.checkpoint`).

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion", II-A and II-C. The gate, the variant without matrices, and that regions and the whole image's
vector have unit length, and words not, are in the code of the authors' later method ACF-R only.

Shapes: B images, T captions, N pairs, R regions, W words, D width, G width of the vector of a whole image, H heads,
d = D / H; N items of Q queries over C items of S context vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from itrpipe.encoders.encoder import Encoder
from itrpipe.errors import DataError
from itrpipe.models.ascl.declaration import Ascl
from itrpipe.models.base import (
    ENCODERS,
    SCORERS,
    ImageBatch,
    Matcher,
    RegionEncoding,
    Tensors,
    TextBatch,
    WordEncoding,
    at_least_single,
    first_places,
    inner_products,
    mean_of_first,
    tiled_scores,
    unit_vectors,
)
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.network import Encoders, open_text, random_text
from itrpipe.models.scan.network import cosines

TILE = 16
"""Images of a tile, and captions."""

_NO_VECTOR = (
    "AsCL reads a vector of the whole image in addition to its regions, and these features have none; give others by "
    "--features, or do without with --set model.fusion=none"
)


@dataclass(frozen=True)
class AsclImages(RegionEncoding):
    """Images on their own.

    Attributes:
        regions: [B, R, D] of unit length; rows past `count` hold anything.
        count: [B] int64, number of real regions per image, or None where all R are real.
        whole: [B, D] V_g2, or None in a model without fusion.
    """

    whole: Tensor | None = None


class AsclEncoder(Matcher[AsclImages, WordEncoding]):
    """AsCL. The score of a pair is S of Eq. 4, or without fusion the cosine of the mean region and the mean word.

    Args:
        settings: the options of the model.
        text: text encoder.
        image_dim: width D_in of region features.
        global_dim: G.

    Raises:
        DataError: the fusion needs a vector of the whole image, and there is none.
    """

    by_rows = ENCODERS | SCORERS

    def __init__(self, settings: Ascl, text: Encoder, image_dim: int, global_dim: int) -> None:
        super().__init__()
        width = settings.embed_dim
        self.settings = settings
        self.text = text
        self.project_regions = nn.Linear(image_dim, width)
        # Words are states of the network; a layer behind its pooling may give vectors of another width.
        self.project_words = nn.Linear(text.network.config.get_text_config().hidden_size, width)
        self.project_whole = None
        self.fusion = None
        if settings.fusion != "none":
            if not global_dim:
                raise DataError(_NO_VECTOR)
            # The paper projects G to D and then by X_g: two linear layers with nothing between, which are one.
            self.project_whole = nn.Linear(global_dim, width)
            self.fusion = CrossModalFusion(width, settings.heads, settings.fusion, settings.u1)
        if settings.text != RANDOM and not settings.tune_text:
            self.freeze("text")

    def encode_images(self, images: ImageBatch) -> AsclImages:
        """Project regions and the whole image; images may differ in their number of regions.

        Raises:
            DataError: the features have no vector of the whole image.
        """
        features = images.regions.to(self.project_regions.weight.dtype)
        regions = unit_vectors(self.project_regions(features))
        if self.project_whole is None:
            return AsclImages(regions, images.count)
        if images.global_ is None:
            raise DataError(_NO_VECTOR)
        whole = self.project_whole(unit_vectors(images.global_))
        return AsclImages(regions, images.count, at_least_single(whole))

    def encode_texts(self, texts: TextBatch) -> WordEncoding:
        """Project words to [T, W, D], not of unit length.

        Without `text_ends` the first and last token of captions are left out; a caption of nothing else keeps its last.
        """
        lengths = texts.lengths
        states = self.text.read(texts.tokens, lengths).last_hidden_state
        states = states[:, : texts.tokens.shape[1]]
        padding = ~first_places(texts.tokens, lengths)
        states = states.masked_fill(padding[..., None], 0)
        words = at_least_single(self.project_words(states))
        if self.settings.text_ends:
            return WordEncoding(words, lengths)
        return WordEncoding(words[:, 1:], (lengths - 2).clamp(min=1))

    def score_matrix(self, images: AsclImages, texts: WordEncoding) -> Tensor:
        """Score [B, T] every image with every caption, in tiles."""
        if self.fusion is None:
            return inner_products(self.embed_images(images), self.embed_texts(texts))
        with torch.autocast(images.regions.device.type, enabled=False):
            return self.fusion.score_matrix(images, texts)

    def score_pairs(self, images: AsclImages, texts: WordEncoding) -> Tensor:
        """Score [B] image k with caption k; B and T are equal."""
        if self.fusion is None:
            return (self.embed_images(images) * self.embed_texts(texts)).sum(dim=-1)
        with torch.autocast(images.regions.device.type, enabled=False):
            return self.fusion.score_pairs(images, texts)

    def embed_images(self, images: AsclImages) -> Tensor:
        """Return mean regions [B, D] of unit length for analyses: the vectors of a pair depend on both sides."""
        return unit_vectors(mean_of_first(images.regions, images.count))

    def embed_texts(self, texts: WordEncoding) -> Tensor:
        """Return mean words [T, D] of unit length."""
        return unit_vectors(mean_of_first(texts.words, texts.lengths))


@dataclass(frozen=True)
class FusionSide(Tensors):
    """Images or captions as those that look and those that are looked at.

    Attributes:
        vectors: [..., N, S, D], zero where they are not real.
        real: bool [..., N, S].
        queries: [..., N, S, H, d] q, what they ask the other side.
        compared: [..., N, S, H, d] whose products with the other side's keys are those of `vectors` with its values.
        keys: [..., N, S, H, d] k, what the other side finds them by.
        values: [..., N, H S, D] u, what the other side finds.
        gram: [..., N, H S, H S] products of the values.
        whole: [..., N, D] V_g2 of images, None of captions.
    """

    vectors: Tensor
    real: Tensor
    queries: Tensor
    compared: Tensor
    keys: Tensor
    values: Tensor
    gram: Tensor
    whole: Tensor | None = None


class CrossModalFusion(nn.Module):
    """Scores of image-caption pairs.

    Args:
        width: D.
        heads: H, a divisor of D.
        variant: `paper`, or `released`: heads are slices of the vectors themselves, without matrices, and the products
            have fixed factors.
        u1: share of the local score.
    """

    def __init__(self, width: int, heads: int, variant: Literal["paper", "released"], u1: float) -> None:
        super().__init__()
        self.u1 = u1
        if variant == "paper":
            self.to_words = HeadedAttention(width, heads)
            self.to_regions = HeadedAttention(width, heads)
        else:
            self.to_words = HeadedAttention(width, heads, fixed_scale=4.0)
            self.to_regions = HeadedAttention(width, heads, fixed_scale=9.0)
        self.global_text = nn.Linear(width, width)
        self.global_regions = nn.Linear(width, width)
        self.gate = nn.Linear(2 * width, width)

    def score_pairs(self, images: AsclImages, texts: WordEncoding) -> Tensor:
        """Score [N] image k with caption k."""
        image_side = self._side(images.regions, images.count, images.whole)
        caption_side = self._side(texts.words, texts.lengths)
        return self._scores(image_side[:, None], caption_side[:, None])[:, 0, 0]

    def score_matrix(self, images: AsclImages, texts: WordEncoding) -> Tensor:
        """Score [B, T] every image with every caption."""
        blocks = []
        for start in range(0, len(images.regions), TILE):
            block = images[start : start + TILE]
            blocks.append(self._side(block.regions, block.count, block.whole))

        def caption_groups() -> Iterator[tuple[Tensor, FusionSide]]:
            order = texts.lengths.argsort(descending=True, stable=True)  # captions of a tile have about one length
            for rows in order.split(TILE):
                lengths = texts.lengths[rows]
                words = texts.words[rows, : int(lengths.max())]
                yield rows, self._side(words, lengths)

        return tiled_scores(blocks, caption_groups(), self._scores, recompute=True)

    def _side(self, vectors: Tensor, count: Tensor | None, whole: Tensor | None = None) -> FusionSide:
        """Prepare images, which have a whole, or captions, which have none."""
        if whole is None:
            asking, answering = self.to_regions, self.to_words
        else:
            asking, answering = self.to_words, self.to_regions
        real = first_places(vectors, count)
        vectors = at_least_single(vectors).masked_fill(~real[..., None], 0.0)
        by_head = (asking.heads, -1)
        queries = (vectors @ asking.query).unflatten(-1, by_head)
        compared = (vectors @ asking.output.T).unflatten(-1, by_head)
        keys = (vectors @ answering.key).unflatten(-1, by_head)
        output = answering.output.unflatten(0, by_head)
        values = torch.einsum("nshd,hde->nhse", keys, output).flatten(1, 2)
        return FusionSide(vectors, real, queries, compared, keys, values, values @ values.mT, whole)

    def _scores(self, images: FusionSide, captions: FusionSide) -> Tensor:
        """Compute S [..., B, T] (Eq. 4) of every image with every caption."""
        region_cosines, words = attend(images, captions, self.to_words.scale)  # [..., T, B], [..., T, B, D]
        word_cosines, regions = attend(captions, images, self.to_regions.scale)  # [..., B, T], [..., B, T, D]
        local = (region_cosines.mT + word_cosines) / 2

        assert images.whole is not None
        whole = images.whole[..., None, :].expand_as(regions)
        seen = self.global_regions(regions)
        gate = torch.sigmoid(self.gate(torch.cat([whole, seen], dim=-1)))
        text = self.global_text(words).transpose(-3, -2)
        image = seen + gate * (whole - seen)
        squared = image.square().sum(dim=-1) * text.square().sum(dim=-1)
        inner = (image * text).sum(dim=-1)
        overall = cosines(inner, squared)
        return self.u1 * local + (1 - self.u1) * overall


class HeadedAttention(nn.Module):
    """Queries of one side look at the vectors of the other (Eq. 1).

    Args:
        width: D.
        heads: H.
        fixed_scale: factor of the products that replaces 1 / sqrt(d) in the released code, which has no matrices; None
            for the paper's matrices.

    Attributes:
        query, key, output: [D, D] Z^X, Z^Y and Z^O, the heads side by side, applied from the right; identities in the
            variant without.
        heads, scale: H, and the factor of the products.
    """

    query: Tensor
    key: Tensor
    output: Tensor

    def __init__(self, width: int, heads: int, fixed_scale: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.scale = fixed_scale or (width // heads) ** -0.5
        for name in ("query", "key", "output"):
            if fixed_scale is None:
                matrix = nn.init.xavier_uniform_(torch.empty(width, width))
                self.register_parameter(name, nn.Parameter(matrix))
            else:
                self.register_buffer(name, torch.eye(width), persistent=False)


def attend(looking: FusionSide, context: FusionSide, scale: float) -> tuple[Tensor, Tensor]:
    """Look up what every item finds in every one of the other side (Eq. 1).

    Returns:
        Mean cosines [..., C, N] of vectors with what they find, and the means [..., C, N, D] of what they find.
    """
    products = scale * torch.einsum("...nqhd,...cshd->...cnqhs", looking.queries, context.keys)
    padding = ~context.real[..., :, None, None, None, :]
    products = products.masked_fill(padding, float("-inf"))
    weights = products.softmax(dim=-1).flatten(-2)  # [..., C, N, Q, H S]
    compared = torch.einsum("...nqhd,...cshd->...cnqhs", looking.compared, context.keys)
    inner = (weights * compared.flatten(-2)).sum(dim=-1)  # [..., C, N, Q]
    mixed = torch.einsum("...cnqk,...ckl->...cnql", weights, context.gram)
    context_squared = (weights * mixed).sum(dim=-1)
    query_squared = looking.vectors.square().sum(dim=-1)  # [..., N, Q]
    all_cosines = cosines(inner, context_squared * query_squared[..., None, :, :])
    share = looking.real / looking.real.sum(dim=-1, keepdim=True)
    share = share[..., None, :, :]  # [..., 1, N, Q]
    mean_cosines = (all_cosines * share).sum(dim=-1)
    mean_weights = (weights * share[..., None]).sum(dim=-2)  # [..., C, N, H S]
    return mean_cosines, mean_weights @ context.values


def open_encoders(settings: Ascl, global_dim: int, boxes: bool = False, trained: Path | None = None) -> Encoders:
    """Open the text encoder, unless it is a random one, which waits for the vocabulary.

    Args:
        settings: the options of the model.
        global_dim: G; 0 for features without such a vector.
        boxes: whether regions have boxes; not read.
        trained: folder of a trained model, whose text encoder is opened.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or weights are of another network.
        UsageError: it is no text encoder.
    """
    return replace(open_text(settings, "mean", trained), global_dim=global_dim)


def build(settings: Ascl, image_dim: int, vocabulary_size: int, encoders: Encoders) -> AsclEncoder:
    """Make an AsCL model.

    Args:
        settings: the options of the model.
        image_dim: width of region features.
        vocabulary_size: number of token ids, of a random text encoder.
        encoders: what was opened already.

    Raises:
        DataError: the fusion needs a vector of the whole image, and there is none.
    """
    text = encoders.text
    if text is None:
        text = random_text(
            vocabulary_size,
            settings.text_width,
            settings.text_heads,
            settings.text_layers,
            settings.max_words,
            "mean",
        )
    return AsclEncoder(settings, text, image_dim, encoders.global_dim)
