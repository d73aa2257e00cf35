"""SSAMT: a caption with its phrases and an image with its regions in one Transformer, after each has been in its own.

Two *intra* encoders look at captions and at images alone and give a vector of each; their cosine ranks at the cost of
a dual encoder. The *inter* encoder looks at an image-caption pair under the masks of `itrpipe.models.ssamt.masks` and
is compared in four ways (see `Relevance`). It is trained after the intra encoders, which are frozen then, together
with the embeddings that both read.

Source: Fan et al., "Constructing Phrase-level Semantic Labels to Form Multi-Grained Supervision for Image-Text
Retrieval" (SSAMT), 2021. No code was released; what the paper leaves open is noted where it is decided.

Shapes: N pairs, B images, T captions, P phrases, W words, K regions, d model width, n = 1 + P + W, m = 1 + K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.models.base import SCORERS, ImageBatch, Matcher, TextBatch, inner_products, smallest_count, unit_vectors
from itrpipe.models.ssamt.declaration import Ssamt
from itrpipe.models.ssamt.masks import image_mask, pair_mask, text_mask
from itrpipe.models.transformer import EncoderLayer, initialise

NUM_KINDS = 3
"""Objects, attributes and relations."""
_TILE_SIZES = {"cpu": 1 << 20, "cuda": 1 << 27}
"""Elements of the states of a tile of pairs that go through the inter encoder together; on CPUs they fit the cache."""


@dataclass(frozen=True)
class SsamtImages:
    """Images after their own encoder.

    Attributes:
        pooled: [B, d] a^I, unit length.
        regions: [B, K, d] embedded regions, which the inter encoder reads.
        real: bool [B, m], the first position being C^I.
    """

    pooled: Tensor
    regions: Tensor
    real: Tensor

    def __getitem__(self, rows: Tensor) -> SsamtImages:
        """Images at the given rows."""
        return SsamtImages(self.pooled[rows], self.regions[rows], self.real[rows])


@dataclass(frozen=True)
class SsamtTexts:
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
        phrases = self.phrase_tokens.shape[1]
        used_phrases = int(self.real[:, 1 : 1 + phrases].sum(dim=1).max()) if phrases else 0
        used_words = int(self.real[:, 1 + phrases :].sum(dim=1).max())
        return SsamtTexts(
            self.pooled,
            self.words[:, :used_words],
            self.kinds[:, :used_phrases],
            self.phrase_tokens[:, :used_phrases, :used_words],
            torch.cat([self.real[:, : 1 + used_phrases], self.real[:, 1 + phrases : 1 + phrases + used_words]], dim=1),
        )

    def __getitem__(self, rows: Tensor) -> SsamtTexts:
        """Captions at the given rows."""
        return SsamtTexts(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


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
        self.intra_nodes, self.inter_nodes = Nodes(width), Nodes(width)
        self.text_layers, self.image_layers, self.inter_layers = (_layers(settings) for _ in range(3))
        initialise(self)
        if settings.phase == "inter":
            for part in self._intra():
                part.requires_grad_(False)

    def train(self, mode: bool = True) -> SsamtEncoder:
        """As in PyTorch, but what is frozen stays without dropout."""
        super().train(mode)
        if self.settings.phase == "inter":
            for part in self._intra():
                part.eval()
        return self

    def encode_images(self, images: ImageBatch) -> SsamtImages:
        """Images through their own encoder."""
        smallest_count(images)
        regions = self.embedding.regions(images.regions.float())  # [B, K, d]
        real = _real_positions(regions, images.count)
        states = torch.cat([self.intra_nodes.image.expand(len(regions), 1, -1), regions], dim=1)
        states = _through(self.image_layers, states, image_mask(real))
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
        states = self.intra_nodes.of_caption(words, kinds)
        states = _through(self.text_layers, states, text_mask(texts.phrases.tokens, real, self.settings.mask))
        return SsamtTexts(unit_vectors(states[:, 0]), words, kinds, texts.phrases.tokens, real)

    def score_matrix(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """Scores [B, T], in tiles of pairs; captions of like length share a tile."""
        scores = self.intra_matrix(images, texts).float()
        if self.settings.phase == "intra":
            return scores
        order = texts.real.sum(dim=1).argsort(stable=True)
        inter = torch.empty_like(scores)
        for rows, columns in self._tiles(images, texts, order):
            part = texts[columns].narrowed()
            inter[rows, columns[None]] = self._weighted(self._relevance_of_tile(images[rows.flatten()], part)).view(
                len(rows), len(columns)
            )
        return scores + inter

    def score_pairs(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """Scores [N] of image k with caption k."""
        scores = (images.pooled * texts.pooled).sum(dim=-1)
        return scores if self.settings.phase == "intra" else scores + self._weighted(self.relevance(images, texts))

    def intra_matrix(self, images: SsamtImages, texts: SsamtTexts) -> Tensor:
        """cos(a^I, a^T) [B, T] of every image with every caption."""
        return inner_products(images.pooled, texts.pooled)

    def relevance(self, images: SsamtImages, texts: SsamtTexts) -> Relevance:
        """The pairs of image k with caption k through the inter encoder."""
        assert len(images.pooled) == len(texts.pooled)
        text = self.inter_nodes.of_caption(texts.words, texts.kinds)
        image = self.inter_nodes.of_image(images.regions)
        allowed = self._pair_mask(texts, texts.real, images.real)
        states = _through(self.inter_layers, torch.cat([text, image], dim=1), allowed)
        return _compared(states, texts.real, images.real)

    def _relevance_of_tile(self, images: SsamtImages, texts: SsamtTexts) -> Relevance:
        """Every image [b] with every caption [t], N = b t pairs, images first.

        What the first layer projects depends on one side alone, so it is computed for each image and caption once.
        """
        sides = (self.inter_nodes.of_image(images.regions), self.inter_nodes.of_caption(texts.words, texts.kinds))
        first, others = self.inter_layers[0], self.inter_layers[1:]
        assert isinstance(first, EncoderLayer)
        b, t = len(sides[0]), len(sides[1])

        def pairs(image: Tensor, text: Tensor) -> Tensor:
            text = text[None].expand(b, *text.shape)
            image = image[:, None].expand(b, t, *image.shape[1:])
            return torch.cat([text, image], dim=2).flatten(0, 1)

        real_text = texts.real[None].expand(b, *texts.real.shape).flatten(0, 1)
        real_image = images.real[:, None].expand(b, t, -1).flatten(0, 1)
        rows = torch.arange(t, device=real_text.device).repeat(b)
        allowed = self._pair_mask(texts[rows], real_text, real_image)[:, None]
        projected = pairs(*(first.project(side) for side in sides))
        states = first(pairs(*sides), allowed, projected)
        for layer in others:
            states = layer(states, allowed)
        return _compared(states, real_text, real_image)

    def _pair_mask(self, texts: SsamtTexts, real_text: Tensor, real_image: Tensor) -> Tensor:
        inside = text_mask(texts.phrase_tokens, real_text, self.settings.mask)
        return pair_mask(inside, real_text, real_image, self.settings.mask)

    def _weighted(self, relevance: Relevance) -> Tensor:
        local = relevance.text_fragments + relevance.regions
        return self.settings.mu1 * relevance.whole + self.settings.mu2 * local  # [N]

    def _tiles(self, images: SsamtImages, texts: SsamtTexts, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Image rows [b, 1] and caption rows [t] of tiles that hold about as many positions each."""
        length = images.real.shape[1] + texts.real.shape[1]
        elements = _TILE_SIZES[order.device.type]
        pairs = max(1, elements // (length * self.settings.embed_dim))
        height = max(1, min(len(images.pooled), int(pairs**0.5)))
        width = max(1, pairs // height)
        rows = torch.arange(len(images.pooled), device=order.device)
        for columns in order.split(width):
            for part in rows.split(height):
                yield part[:, None], columns

    def _intra(self) -> tuple[nn.Module, ...]:
        return self.embedding, self.intra_nodes, self.text_layers, self.image_layers


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
        """[T, W] ids to [T, W, d].

        Raises:
            DataError: a caption has more words than there are positions.
        """
        count, known = tokens.shape[1], self.position.num_embeddings
        if count > known:
            raise DataError(f"a caption has {count} words and the model {known} positions; raise --set max_words")
        positions = torch.arange(count, device=tokens.device)
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
        self.text, self.image = (nn.Parameter(torch.randn(width) * 0.02) for _ in range(2))
        self.phrase = nn.Embedding(NUM_KINDS, width)
        self.phrase_norm = nn.LayerNorm(width)

    def of_caption(self, words: Tensor, kinds: Tensor) -> Tensor:
        """[C^T | phrases | words], [T, n, d]."""
        phrases = self.phrase_norm(self.phrase(kinds)).to(words.dtype)
        return torch.cat([self.text.to(words.dtype).expand(len(words), 1, -1), phrases, words], dim=1)

    def of_image(self, regions: Tensor) -> Tensor:
        """[C^I | regions], [B, m, d]."""
        return torch.cat([self.image.to(regions.dtype).expand(len(regions), 1, -1), regions], dim=1)


def _layers(settings: Ssamt) -> nn.ModuleList:
    sizes = (settings.embed_dim, settings.heads, settings.feed_forward_dim, settings.dropout)
    return nn.ModuleList(EncoderLayer(*sizes) for _ in range(settings.layers))


def _through(layers: nn.ModuleList, states: Tensor, allowed: Tensor) -> Tensor:
    for layer in layers:
        states = layer(states, allowed[:, None])
    return states


def _real_positions(vectors: Tensor, count: Tensor | None) -> Tensor:
    """bool [B, 1 + K]: the node in front, then as many vectors as are real; None means all."""
    places = torch.arange(vectors.shape[1], device=vectors.device)
    inside = places < (count[:, None] if count is not None else vectors.shape[1])
    inside = inside.expand(len(vectors), -1)
    return torch.cat([inside.new_ones(len(vectors), 1), inside], dim=1)


def _compared(states: Tensor, real_text: Tensor, real_image: Tensor) -> Relevance:
    """The four comparisons of pairs whose last states are [N, n + m, d], in single precision."""
    vectors = unit_vectors(states)
    text, image = vectors.split([real_text.shape[1], real_image.shape[1]], dim=1)
    with torch.autocast(states.device.type, enabled=False):
        fragments = (text[:, 1:] @ image[:, 0, :, None]).squeeze(-1).masked_fill(~real_text[:, 1:], 0.0)
        regions = (image[:, 1:] @ text[:, 0, :, None]).squeeze(-1).masked_fill(~real_image[:, 1:], 0.0)
    return Relevance(
        whole=(text[:, 0] * image[:, 0]).sum(dim=-1),
        fragments=fragments,
        fragments_real=real_text[:, 1:],
        regions=regions.sum(dim=1) / real_image[:, 1:].sum(dim=1),
    )


def build(settings: Ssamt, image_dim: int, vocabulary_size: int) -> SsamtEncoder:
    """Makes the model, freshly initialised."""
    return SsamtEncoder(settings, image_dim, vocabulary_size)
