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
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from itrpipe.errors import DataError
from itrpipe.models.base import (
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

NUM_KINDS = 3
"""Objects, attributes and relations."""
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

    def narrowed(self) -> SsamtTexts:
        """The same without positions that are padding in every caption."""
        node, phrases, words = self.real.split([1, *self.phrase_tokens.shape[1:]], dim=1)
        p, w = (int(real.sum(dim=1).max()) if real.shape[1] else 0 for real in (phrases, words))
        real = torch.cat([node, phrases[:, :p], words[:, :w]], dim=1)
        return SsamtTexts(self.pooled, self.words[:, :w], self.kinds[:, :p], self.phrase_tokens[:, :p, :w], real)


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
        return self.fragments.sum(dim=1) / self.fragments_real.sum(dim=1).clamp(min=1)


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

    by_rows = MappingProxyType({**SCORERS, "relevance": (0, 1)})

    def __init__(self, settings: Ssamt, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.settings = settings
        width = settings.embed_dim
        self.embedding = Embedding(settings, image_dim, vocabulary_size)
        self.intra_nodes = Nodes(width)
        self.inter_nodes = Nodes(width)
        sizes = (width, settings.heads, settings.feed_forward_dim, settings.dropout)
        self.text_layers = EncoderLayers(settings.layers, *sizes)
        self.image_layers = EncoderLayers(settings.layers, *sizes)
        self.inter_layers = EncoderLayers(settings.layers, *sizes)
        initialise(self)
        if settings.phase == "inter":
            for part in ("embedding", "intra_nodes", "text_layers", "image_layers"):
                self.freeze(part)

    def encode_images(self, images: ImageBatch) -> SsamtImages:
        """Images through their own encoder."""
        regions = self.embedding.regions(images.regions.float())  # [B, K, d]
        real = _real_positions(regions, images.count)
        allowed = _without_padding(torch.ones_like(real[:, None]), real)
        states = self.image_layers(self.intra_nodes.of_image(regions), allowed[:, None])
        return SsamtImages(unit_vectors(states[:, 0]), regions, real)

    def encode_texts(self, texts: TextBatch) -> SsamtTexts:
        """Captions through their own encoder.

        Raises:
            DataError: the batch has no phrases.
        """
        if texts.phrases is None:
            raise DataError("SSAMT reads phrases, and this batch has none; run `itrpipe parse` for its dataset")
        words = self.embedding.words(texts.tokens)  # [T, W, d]
        node, inside = _real_positions(words, texts.lengths).split([1, words.shape[1]], dim=1)
        real = torch.cat([node, texts.phrases.kinds >= 0, inside], dim=1)
        kinds = texts.phrases.kinds.clamp(min=0)
        allowed = text_mask(texts.phrases.tokens, real, self.settings.mask)
        states = self.text_layers(self.intra_nodes.of_caption(words, kinds), allowed[:, None])
        return SsamtTexts(unit_vectors(states[:, 0]), words, kinds, texts.phrases.tokens, real)

    def score_matrix(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """Scores [B, T], in tiles of pairs; captions of like length share a tile."""
        scores = self.intra_matrix(images, texts).float()
        if self.settings.phase == "intra":
            return scores
        count = len(images.pooled)
        order = texts.real.sum(dim=1).argsort(stable=True)
        positions = images.real.shape[1] + texts.real.shape[1]
        pairs = max(1, _TILE_SIZES[order.device.type] // (positions * self.settings.embed_dim))
        height = max(1, min(count, int(pairs**0.5)))
        blocks = [images[rows] for rows in torch.arange(count, device=order.device).split(height)]
        captions = ((rows, texts[rows].narrowed()) for rows in order.split(max(1, pairs // height)))

        def score(images: SsamtImages, texts: SsamtTexts) -> Tensor:
            b = len(images.pooled)
            t = len(texts.pooled)
            rows = torch.arange(b * t, device=order.device)
            return self._weighted(self._relevance_at(images, texts, rows // t, rows % t)).view(b, t)

        return scores + tiled_scores(blocks, captions, score)

    def score_pairs(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """Scores [N] of image k with caption k."""
        scores = (images.pooled * texts.pooled).sum(dim=-1)
        return scores if self.settings.phase == "intra" else scores + self._weighted(self.relevance(images, texts))

    def intra_matrix(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """cos(a^I, a^T) [B, T] of every image with every caption."""
        return inner_products(images.pooled, texts.pooled)

    def relevance(self, images: SsamtImages, texts: SsamtTexts) -> Relevance:
        """The pairs of image k with caption k through the inter encoder."""
        rows = torch.arange(len(images.pooled), device=images.real.device)
        return self._relevance_at(images, texts, rows, rows)

    def _relevance_at(self, images: SsamtImages, texts: SsamtTexts, image_rows: Tensor, text_rows: Tensor) -> Relevance:
        """The pairs of the given rows [N] through the inter encoder, compared in single precision.

        What belongs to one side alone, such as what the first layer projects, is computed once for all of its pairs.
        """

        def of_pairs(text: Tensor, image: Tensor) -> Tensor:
            return torch.cat([text.index_select(0, text_rows), image.index_select(0, image_rows)], dim=1)

        rule = self.settings.mask
        project = self.inter_layers.project
        text = self.inter_nodes.of_caption(texts.words, texts.kinds)  # [T, n, d]
        image = self.inter_nodes.of_image(images.regions)  # [B, m, d]
        real_text = texts.real[text_rows]
        real_image = images.real[image_rows]
        inside = text_mask(texts.phrase_tokens, texts.real, rule)[text_rows]
        allowed = pair_mask(inside, real_text, real_image, rule)[:, None]
        states = self.inter_layers(of_pairs(text, image), allowed, of_pairs(project(text), project(image)))
        vectors = unit_vectors(states)  # [N, n + m, d]
        text, image = vectors.split([real_text.shape[1], real_image.shape[1]], dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            fragments = (text[:, 1:] @ image[:, 0, :, None]).squeeze(-1).masked_fill(~real_text[:, 1:], 0.0)
            regions = (image[:, 1:] @ text[:, 0, :, None]).squeeze(-1).masked_fill(~real_image[:, 1:], 0.0)
        return Relevance(
            whole=(text[:, 0] * image[:, 0]).sum(dim=-1),
            fragments=fragments,
            fragments_real=real_text[:, 1:],
            regions=regions.sum(dim=1) / real_image[:, 1:].sum(dim=1),
        )

    def _weighted(self, relevance: Relevance) -> Tensor:
        local = relevance.text_fragments + relevance.regions
        return self.settings.mu1 * relevance.whole + self.settings.mu2 * local  # [N]


class Embedding(nn.Module):
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
        """[T, W] ids to [T, W, d]; W is `max_words` at most."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.word_norm(self.token(tokens) + self.position(positions) + self.segment))

    def regions(self, features: Tensor) -> Tensor:
        """[B, K, D_in] features to [B, K, d]."""
        return self.dropout(self.region_norm(self.region(features)))


class Nodes(nn.Module):
    """The learned vectors C^T and C^I and one for each kind of phrase.

    A phrase node has no word or position of its own: the mask alone tells two phrases of one kind apart.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.text = nn.Parameter(torch.randn(width) * 0.02)
        self.image = nn.Parameter(torch.randn(width) * 0.02)
        self.phrase = nn.Embedding(NUM_KINDS, width)
        self.phrase_norm = nn.LayerNorm(width)

    def of_caption(self, words: Tensor, kinds: Tensor) -> Tensor:
        """[C^T | phrases | words], [T, n, d]."""
        phrases = self.phrase_norm(self.phrase(kinds)).to(words.dtype)
        return torch.cat([self.text.to(words.dtype).expand(len(words), 1, -1), phrases, words], dim=1)

    def of_image(self, regions: Tensor) -> Tensor:
        """[C^I | regions], [B, m, d]."""
        return torch.cat([self.image.to(regions.dtype).expand(len(regions), 1, -1), regions], dim=1)


def _real_positions(vectors: Tensor, count: Tensor | None) -> Tensor:
    """bool [B, 1 + K]: the node in front, then as many vectors as are real; None means all."""
    return F.pad(first_places(vectors, count), (1, 0), value=True)


def text_mask(phrase_tokens: Tensor, real: Tensor, rule: str) -> Tensor:
    """Edges inside captions.

    Args:
        phrase_tokens: bool [T, P, W], word w belongs to phrase p.
        real: bool [T, n] with n = 1 + P + W, positions that are no padding; the first is C^T.
        rule: `paper`, `strict` or `none`, see above.

    Returns:
        bool [T, n, n], row may look at column. Padding is seen by nothing but itself.
    """
    start = 1 + phrase_tokens.shape[1]
    allowed = real.new_ones(*real.shape, real.shape[1])
    if rule != "none":
        allowed[:, 1:start, start:] = phrase_tokens
        allowed[:, start:, 1:start] = phrase_tokens.transpose(1, 2)
    if rule == "strict":
        allowed[:, 1:start, 1:start] = False
    return _without_padding(allowed, real)


def pair_mask(text: Tensor, real_text: Tensor, real_image: Tensor, rule: str) -> Tensor:
    """Edges of image-caption pairs.

    Args:
        text: bool [N, n, n] of `text_mask`.
        real_text: bool [N, n].
        real_image: bool [N, m].
        rule: `paper`, `strict` or `none`, see above.

    Returns:
        bool [N, n + m, n + m].
    """
    length = text.shape[1]
    real = torch.cat([real_text, real_image], dim=1)
    allowed = real[:, None].repeat(1, real.shape[1], 1)
    allowed[:, :length, :length] = text
    if rule != "none":
        allowed[:, 0, length + 1 :] = False  # 1: C^T sees no region
        allowed[:, length, 1:length] = False  # 2: C^I sees no phrase and no word
    if rule == "strict":
        allowed[:, 0, length] = allowed[:, length, 0] = False
    return _without_padding(allowed, real)


def _without_padding(allowed: Tensor, real: Tensor) -> Tensor:
    """Closes the columns of padding; every position sees itself, since a row without an open edge has no softmax."""
    itself = torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
    return (allowed & real[:, None]) | itself


build = SsamtEncoder
"""Makes the model, freshly initialised."""
