"""UNITER: the words of a caption and the regions of an image in one BERT, pair by pair.

The sequence of a pair is compact: its words, `[CLS]` and `[SEP]` (or start and end) among them, then its regions, then
padding if other pairs of the same tile are longer. Pairs are scored in tiles of like length, and of the last layer only
what a head reads is computed; neither changes a score.

The heads of TAGS-DC are part of the model: a masked word's (`masked_word`), whether a word belongs to the image
(`word_match`), and which word does (`correction`).

Published weights of UNITER, TAGS and BERT have other names:

| file                                   | here                                       |
|----------------------------------------|--------------------------------------------|
| `uniter.embeddings.*`                  | `text.*`                                   |
| `uniter.img_embeddings.*`              | `image.*`                                  |
| `uniter.encoder.layer.<i>.*`           | `layers.<i>.*`, query, key and value joined |
| `uniter.pooler.dense.*`                | `pooler.*`                                 |
| `itm_output.*`, `rank_output.*`        | `match.*`, `rank.*`                        |
| `cls.predictions.*`                    | `masked_word.*`                            |
| `disc_output.*`                        | `word_match.*`                             |
| `correction_output.predictions.*`      | `correction.*`                             |

`bert` in a name reads as `uniter`, `gamma` and `beta` at its end as `weight` and `bias`. Decoders are the word
embeddings and are not read; heads that only pre-training had are left out.

SSAMT and region tokens of the dual encoder have the same layers: those of a Transformer (Vaswani et al., 2017) in the
form of BERT (Devlin et al., NAACL 2019), layer norm after each residual, GELU.

Source: Chen et al., "UNITER: Universal Image-Text Representation Learning", ECCV 2020; Fan et al., "Negative Sample is
Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval" (TAGS-DC), Findings of NAACL 2022; the
published files of both.

Shapes: N pairs, B images, R regions, T captions, W words, L positions of a sequence, d width, V token ids.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itrpipe.encoders.encoder import refuse_not_finite
from itrpipe.errors import DataError
from itrpipe.features.weights import read_state
from itrpipe.models.base import ImageBatch, Matcher, RegionEncoding, TextBatch, WordEncoding, boxes_of
from itrpipe.models.uniter.declaration import Uniter

NORM_EPSILON = 1e-12
"""Epsilon of every layer norm, as in BERT."""
BOX_NUMBERS = 7
"""x0, y0, x1, y1, width, height and area of a region, as fractions of the image."""
_TILE_SIZES = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Elements of the states of a tile of pairs that go through the encoder together; on CPUs they fit the cache."""


class UniterEncoder(Matcher[RegionEncoding, WordEncoding]):
    """UNITER with the heads of TAGS-DC. The score of a pair is its raw rank logit.

    Args:
        settings: the options of the model.
        image_dim: width of the region features.
        vocabulary_size: number of token ids, `[MASK]` included.
    """

    by_rows = MappingProxyType({"score_matrix": (0,), "score_pairs": (0, 1), "score_at": (2, 3), "read_at": (2, 3)})

    def __init__(self, settings: Uniter, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        width = settings.embed_dim
        dropout = settings.dropout
        self.settings = settings
        self.text = TextEmbedding(width, settings.max_words, vocabulary_size)
        self.image = RegionEmbedding(width, image_dim)
        sizes = (width, settings.heads, settings.feed_forward_dim, dropout, NORM_EPSILON)
        self.layers = EncoderLayers(settings.layers, *sizes)
        self.pooler = nn.Linear(width, width)
        self.match = nn.Linear(width, 2)
        self.rank = nn.Linear(width, 1)
        self.word_match = nn.Linear(width, 2)
        self.masked_word = TokenHead(width, vocabulary_size)
        self.correction = TokenHead(width, vocabulary_size)
        initialise(self, settings.initial_deviation)
        self.derive_heads({"rank", "word_match", "correction"})

    def derive_heads(self, heads: set[str]) -> None:
        """Starts heads from others: `rank` and `word_match` from `match`, `correction` from `masked_word`."""
        if "rank" in heads:
            self.rank.load_state_dict({name: each[1:] for name, each in self.match.state_dict().items()})
        if "word_match" in heads:
            self.word_match.load_state_dict(self.match.state_dict())
        if "correction" in heads:
            self.correction.load_state_dict(self.masked_word.state_dict())

    def undecayed(self) -> set[str]:
        """Biases and scales of layer norms, but for the scales of the projected features and boxes.

        The published optimiser knows layer norms by their names, and does not know these two.
        """
        return super().undecayed() - {"image.region_norm.weight", "image.box_norm.weight"}

    def encode_images(self, images: ImageBatch) -> RegionEncoding:
        """Regions and their boxes, embedded, before dropout; the count is always given.

        Raises:
            DataError: the features have no boxes.
        """
        regions = self.image(images.regions.float(), boxes_of(images), self.text.kind.weight[1])
        count = torch.full((len(regions),), regions.shape[1], device=regions.device)
        return RegionEncoding(regions, count if images.count is None else images.count)

    def encode_texts(self, texts: TextBatch) -> WordEncoding:
        """Words with their positions.

        Raises:
            DataError: a caption is longer than the model has positions.
        """
        return WordEncoding(self.text(texts.tokens), texts.lengths)

    def score_matrix(self, images: RegionEncoding, texts: WordEncoding) -> Tensor:
        """Scores [B, T], float32."""
        pairs = torch.cartesian_prod(torch.arange(len(images.regions)), torch.arange(len(texts.lengths)))
        return self.score_at(images, texts, *pairs.T).view(len(images.regions), -1)

    def score_pairs(self, images: RegionEncoding, texts: WordEncoding) -> Tensor:
        """Scores [N] of image k with caption k, float32."""
        return self.score_at(images, texts, *torch.arange(len(images.regions)).expand(2, -1))

    def score_at(self, images: RegionEncoding, texts: WordEncoding, image_rows: Tensor, text_rows: Tensor) -> Tensor:
        """Scores [N] of pairs of any images and captions, float32.

        Args:
            images, texts: what pairs are made of; each is embedded once, however many pairs it is in.
            image_rows, text_rows: [N] rows of images and captions, on any device.
        """
        return self.read_at(images, texts, image_rows, text_rows, 1, lambda states: self.rank_score(states[:, 0]))

    def read_at(
        self,
        images: RegionEncoding,
        texts: WordEncoding,
        image_rows: Tensor,
        text_rows: Tensor,
        first: int,
        read: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Read from the last states of pairs of any images and captions, [N, ...].

        Args:
            images, texts, image_rows, text_rows: see `score_at`.
            first: how many positions of each pair are read; those behind its last hold anything.
            read: states [n, first, d] of some pairs to [n, ...].
        """
        assert images.count is not None
        dropout = self.settings.dropout
        width = texts.words.shape[1]
        room = images.regions.shape[1]
        vectors = torch.cat([texts.words.flatten(0, 1), images.regions.flatten(0, 1)])  # [T W + B R, d]
        # Without dropout in between, the first layer looks at every word and region once, however many pairs it is in.
        projected = None if self.training and dropout else self.layers.project(vectors)
        order = []
        parts = []
        for rows, length, padded in self._tiles(images.count, texts.lengths, image_rows, text_rows):
            image = image_rows[rows].to(vectors.device)[:, None]  # [n, 1]
            text = text_rows[rows].to(vectors.device)[:, None]
            position = torch.arange(length, device=vectors.device)
            words = texts.lengths[text]
            regions = images.count[image]
            of_image = texts.words.shape[:2].numel() + image * room + position - words
            index = torch.where(position < words, text * width + position, of_image)  # [n, L] rows of the vectors
            real = position < words + regions
            index = index.masked_fill(~real, 0)
            allowed = real[:, None, None] if padded else None
            states = F.dropout(F.embedding(index, vectors), dropout, self.training)
            known = None if projected is None else F.embedding(index, projected)
            states = self.layers(states, allowed, known, first)
            parts.append(read(F.pad(states, (0, 0, 0, first - states.shape[1]))))
            order.append(rows)
        found = torch.cat(parts)
        return found[torch.cat(order).argsort().to(found.device)]

    def rank_score(self, start: Tensor) -> Tensor:
        """Scores [N] of the last states [N, d] of the first position."""
        return self.pair_logits(start, self.rank).squeeze(-1)

    def pair_logits(self, start: Tensor, head: nn.Linear) -> Tensor:
        """Apply `rank` or `match`, whose second logit is a match, to the last states [N, d] of the first position.

        In single precision: bfloat16 would make ties of scores.
        """
        with torch.autocast(start.device.type, enabled=False):
            return head(torch.tanh(self.pooler(start.float())))

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
        count = tokens.shape[1]
        known = self.max_tokens
        if count > known:
            raise DataError(f"a caption has {count} tokens and the model {known} positions; raise --set max_words")
        return self.norm(self.word(tokens) + self.position.weight[:count] + self.kind.weight[0])


class RegionEmbedding(nn.Module):
    """Regions by feature and box, each projection normalised and their sum again.

    Args:
        width: d.
        image_dim: D_in.
        boxes: whether boxes are read.

    Source: UNITER (Chen et al., ECCV 2020), §3.1.
    """

    def __init__(self, width: int, image_dim: int, boxes: bool = True) -> None:
        super().__init__()
        self.region = nn.Linear(image_dim, width)
        if boxes:
            self.box = nn.Linear(BOX_NUMBERS, width)
        self.region_norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        if boxes:
            self.box_norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)

    def forward(self, features: Tensor, boxes: Tensor | None, kind: Tensor | None = None) -> Tensor:
        """[B, R, D_in] features with boxes [B, R, 4], where they are read, to [B, R, d]; `kind` [d] is added to all."""
        states = self.region_norm(self.region(features))
        if boxes is not None:
            sides = boxes[..., 2:] - boxes[..., :2]
            numbers = torch.cat([boxes, sides, sides.prod(dim=-1, keepdim=True)], dim=-1)  # [B, R, 7]
            states = states + self.box_norm(self.box(numbers))
        return self.norm(states if kind is None else states + kind)


class TokenHead(nn.Module):
    """Logits of the token that a state stands for: a layer, then the word embeddings with a bias."""

    def __init__(self, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Logits [..., V] of states [..., d] and word embeddings [V, d]."""
        return F.linear(self.norm(F.gelu(self.transform(states))), words, self.bias)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each with dropout, residual and layer norm.

    Args:
        width: d, a multiple of `heads`.
        heads: attention heads.
        inner: width of the feed-forward network.
        dropout: of attention weights and of both residual branches.
        epsilon: of the layer norms.
    """

    def __init__(self, width: int, heads: int, inner: int, dropout: float, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=epsilon)
        self.feed_forward = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        self.feed_forward_norm = nn.LayerNorm(width, eps=epsilon)

    def forward(
        self, states: Tensor, allowed: Tensor | None, projected: Tensor | None = None, first: int | None = None
    ) -> Tensor:
        """Next states [B, n, d], or [B, first, d].

        Args:
            states: [B, n, d].
            allowed: bool [B, 1, n, n] or broadcastable; query (row) may look at key (column). Every row needs one.
                None allows everything.
            projected: [B, n, 3d] `project(states)`, where it is known already.
            first: compute the next states of the first so many positions only; they still look at all.
        """
        batch, _, width = states.shape
        if projected is None and first is not None:
            weight = self.project.weight
            bias = self.project.bias
            queries = F.linear(states[:, :first], weight[:width], bias[:width])
            keys, values = F.linear(states, weight[width:], bias[width:]).chunk(2, dim=-1)
        else:
            queries, keys, values = (self.project(states) if projected is None else projected).chunk(3, dim=-1)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (queries[:, :first], keys, values)
        )
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=allowed, dropout_p=dropout)
        attended = self.output(attended.transpose(1, 2).reshape(batch, -1, width))
        states = self.attention_norm(states[:, :first] + F.dropout(attended, self.dropout, self.training))
        forwarded = F.dropout(self.feed_forward(states), self.dropout, self.training)
        return self.feed_forward_norm(states + forwarded)


class EncoderLayers(nn.ModuleList):
    """Layers one behind the other.

    Args:
        count: how many.
        sizes: of `EncoderLayer`.
    """

    def __init__(self, count: int, *sizes: Any) -> None:
        super().__init__(EncoderLayer(*sizes) for _ in range(count))

    @property
    def project(self) -> nn.Linear:
        """The projection of the first layer: of states that many sequences share it can be computed once."""
        return self[0].project  # pyright: ignore[reportReturnType]

    def forward(
        self, states: Tensor, allowed: Tensor | None = None, projected: Tensor | None = None, first: int | None = None
    ) -> Tensor:
        """Last states [B, n, d], or those [B, first, d] of the first positions; arguments as of `EncoderLayer`."""
        *earlier, last = self
        for layer in earlier:
            states = layer(states, allowed, projected)
            projected = None
        return last(states, allowed, projected, first)


def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """BERT's initial weights: normal with this standard deviation, biases zero; layer norms stay 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def build(settings: Uniter, image_dim: int, vocabulary_size: int) -> UniterEncoder:
    """Makes the model, freshly initialised; a vocabulary of our own gets a `[MASK]` behind its last word."""
    return UniterEncoder(settings, image_dim, vocabulary_size + (not settings.tokenizer))


_RENAMED = {
    "bert.": "uniter.",
    ".gamma": ".weight",
    ".beta": ".bias",
    "uniter.embeddings.": "text.",
    "word_embeddings": "word",
    "position_embeddings": "position",
    "token_type_embeddings": "kind",
    "uniter.img_embeddings.": "image.",
    "img_linear": "region",
    "pos_linear": "box",
    "img_layer_norm": "region_norm",
    "pos_layer_norm": "box_norm",
    "uniter.encoder.layer.": "layers.",
    "attention.self.": "",
    "attention.output.LayerNorm": "attention_norm",
    "attention.output.dense": "output",
    "intermediate.dense": "feed_forward.0",
    "output.dense": "feed_forward.2",
    "output.LayerNorm": "feed_forward_norm",
    "uniter.pooler.dense": "pooler",
    "itm_output": "match",
    "rank_output": "rank",
    "disc_output": "word_match",
    "cls.predictions": "masked_word",
    "correction_output.predictions": "correction",
    "transform.dense": "transform",
    "transform.LayerNorm": "norm",
    "LayerNorm": "norm",
}
"""Parts of published names -> ours, replaced one after the other."""
_OPTIONAL = ("match", "rank", "word_match", "masked_word", "correction", "image")
"""Parts that a file may lack; the last one is what BERT lacks."""


def load_published(model: UniterEncoder, path: Path) -> str:
    """Gives a model published weights, and says in one line which of its parts they have not.

    Heads that a file lacks start from others where UNITER or TAGS does so (see `UniterEncoder.derive_heads`); whether
    it has a rank head is told by `rank_output.weight`.

    Args:
        model: of the sizes that the file has.
        path: of UNITER, TAGS or BERT.

    Raises:
        DataError: the file is damaged, has other sizes than the model, lacks a part of the encoder, or holds values
            that are not finite.
    """
    state = read_state(path)
    try:
        missing, unused = model.load_state_dict(translate(state), strict=False)
    except RuntimeError as error:
        other = str(error).splitlines()[1].strip()
        raise DataError(f"{path}: {other}; give --set model.… of that file, its features and its tokens") from None
    for name in missing:
        if not name.startswith(_OPTIONAL):
            raise DataError(
                f"{path} has no weights for '{name}': it is not of UNITER, TAGS or BERT with so many layers"
            )
    for name in unused:
        if name.startswith("layers."):
            raise DataError(f"{path} has weights for '{name}', which this model has not; raise --set model.layers")
    refuse_not_finite(path, model, "get the file again")
    absent = {name.partition(".")[0] for name in missing}
    model.derive_heads(absent)
    ignored = [name for name in state if _own_name(name) in unused]
    told = f"; not used: {len(ignored)} weights such as '{ignored[0]}'" if ignored else ""
    return f"{path}: not in this file: {', '.join(sorted(absent)) or 'nothing'}{told}"


def translate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published weights under our names, query, key and value joined; those that stand for nothing here among them."""
    found = {_own_name(name): tensor for name, tensor in state.items()}
    for name in list(found):
        parts = [name.replace("query", part) for part in ("query", "key", "value")]
        if ".query." in name and found.keys() >= set(parts):
            found[name.replace("query", "project")] = torch.cat([found.pop(part) for part in parts])
    return found


def _own_name(name: str) -> str:
    name = name.removeprefix("module.")
    for theirs, ours in _RENAMED.items():
        name = name.replace(theirs, ours)
    return name
