"""UNITER: the words of a caption and the regions of an image in one BERT, pair by pair.

The sequence of a pair is compact: its words, `[CLS]` and `[SEP]` (or start and end) among them, then its regions, then
padding if other pairs of the same tile are longer. Pairs are scored in tiles of like length, and of the last layer only
what a head reads is computed; neither changes a score.

The heads of TAGS-DC are part of the model: a masked word's (`masked_word`), whether a word belongs to the image
(`word_match`), and which word does (`correction`). Published state dicts are read by `itrpipe.models.uniter.weights`.

Source: Chen et al., "UNITER: Universal Image-Text Representation Learning", ECCV 2020; Fan et al., "Negative Sample is
Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval" (TAGS-DC), Findings of NAACL 2022.

Shapes: N pairs, B images, R regions, T captions, W words, L positions of a sequence, d width, V token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.models.base import ImageBatch, Matcher, TextBatch, smallest_count
from itrpipe.models.region_tower import NORM_EPSILON, RegionEmbedding
from itrpipe.models.transformer import EncoderLayer, initialise
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.weights import load_published

__all__ = ["UniterEncoder", "build", "load_published"]

_TILE_SIZES = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Elements of the states of a tile of pairs that go through the encoder together; on CPUs they fit the cache."""


@dataclass(frozen=True)
class UniterImages:
    """Images as the encoder reads them.

    Attributes:
        regions: [B, R, d] embedded regions, before dropout; those past the count hold anything.
        count: [B] int64, regions per image.
    """

    regions: Tensor
    count: Tensor


@dataclass(frozen=True)
class UniterTexts:
    """Captions as the encoder reads them.

    Attributes:
        words: [T, W, d] embedded words, before dropout; those past the length hold anything.
        lengths: [T] int64, words per caption.
    """

    words: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Sequences:
    """N pairs as compact sequences.

    Attributes:
        index: [N, L] int64 positions of `Pool.vectors`.
        real: bool [N, L], or None where no sequence has padding.
    """

    index: Tensor
    real: Tensor | None


@dataclass(frozen=True)
class Pool:
    """All words and regions that pairs are made of.

    Attributes:
        vectors: [T W + B R, d].
        projected: [T W + B R, 3 d], what the first layer makes of them, or None where dropout comes between.
        images, texts: where they come from.
    """

    vectors: Tensor
    projected: Tensor | None
    images: UniterImages
    texts: UniterTexts

    def sequences(self, images: Tensor, texts: Tensor, length: int, padded: bool) -> Sequences:
        """The pairs of the given rows [N] of images and captions.

        Args:
            images, texts: rows.
            length: L, of the longest pair.
            padded: whether some pairs are shorter.
        """
        width, room = self.texts.words.shape[1], self.images.regions.shape[1]
        words = self.texts.lengths[texts, None]
        position = torch.arange(length, device=words.device)
        from_text = texts[:, None] * width + position
        from_image = len(self.texts.words) * width + images[:, None] * room + position - words
        real = position < words + self.images.count[images, None] if padded else None
        index = torch.where(position < words, from_text, from_image)
        return Sequences(index if real is None else index.masked_fill(~real, 0), real)


class UniterEncoder(Matcher[UniterImages, UniterTexts]):
    """UNITER with the heads of TAGS-DC. The score of a pair is its raw rank logit.

    Args:
        settings: the options of the model.
        image_dim: width of the region features.
        vocabulary_size: number of token ids, `[MASK]` included.
    """

    by_rows = MappingProxyType({"read_at": (2, 3)})

    def __init__(self, settings: Uniter, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        width, dropout = settings.embed_dim, settings.dropout
        self.settings = settings
        self.text = TextEmbedding(width, settings.max_words, vocabulary_size)
        self.image = RegionEmbedding(width, image_dim)
        sizes = (width, settings.heads, settings.feed_forward_dim, dropout, NORM_EPSILON)
        self.layers = nn.ModuleList(EncoderLayer(*sizes) for _ in range(settings.layers))
        self.pooler = nn.Linear(width, width)
        self.match, self.rank = nn.Linear(width, 2), nn.Linear(width, 1)
        self.word_match = nn.Linear(width, 2)
        self.masked_word, self.correction = (TokenHead(width, vocabulary_size) for _ in range(2))
        initialise(self, settings.initial_deviation)
        self.derive_heads({"rank", "word_match", "correction"})

    def derive_heads(self, heads: set[str]) -> None:
        """Starts heads from others: `rank` and `word_match` from `match`, `correction` from `masked_word`."""
        with torch.no_grad():
            if "rank" in heads:
                self.rank.weight.copy_(self.match.weight[1:])
                self.rank.bias.copy_(self.match.bias[1:])
        if "word_match" in heads:
            self.word_match.load_state_dict(self.match.state_dict())
        if "correction" in heads:
            self.correction.load_state_dict(self.masked_word.state_dict())

    def undecayed(self) -> set[str]:
        """Biases and scales of layer norms, but for the scales of the projected features and boxes.

        The published optimiser knows layer norms by their names, and does not know these two.
        """
        return super().undecayed() - {"image.region_norm.weight", "image.box_norm.weight"}

    def encode_images(self, images: ImageBatch) -> UniterImages:
        """Regions and their boxes, projected.

        Raises:
            DataError: the features have no boxes, or an image has no region.
        """
        if images.boxes is None:
            raise DataError(
                "UNITER reads the boxes of regions, which these features have not; give others by --features, or where "
                "the regions are the cells of a grid extract them again with --set grid=[ROWS,COLUMNS]"
            )
        smallest_count(images)
        regions = self.image(images.regions.float(), images.boxes.float(), self.text.kind.weight[1])
        count = torch.full((len(regions),), regions.shape[1], device=regions.device)
        return UniterImages(regions, count if images.count is None else images.count)

    def encode_texts(self, texts: TextBatch) -> UniterTexts:
        """Words with their positions.

        Raises:
            DataError: a caption is longer than the model has positions.
        """
        return UniterTexts(self.text(texts.tokens), texts.lengths)

    def score_matrix(self, images: UniterImages, texts: UniterTexts) -> Tensor:
        """Scores [B, T], float32."""
        rows = torch.arange(len(images.count)).repeat_interleave(len(texts.lengths))
        columns = torch.arange(len(texts.lengths)).repeat(len(images.count))
        return self.score_at(images, texts, rows, columns).view(len(images.count), -1)

    def score_pairs(self, images: UniterImages, texts: UniterTexts) -> Tensor:
        """Scores [N] of image k with caption k, float32."""
        assert len(images.count) == len(texts.lengths)
        rows = torch.arange(len(images.count))
        return self.score_at(images, texts, rows, rows)

    def score_at(self, images: UniterImages, texts: UniterTexts, image_rows: Tensor, text_rows: Tensor) -> Tensor:
        """Scores [N] of pairs of any images and captions, float32.

        Args:
            images, texts: what pairs are made of; each is embedded once, however many pairs it is in.
            image_rows, text_rows: [N] rows of images and captions, on any device.
        """
        return self.read_at(images, texts, image_rows, text_rows, 1, lambda states: self.rank_score(states[:, 0]))

    def read_at(
        self,
        images: UniterImages,
        texts: UniterTexts,
        image_rows: Tensor,
        text_rows: Tensor,
        first: int,
        read: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """What is read from the last states of pairs of any images and captions, [N, ...].

        Args:
            images, texts, image_rows, text_rows: see `score_at`.
            first: how many positions of each pair are read; those behind its last hold anything.
            read: states [n, first, d] of some pairs to [n, ...].
        """
        pool = self.pool(images, texts)
        order, parts = [], []
        for rows, length, padded in self._tiles(images.count, texts.lengths, image_rows, text_rows):
            device = images.count.device
            on_device = (image_rows[rows].to(device), text_rows[rows].to(device))
            states = self.encode(pool, pool.sequences(*on_device, length, padded), first)
            parts.append(read(F.pad(states, (0, 0, 0, first - states.shape[1]))))
            order.append(rows)
        found = torch.cat(parts)
        return found[torch.cat(order).argsort().to(found.device)]

    def pool(self, images: UniterImages, texts: UniterTexts) -> Pool:
        """Gathers all words and regions, and lets the first layer look at each once where that is the same."""
        vectors = torch.cat([texts.words.flatten(0, 1), images.regions.flatten(0, 1)])
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        alone = not self.training or self.settings.dropout == 0.0
        return Pool(vectors, first.project(vectors) if alone else None, images, texts)

    def encode(self, pool: Pool, sequences: Sequences, first: int | None = None) -> Tensor:
        """Last states [N, L, d] of pairs, or [N, first, d] of their first positions; words come before regions."""
        states = F.dropout(F.embedding(sequences.index, pool.vectors), self.settings.dropout, self.training)
        projected = None if pool.projected is None else F.embedding(sequences.index, pool.projected)
        return self.through_layers(states, sequences.real, projected, first)

    def through_layers(
        self, states: Tensor, real: Tensor | None, projected: Tensor | None = None, first: int | None = None
    ) -> Tensor:
        """Last states [N, L, d] of embedded sequences [N, L, d], of which `real` bool [N, L] are no padding."""
        allowed = None if real is None else real[:, None, None]
        for layer in self.layers[:-1]:
            states, projected = layer(states, allowed, projected), None
        return self.layers[-1](states, allowed, projected, first)

    def pooled(self, start: Tensor) -> Tensor:
        """[N, d] of the last states [N, d] of the first position, in single precision."""
        with torch.autocast(start.device.type, enabled=False):
            return torch.tanh(self.pooler(start.float()))

    def match_logits(self, start: Tensor) -> Tensor:
        """[N, 2] of the last states [N, d] of the first position; 1 is a match."""
        with torch.autocast(start.device.type, enabled=False):
            return self.match(self.pooled(start))

    def rank_score(self, start: Tensor) -> Tensor:
        """Scores [N] of the last states [N, d] of the first position; bfloat16 would make ties of them."""
        with torch.autocast(start.device.type, enabled=False):
            return self.rank(self.pooled(start)).squeeze(-1)

    def masked_word_logits(self, states: Tensor) -> Tensor:
        """[..., V] of last states [..., d] of words: what stands there."""
        return self.masked_word(states, self.text.word.weight)

    def word_match_logits(self, states: Tensor) -> Tensor:
        """[..., 2] of last states [..., d] of words; 1 is a word that belongs to the image."""
        return self.word_match(states)

    def correction_logits(self, states: Tensor) -> Tensor:
        """[..., V] of last states [..., d] of words: what should stand there."""
        return self.correction(states, self.text.word.weight)

    def _tiles(
        self, count: Tensor, lengths: Tensor, image_rows: Tensor, text_rows: Tensor
    ) -> Iterator[tuple[Tensor, int, bool]]:
        """Pairs in the order of their length: their numbers [n], the longest length, whether others are shorter.

        A tile ends where it is full, or where over a tenth of a sequence would be padding, unless it is small then.
        """
        sizes = count.cpu()[image_rows.cpu()] + lengths.cpu()[text_rows.cpu()]
        order = sizes.argsort(stable=True, descending=True)
        sizes = sizes[order]
        tokens = _TILE_SIZES[count.device.type] // self.settings.embed_dim
        start = 0
        while start < len(order):
            longest = int(sizes[start])
            full = max(1, tokens // longest)
            alike = int((sizes >= 0.9 * longest).sum())
            stop = min(len(order), start + full, max(alike, start + full // 8 + 1))
            yield order[start:stop], longest, int(sizes[stop - 1]) < longest
            start = stop


class TextEmbedding(nn.Module):
    """Words by token, position and kind of sequence, normalised."""

    def __init__(self, width: int, positions: int, vocabulary_size: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(positions, width)
        self.kind = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)

    @property
    def max_tokens(self) -> int:
        """Longest caption in tokens that there are positions for."""
        return self.position.num_embeddings

    def forward(self, tokens: Tensor) -> Tensor:
        """[T, W] ids to [T, W, d].

        Raises:
            DataError: a caption has more words than there are positions.
        """
        count, known = tokens.shape[1], self.max_tokens
        if count > known:
            raise DataError(f"a caption has {count} tokens and the model {known} positions; raise --set max_words")
        return self.norm(self.word(tokens) + self.position.weight[:count] + self.kind.weight[0])


class TokenHead(nn.Module):
    """Which token a state stands for: a layer of its own, then the word embeddings with a bias of its own."""

    def __init__(self, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Logits [..., V] of states [..., d] and word embeddings [V, d]."""
        return F.linear(self.norm(F.gelu(self.transform(states))), words, self.bias)


def build(settings: Uniter, image_dim: int, vocabulary_size: int) -> UniterEncoder:
    """Makes the model, freshly initialised; a vocabulary of our own gets a `[MASK]` behind its last word."""
    return UniterEncoder(settings, image_dim, vocabulary_size + (not settings.tokenizer))
