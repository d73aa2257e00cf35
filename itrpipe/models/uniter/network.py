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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itrpipe.encoders.encoder import refuse_not_finite
from itrpipe.errors import DataError
from itrpipe.features.weights import read_state
from itrpipe.models.base import SCORERS, ImageBatch, Matcher, RegionEncoding, TextBatch, WordEncoding, boxes_of
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

    by_rows = SCORERS | {"read_at": (2, 3)}

    def __init__(self, settings: Uniter, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.settings = settings
        width = settings.embed_dim
        self.text = TextEmbedding(width, settings.max_words, vocabulary_size)
        self.image = RegionEmbedding(width, image_dim)
        inner = settings.feed_forward_dim
        self.layers = EncoderLayers(settings.layers, width, settings.heads, inner, settings.dropout, NORM_EPSILON)
        self.pooler = nn.Linear(width, width)
        self.match = nn.Linear(width, 2)
        self.rank = nn.Linear(width, 1)
        self.word_match = nn.Linear(width, 2)
        self.masked_word = TokenHead(width, vocabulary_size)
        self.correction = TokenHead(width, vocabulary_size)
        initialise(self, settings.initial_deviation)
        self.derive_heads({"rank", "word_match", "correction"})

    def derive_heads(self, heads: set[str]) -> None:
        """Start heads from others: `rank` and `word_match` from `match`, `correction` from `masked_word`."""
        match = self.match.state_dict()
        if "rank" in heads:
            self.rank.load_state_dict({name: tensor[1:] for name, tensor in match.items()})
        if "word_match" in heads:
            self.word_match.load_state_dict(match)
        if "correction" in heads:
            self.correction.load_state_dict(self.masked_word.state_dict())

    def undecayed(self) -> set[str]:
        """Return biases and scales of layer norms, but for the scales of the projected features and boxes.

        The published optimiser knows layer norms by their names, and does not know these two.
        """
        return super().undecayed() - {"image.region_norm.weight", "image.box_norm.weight"}

    def encode_images(self, images: ImageBatch) -> RegionEncoding:
        """Embed regions and their boxes, before dropout; the count is always given.

        Raises:
            DataError: the features have no boxes.
        """
        regions = self.image(images.regions.float(), boxes_of(images), self.text.kind.weight[1])
        count = images.count
        if count is None:
            count = torch.full((len(regions),), regions.shape[1], device=regions.device)
        return RegionEncoding(regions, count)

    def encode_texts(self, texts: TextBatch) -> WordEncoding:
        """Embed words with their positions.

        Raises:
            DataError: a caption is longer than the model has positions.
        """
        return WordEncoding(self.text(texts.tokens), texts.lengths)

    def score_matrix(self, images: RegionEncoding, texts: WordEncoding) -> Tensor:
        """Score [B, T] every image with every caption, float32."""
        num_images = len(images.regions)
        pairs = torch.cartesian_prod(torch.arange(num_images), torch.arange(len(texts.lengths)))
        image_rows, text_rows = pairs.T
        return self.score_at(images, texts, image_rows, text_rows).view(num_images, -1)

    def score_pairs(self, images: RegionEncoding, texts: WordEncoding) -> Tensor:
        """Score [N] image k with caption k, float32."""
        rows = torch.arange(len(images.regions))
        return self.score_at(images, texts, rows, rows)

    def score_at(self, images: RegionEncoding, texts: WordEncoding, image_rows: Tensor, text_rows: Tensor) -> Tensor:
        """Score [N] pairs of any images and captions, float32.

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
        max_words = texts.words.shape[1]
        max_regions = images.regions.shape[1]
        vectors = torch.cat([texts.words.flatten(0, 1), images.regions.flatten(0, 1)])  # [T W + B R, d]
        first_region = texts.words.shape[:2].numel()
        # Without dropout in between, the first layer looks at every word and region once, however many pairs it is in.
        projected = None
        if not self.training or not dropout:
            projected = self.layers.project(vectors)

        order = []
        results = []
        for rows, length, is_padded in self._tiles(images.count, texts.lengths, image_rows, text_rows):
            image = image_rows[rows].to(vectors.device)[:, None]  # [n, 1]
            text = text_rows[rows].to(vectors.device)[:, None]
            num_words = texts.lengths[text]
            position = torch.arange(length, device=vectors.device)
            is_word = position < num_words
            is_real = position < num_words + images.count[image]
            word_index = text * max_words + position
            region_index = first_region + image * max_regions + position - num_words
            index = torch.where(is_word, word_index, region_index)  # [n, L] rows of the vectors
            index = index.masked_fill(~is_real, 0)

            states = F.dropout(F.embedding(index, vectors), dropout, self.training)
            projected_states = None
            if projected is not None:
                projected_states = F.embedding(index, projected)
            allowed = None
            if is_padded:
                allowed = is_real[:, None, None]
            states = self.layers(states, allowed, projected_states, first)
            states = F.pad(states, (0, 0, 0, first - states.shape[1]))
            results.append(read(states))
            order.append(rows)
        result = torch.cat(results)
        return result[torch.cat(order).argsort().to(result.device)]

    def rank_score(self, start: Tensor) -> Tensor:
        """Score [N] pairs by the last states [N, d] of their first position."""
        return self.pair_logits(start, self.rank).squeeze(-1)

    def pair_logits(self, start: Tensor, head: nn.Linear) -> Tensor:
        """Apply `rank` or `match`, whose second logit is a match, to the last states [N, d] of the first position.

        In single precision: bfloat16 would make ties of scores.
        """
        with torch.autocast(start.device.type, enabled=False):
            return head(torch.tanh(self.pooler(start.float())))

    def masked_word_logits(self, states: Tensor) -> Tensor:
        """Compute logits [..., V] of last states [..., d] of words: what stands there."""
        return self.masked_word(states, self.text.word.weight)

    def word_match_logits(self, states: Tensor) -> Tensor:
        """Compute logits [..., 2] of last states [..., d] of words; 1 is a word that belongs to the image."""
        return self.word_match(states)

    def correction_logits(self, states: Tensor) -> Tensor:
        """Compute logits [..., V] of last states [..., d] of words: what should stand there."""
        return self.correction(states, self.text.word.weight)

    def _tiles(
        self,
        count: Tensor,
        lengths: Tensor,
        image_rows: Tensor,
        text_rows: Tensor,
    ) -> Iterator[tuple[Tensor, int, bool]]:
        """Yield pairs in the order of their length: their numbers [n], the longest length, whether others are shorter.

        A tile ends where it is full, or where over a tenth of a sequence would be padding, unless it is small then.
        """
        regions = count.cpu()[image_rows.cpu()]
        words = lengths.cpu()[text_rows.cpu()]
        sizes, order = (regions + words).sort(stable=True, descending=True)
        tokens = _TILE_SIZES[count.device.type] // self.settings.embed_dim
        start = 0
        while start < len(order):
            longest = int(sizes[start])
            most = max(1, tokens // longest)
            similar_stop = int((sizes >= 0.9 * longest).sum())
            smallest_stop = start + most // 8 + 1
            stop = min(len(order), start + most, max(similar_stop, smallest_stop))
            yield order[start:stop], longest, int(sizes[stop - 1]) < longest
            start = stop


class TextEmbedding(nn.Module):
    """Words by token, position and kind of sequence, normalised.

    Attributes:
        max_tokens: longest caption in tokens that there are positions for.
    """

    def __init__(self, width: int, positions: int, vocabulary_size: int) -> None:
        super().__init__()
        self.max_tokens = positions
        self.word = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(positions, width)
        self.kind = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed ids [T, W] as [T, W, d].

        Raises:
            DataError: a caption has more words than there are positions.
        """
        count = tokens.shape[1]
        if count > self.max_tokens:
            raise DataError(
                f"a caption has {count} tokens and the model {self.max_tokens} positions; raise --set max_words"
            )
        states = self.word(tokens) + self.position.weight[:count] + self.kind.weight[0]
        return self.norm(states)


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
        """Embed features [B, R, D_in], with boxes [B, R, 4] where they are read, as [B, R, d].

        `kind` [d] is added to all.
        """
        states = self.region_norm(self.region(features))
        if boxes is not None:
            sides = boxes[..., 2:] - boxes[..., :2]
            areas = sides.prod(dim=-1, keepdim=True)
            numbers = torch.cat([boxes, sides, areas], dim=-1)  # [B, R, 7]
            states = states + self.box_norm(self.box(numbers))
        if kind is not None:
            states = states + kind
        return self.norm(states)


class TokenHead(nn.Module):
    """Logits of the token that a state stands for: a layer, then the word embeddings with a bias."""

    def __init__(self, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Compute logits [..., V] of states [..., d] and word embeddings [V, d]."""
        states = self.norm(F.gelu(self.transform(states)))
        return F.linear(states, words, self.bias)


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
        self,
        states: Tensor,
        allowed: Tensor | None,
        projected: Tensor | None = None,
        first: int | None = None,
    ) -> Tensor:
        """Compute the next states [B, n, d], or [B, first, d].

        Args:
            states: [B, n, d].
            allowed: bool [B, 1, n, n] or broadcastable; query (row) may look at key (column). Every row needs one.
                None allows everything.
            projected: [B, n, 3d] `project(states)`, where it is known already.
            first: compute the next states of the first so many positions only; they still look at all.
        """
        batch, _, width = states.shape
        if projected is not None:
            queries, keys, values = projected.chunk(3, dim=-1)
            queries = queries[:, :first]
        elif first is None:
            queries, keys, values = self.project(states).chunk(3, dim=-1)
        else:
            weight = self.project.weight
            bias = self.project.bias
            queries = F.linear(states[:, :first], weight[:width], bias[:width])
            keys_and_values = F.linear(states, weight[width:], bias[width:])
            keys, values = keys_and_values.chunk(2, dim=-1)

        def by_head(vectors: Tensor) -> Tensor:  # [B, heads, n, d / heads]
            return vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            by_head(queries), by_head(keys), by_head(values), attn_mask=allowed, dropout_p=dropout
        )
        attended = self.output(attended.transpose(1, 2).reshape(batch, -1, width))
        states = self.attention_norm(states[:, :first] + F.dropout(attended, self.dropout, self.training))
        forwarded = F.dropout(self.feed_forward(states), self.dropout, self.training)
        return self.feed_forward_norm(states + forwarded)


class EncoderLayers(nn.ModuleList):
    """Layers one behind the other.

    Args:
        count: how many.
        width, heads, inner, dropout, epsilon: see `EncoderLayer`.
    """

    def __init__(self, count: int, width: int, heads: int, inner: int, dropout: float, epsilon: float = 1e-5) -> None:
        super().__init__(EncoderLayer(width, heads, inner, dropout, epsilon) for _ in range(count))

    @property
    def project(self) -> nn.Linear:
        """Return the projection of the first layer: of states that many sequences share it can be computed once."""
        return self[0].project  # pyright: ignore[reportReturnType]

    def forward(
        self,
        states: Tensor,
        allowed: Tensor | None = None,
        projected: Tensor | None = None,
        first: int | None = None,
    ) -> Tensor:
        """Compute last states [B, n, d], or those [B, first, d] of the first positions; see `EncoderLayer`."""
        *earlier, last = self
        for layer in earlier:
            states = layer(states, allowed, projected)
            projected = None
        return last(states, allowed, projected, first)


def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """Draw BERT's initial weights: normal with this standard deviation, biases zero; layer norms stay 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def build(settings: Uniter, image_dim: int, vocabulary_size: int) -> UniterEncoder:
    """Make the model, freshly initialised; a vocabulary of our own gets a `[MASK]` behind its last word."""
    if not settings.tokenizer:
        vocabulary_size += 1
    return UniterEncoder(settings, image_dim, vocabulary_size)


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


def load_published(model: UniterEncoder, path: Path) -> str:
    """Give a model published weights, and say in one line which of its parts they have not.

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
        reason = str(error).splitlines()[1].strip()
        raise DataError(f"{path}: {reason}; give --set model.… of that file, its features and its tokens") from None
    optional = ("match", "rank", "word_match", "masked_word", "correction", "image")  # the last one is what BERT lacks
    for name in missing:
        if not name.startswith(optional):
            raise DataError(
                f"{path} has no weights for '{name}': it is not of UNITER, TAGS or BERT with so many layers"
            )
    for name in unused:
        if name.startswith("layers."):
            raise DataError(f"{path} has weights for '{name}', which this model has not; raise --set model.layers")
    refuse_not_finite(path, model, "get the file again")
    missing_parts = {name.partition(".")[0] for name in missing}
    model.derive_heads(missing_parts)
    message = f"{path}: not in this file: {', '.join(sorted(missing_parts)) or 'nothing'}"
    ignored = [name for name in state if _rename(name) in unused]
    if ignored:
        message += f"; not used: {len(ignored)} weights such as '{ignored[0]}'"
    return message


def translate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return published weights under our names, query, key and value joined; those without use here among them."""
    renamed = {_rename(name): tensor for name, tensor in state.items()}
    for name in list(renamed):
        parts = [name.replace("query", part) for part in ("query", "key", "value")]
        if ".query." in name and renamed.keys() >= set(parts):
            tensors = [renamed.pop(part) for part in parts]
            renamed[name.replace("query", "project")] = torch.cat(tensors)
    return renamed


def _rename(name: str) -> str:
    name = name.removeprefix("module.")
    for theirs, ours in _RENAMED.items():
        name = name.replace(theirs, ours)
    return name
