"""SSAMT: a caption with its phrases and an image with its regions in one Transformer, after each has been in its own.

Two *intra* encoders look at captions and at images alone and give a vector of each; their cosine ranks at the cost of
a dual encoder. The *inter* encoder looks at an image-caption pair and is compared in four ways (see `Relevance`). It is
trained after the intra encoders, which are frozen then, together with the embeddings that both read.

The sequence of an image-caption pair is

    [ C^T | P phrase nodes | W words | C^I | K regions ]

and the intra encoders read its two halves. Three rules of the paper close edges; everything else stays open:

    1. regions are not visible to C^T
    2. phrases and words are not visible to C^I
    3. a phrase is not visible to words outside it, nor they to it

Rule 3 is printed for one direction; the purpose it is given, a node that stands for the words of its phrase, needs the
other one too. `strict` also closes C^T with C^I, through which C^T would read a summary of the image, and one phrase
with another. `none` closes nothing but padding.

Source: Fan et al., "Constructing Phrase-level Semantic Labels to Form Multi-Grained Supervision for Image-Text
Retrieval" (SSAMT), ICMR 2022. No code was released; what the paper leaves open is noted where it is decided.

Shapes: N pairs, B images, T captions, P phrases, W words, K regions, d model width, n = 1 + P + W, m = 1 + K.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from itrpipe.errors import DataError
from itrpipe.models.base import (
    ENCODERS,
    SCORERS,
    ImageBatch,
    Matcher,
    Tensors,
    TextBatch,
    first_places,
    inner_products,
    tiled_scores,
    unit_vectors,
)
from itrpipe.models.ssamt.declaration import Ssamt
from itrpipe.models.uniter.network import EncoderLayers, initialise

_TILE_SIZES = {"cpu": 1 << 20, "cuda": 1 << 27}
"""Elements of the states of a tile of pairs that go through the inter encoder together; on CPUs they fit the cache."""


@dataclass(frozen=True)
class SsamtImages(Tensors):
    """Images after their own encoder.

    Attributes:
        pooled: [B, d] a^I, unit length.
        regions: [B, K, d] embedded regions, which the inter encoder reads.
        real: bool [B, m], the first position being C^I.
    """

    pooled: Tensor
    regions: Tensor
    real: Tensor


@dataclass(frozen=True)
class SsamtTexts(Tensors):
    """Captions after their own encoder.

    Attributes:
        pooled: [T, d] a^T, unit length.
        words: [T, W, d] embedded words, which the inter encoder reads.
        kinds: [T, P] int64 kind of each phrase.
        phrase_tokens: bool [T, P, W].
        real: bool [T, n], the first position being C^T; of phrases and of words the real ones come first.
    """

    pooled: Tensor
    words: Tensor
    kinds: Tensor
    phrase_tokens: Tensor
    real: Tensor

    def without_common_padding(self) -> SsamtTexts:
        """Return the captions without positions that are padding in all of them."""
        node, real_phrases, real_words = self.real.split([1, *self.phrase_tokens.shape[1:]], dim=1)
        num_phrases = int(real_phrases.sum(dim=1).max())
        num_words = int(real_words.sum(dim=1).max())
        return SsamtTexts(
            pooled=self.pooled,
            words=self.words[:, :num_words],
            kinds=self.kinds[:, :num_phrases],
            phrase_tokens=self.phrase_tokens[:, :num_phrases, :num_words],
            real=torch.cat([node, real_phrases[:, :num_phrases], real_words[:, :num_words]], dim=1),
        )


@dataclass(frozen=True)
class Relevance:
    """Cosines of N image-caption pairs after the inter encoder.

    Attributes:
        whole: [N] image and caption, cos(h^I, h^T).
        fragments: [N, P + W] image and each phrase and word, cos(h^I, H^T_k); 0 where there is none.
        fragments_real: bool [N, P + W].
        regions: [N] caption and the mean region, mean_k cos(h^T, H^I_k).
    """

    whole: Tensor
    fragments: Tensor
    fragments_real: Tensor
    regions: Tensor

    @property
    def text_fragments(self) -> Tensor:
        """[N] image and the mean phrase or word, mean_k cos(h^I, H^T_k)."""
        counts = self.fragments_real.sum(dim=1).clamp(min=1)
        return self.fragments.sum(dim=1) / counts


class SsamtEncoder(Matcher[SsamtImages, SsamtTexts]):
    """SSAMT.

    In phase `intra` the score of a pair is cos(a^I, a^T). In phase `inter` it is, with h and H of the pair's pass,

        cos(a^I, a^T) + mu1 cos(h^I, h^T) + mu2 mean_k cos(h^I, H^T_k) + mu2 mean_k cos(h^T, H^I_k)

    and all that phase `intra` has trained is frozen and stays in evaluation mode.

    Args:
        settings: the options of the model.
        image_dim: width of the region features.
        vocabulary_size: number of token ids.
    """

    by_rows = ENCODERS | SCORERS | {"relevance": (0, 1)}

    def __init__(self, settings: Ssamt, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.settings = settings
        width = settings.embed_dim
        self.embedding = InputEmbedding(settings, image_dim, vocabulary_size)
        self.intra_nodes = Nodes(width)
        self.inter_nodes = Nodes(width)
        inner = settings.feed_forward_dim
        make_layers = partial(EncoderLayers, settings.layers, width, settings.heads, inner, settings.dropout)
        self.text_layers = make_layers()
        self.image_layers = make_layers()
        self.inter_layers = make_layers()
        initialise(self)
        if settings.phase == "inter":
            for part in ("embedding", "intra_nodes", "text_layers", "image_layers"):
                self.freeze(part)

    def encode_images(self, images: ImageBatch) -> SsamtImages:
        """Send images through their own encoder."""
        regions = self.embedding.regions(images.regions.float())  # [B, K, d]
        real = _node_and_real(regions, images.count)
        allowed = _close_padding(torch.ones_like(real[:, None]), real)
        states = self.image_layers(self.intra_nodes.before_regions(regions), allowed[:, None])
        return SsamtImages(unit_vectors(states[:, 0]), regions, real)

    def encode_texts(self, texts: TextBatch) -> SsamtTexts:
        """Send captions through their own encoder.

        Raises:
            DataError: the batch has no phrases.
        """
        if texts.phrases is None:
            raise DataError("SSAMT reads phrases, and this batch has none; run `itrpipe parse` for its dataset")
        phrase_tokens = texts.phrases.tokens
        kinds = texts.phrases.kinds
        words = self.embedding.words(texts.tokens)  # [T, W, d]
        node_and_words = _node_and_real(words, texts.lengths)
        real = torch.cat([node_and_words[:, :1], kinds >= 0, node_and_words[:, 1:]], dim=1)
        kinds = kinds.clamp(min=0)
        allowed = text_mask(phrase_tokens, real, self.settings.mask)
        states = self.text_layers(self.intra_nodes.before_words(words, kinds), allowed[:, None])
        return SsamtTexts(unit_vectors(states[:, 0]), words, kinds, phrase_tokens, real)

    def score_matrix(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """Score [B, T] all pairs, in tiles; captions of like length share a tile."""
        scores = self.intra_matrix(images, texts).float()
        if self.settings.phase == "intra":
            return scores

        device = images.real.device
        num_images = len(images.pooled)
        positions = images.real.shape[1] + texts.real.shape[1]
        pairs = max(1, _TILE_SIZES[device.type] // (positions * self.settings.embed_dim))
        height = max(1, min(num_images, int(pairs**0.5)))
        blocks = [images[rows] for rows in torch.arange(num_images, device=device).split(height)]
        order = texts.real.sum(dim=1).argsort(stable=True)
        groups = order.split(pairs // height)
        captions = ((rows, texts[rows].without_common_padding()) for rows in groups)

        def score_tile(images: SsamtImages, texts: SsamtTexts) -> Tensor:
            b = len(images.pooled)
            t = len(texts.pooled)
            rows = torch.arange(b * t, device=device)
            relevance = self._relevance_at(images, texts, rows // t, rows % t)
            return self._weighted(relevance).view(b, t)

        return scores + tiled_scores(blocks, captions, score_tile)

    def score_pairs(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """Score [N] image k with caption k."""
        scores = (images.pooled * texts.pooled).sum(dim=-1)
        if self.settings.phase == "intra":
            return scores
        return scores + self._weighted(self.relevance(images, texts))

    def intra_matrix(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """Compute cos(a^I, a^T) [B, T] of every image with every caption."""
        return inner_products(images.pooled, texts.pooled)

    def relevance(self, images: SsamtImages, texts: SsamtTexts) -> Relevance:
        """Send the pairs of image k with caption k through the inter encoder."""
        rows = torch.arange(len(images.pooled), device=images.real.device)
        return self._relevance_at(images, texts, rows, rows)

    def _relevance_at(self, images: SsamtImages, texts: SsamtTexts, image_rows: Tensor, text_rows: Tensor) -> Relevance:
        """Send the pairs of the given rows [N] through the inter encoder, and compare them in single precision.

        What belongs to one side alone, such as what the first layer projects, is computed once for all of its pairs.
        """

        def join_pairs(text: Tensor, image: Tensor) -> Tensor:
            return torch.cat([text.index_select(0, text_rows), image.index_select(0, image_rows)], dim=1)

        rule = self.settings.mask
        project = self.inter_layers.project
        text = self.inter_nodes.before_words(texts.words, texts.kinds)  # [T, n, d]
        image = self.inter_nodes.before_regions(images.regions)  # [B, m, d]
        real_text = texts.real[text_rows]
        real_image = images.real[image_rows]
        allowed_text = text_mask(texts.phrase_tokens, texts.real, rule)[text_rows]
        allowed = pair_mask(allowed_text, real_text, real_image, rule)[:, None]
        projected = join_pairs(project(text), project(image))
        states = self.inter_layers(join_pairs(text, image), allowed, projected)

        vectors = unit_vectors(states)  # [N, n + m, d]
        text, image = vectors.split([real_text.shape[1], real_image.shape[1]], dim=1)
        text_node = text[:, 0]
        image_node = image[:, 0]
        real_fragments = real_text[:, 1:]
        real_regions = real_image[:, 1:]
        with torch.autocast(vectors.device.type, enabled=False):
            fragments = (text[:, 1:] @ image_node[..., None]).squeeze(-1)
            fragments = fragments.masked_fill(~real_fragments, 0.0)
            regions = (image[:, 1:] @ text_node[..., None]).squeeze(-1)
            regions = regions.masked_fill(~real_regions, 0.0)
        return Relevance(
            whole=(text_node * image_node).sum(dim=-1),
            fragments=fragments,
            fragments_real=real_fragments,
            regions=regions.sum(dim=1) / real_regions.sum(dim=1),
        )

    def _weighted(self, relevance: Relevance) -> Tensor:
        local = relevance.text_fragments + relevance.regions
        return self.settings.mu1 * relevance.whole + self.settings.mu2 * local  # [N]


class InputEmbedding(nn.Module):
    """Words by token, position and segment, regions by a projection; both normalised, with dropout."""

    def __init__(self, settings: Ssamt, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        width = settings.embed_dim
        self.token = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(settings.max_words, width)
        self.segment = nn.Parameter(torch.randn(width) * 0.02)
        self.word_norm = nn.LayerNorm(width)
        self.region = nn.Linear(image_dim, width)
        self.region_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(settings.dropout)

    def words(self, tokens: Tensor) -> Tensor:
        """Embed ids [T, W] as [T, W, d]; W is `max_words` at most."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.token(tokens) + self.position(positions) + self.segment
        return self.dropout(self.word_norm(states))

    def regions(self, features: Tensor) -> Tensor:
        """Embed features [B, K, D_in] as [B, K, d]."""
        return self.dropout(self.region_norm(self.region(features)))


class Nodes(nn.Module):
    """The learned vectors C^T and C^I and one for each kind of phrase.

    A phrase node has no word or position of its own: the mask alone tells two phrases of one kind apart.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.text = nn.Parameter(torch.randn(width) * 0.02)
        self.image = nn.Parameter(torch.randn(width) * 0.02)
        self.phrase = nn.Embedding(3, width)  # objects, attributes and relations
        self.phrase_norm = nn.LayerNorm(width)

    def before_words(self, words: Tensor, kinds: Tensor) -> Tensor:
        """Join [C^T | phrases | words], [T, n, d]."""
        phrases = self.phrase_norm(self.phrase(kinds)).to(words.dtype)
        node = self.text.to(words.dtype).expand(len(words), 1, -1)
        return torch.cat([node, phrases, words], dim=1)

    def before_regions(self, regions: Tensor) -> Tensor:
        """Join [C^I | regions], [B, m, d]."""
        node = self.image.to(regions.dtype).expand(len(regions), 1, -1)
        return torch.cat([node, regions], dim=1)


def _node_and_real(vectors: Tensor, count: Tensor | None) -> Tensor:
    """Return bool [B, 1 + K]: True for the node in front, then for as many vectors as are real; None means all."""
    return F.pad(first_places(vectors, count), (1, 0), value=True)


def text_mask(phrase_tokens: Tensor, real: Tensor, rule: str) -> Tensor:
    """Open the edges inside captions.

    Args:
        phrase_tokens: bool [T, P, W], word w belongs to phrase p.
        real: bool [T, n] with n = 1 + P + W, positions that are no padding; the first is C^T.
        rule: `paper`, `strict` or `none`, see above.

    Returns:
        bool [T, n, n], row may look at column. Padding is seen by nothing but itself.
    """
    phrases = slice(1, 1 + phrase_tokens.shape[1])
    words = slice(phrases.stop, None)
    allowed = real.new_ones(*real.shape, real.shape[1])
    if rule != "none":
        allowed[:, phrases, words] = phrase_tokens
        allowed[:, words, phrases] = phrase_tokens.transpose(1, 2)
    if rule == "strict":
        allowed[:, phrases, phrases] = False
    return _close_padding(allowed, real)


def pair_mask(text: Tensor, real_text: Tensor, real_image: Tensor, rule: str) -> Tensor:
    """Open the edges of image-caption pairs.

    Args:
        text: bool [N, n, n] of `text_mask`.
        real_text: bool [N, n].
        real_image: bool [N, m].
        rule: `paper`, `strict` or `none`, see above.

    Returns:
        bool [N, n + m, n + m].
    """
    image_node = text.shape[1]
    real = torch.cat([real_text, real_image], dim=1)
    allowed = real.new_ones(*real.shape, real.shape[1])
    allowed[:, :image_node, :image_node] = text
    if rule != "none":
        allowed[:, 0, image_node + 1 :] = False  # 1: C^T sees no region
        allowed[:, image_node, 1:image_node] = False  # 2: C^I sees no phrase and no word
    if rule == "strict":
        allowed[:, 0, image_node] = False
        allowed[:, image_node, 0] = False
    return _close_padding(allowed, real)


def _close_padding(allowed: Tensor, real: Tensor) -> Tensor:
    """Close the columns of padding; every position sees itself, since a row without an open edge has no softmax."""
    itself = torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
    return (allowed & real[:, None]) | itself


build = SsamtEncoder
