"""VSE++: mean-pooled image regions and a GRU over words, compared by cosine or by order violation.

Its GRU skips padding: captions are packed. VSRN has the same text encoder.

Source: Faghri et al., "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives", BMVC 2018. Published
for one vector per image; on region features the regions are averaged first, as later papers do.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, invert_permutation, pack_padded_sequence

from itrpipe.engine.work import to_device
from itrpipe.features.embeddings import INNER_PRODUCT, ORDER
from itrpipe.models.base import (
    EmbeddingModel,
    ImageBatch,
    ImageEncoding,
    TextBatch,
    TextEncoding,
    at_least_single,
    l2_normalise,
    mean_of_first,
    real_count,
)
from itrpipe.models.vsepp.declaration import Vsepp

_ORDER_TILE_VALUES = 1 << 24
"""Largest number of values in one [b, T, D] tile of order violations: 64 MiB in single precision."""


def image_projection(image_dim: int, embed_dim: int) -> nn.Linear:
    """Make the layer from region features to the joint space; weights uniform in +-sqrt(6 / (in + out)), bias 0."""
    projection = nn.Linear(image_dim, embed_dim)
    nn.init.xavier_uniform_(projection.weight)
    nn.init.zeros_(projection.bias)
    return projection


def order_scores(images: Tensor, texts: Tensor) -> Tensor:
    """Compute -||max(0, text - image)||_2 over the last axis, with broadcasting, in single precision at least.

    The gradient where a caption violates nothing is zero; a bare square root would make it NaN there.

    Source: Order embeddings (Vendrov et al., ICLR 2016), Eq. 2, as used in VSE++ §4.6.
    """
    violations = (at_least_single(texts) - at_least_single(images)).clamp(min=0)
    return -torch.linalg.vector_norm(violations, dim=-1)


def pack_captions(words: Tensor, lengths: Tensor) -> PackedSequence:
    """Pack sequences [T, W, D] of lengths [T], which lie on the host, in any order; see `pack_padded_sequence`."""
    lengths, order = lengths.sort(descending=True)
    orders = torch.stack([order, invert_permutation(order)])  # pyright: ignore[reportArgumentType]
    order, inverse = to_device(orders, words.device)  # in one copy
    packed = pack_padded_sequence(words.index_select(0, order), lengths, batch_first=True)
    return PackedSequence(packed.data, packed.batch_sizes, order, inverse)


def gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> Tensor:
    """Compute the next state [b, H] of a GRU from the two halves of its gates.

    Args:
        from_input: [b, 3H] W_ih x + b_ih, gates in the order reset, update, new.
        from_hidden: [b, 3H] W_hh h + b_hh, same order.
        hidden: [b, H] the state h before the step.
    """
    width = hidden.shape[1]
    gates_in, new_in = from_input.split([2 * width, width], dim=1)
    gates_hidden, new_hidden = from_hidden.split([2 * width, width], dim=1)
    reset, update = torch.sigmoid(gates_in + gates_hidden).chunk(2, dim=1)
    new = torch.tanh(new_in + reset * new_hidden)
    return torch.lerp(new, hidden, update)


def last_states(rnn: nn.GRU, packed: PackedSequence) -> Tensor:
    """Compute the states [T, H] of a one-directional, one-layer GRU after the last item of each sequence.

    On a CPU PyTorch's own loop takes every step's rows out of the packed input one by one, and the gradient of
    each is as large as all of them. Here they are split once. A GPU runs cuDNN.

    Args:
        rnn: the GRU.
        packed: T sequences of width D, of any lengths.
    """
    if packed.data.is_cuda:
        _, last_hidden = rnn(packed)
        return last_hidden[0]
    weight_ih, weight_hh, bias_ih, bias_hh = rnn.parameters()
    gates = F.linear(packed.data, weight_ih, bias_ih)  # [P, 3H]
    sizes = packed.batch_sizes.tolist()
    hidden = gates.new_zeros(sizes[0], rnn.hidden_size)
    finished = []
    for size, from_input in zip(sizes, gates.split(sizes), strict=True):
        if size < len(hidden):
            hidden, ended = hidden.split([size, len(hidden) - size])
            finished.append(ended)
        from_hidden = F.linear(hidden, weight_hh, bias_hh)
        hidden = gru_step(from_input, from_hidden, hidden)
    states = torch.cat([hidden, *reversed(finished)])  # longest first
    return states.index_select(0, packed.unsorted_indices)  # pyright: ignore[reportArgumentType]


class GruTextEncoder(nn.Module):
    """Words to one unit vector per caption: the hidden state of the last token.

    Args:
        vocabulary_size: number of token ids, specials included.
        word_dim: width of the word embedding.
        embed_dim: width D of the caption vector.

    Attributes:
        bidirectional: whether its GRU reads captions in both directions.

    Source: VSE++ §3.1; initialisation as in its published code.
    """

    bidirectional = False

    def __init__(self, vocabulary_size: int, word_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        self.rnn = nn.GRU(word_dim, embed_dim, batch_first=True, bidirectional=self.bidirectional)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, texts: TextBatch) -> Tensor:
        """Encode captions as vectors [T, D] of unit length, in the order of the batch."""
        packed = pack_captions(self.embed(texts.tokens), texts.host_lengths)
        states = last_states(self.rnn, packed)
        return l2_normalise(at_least_single(states), dim=-1)


class VseppEncoder(EmbeddingModel):
    """VSE++ with mean-pooled regions.

    Args:
        settings: the options of the model.
        image_dim: width D_in of the region features.
        vocabulary_size: number of token ids.
    """

    def __init__(self, settings: Vsepp, image_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.measure = INNER_PRODUCT if settings.measure == "cosine" else ORDER
        self.fc = image_projection(image_dim, settings.embed_dim)
        self.text = GruTextEncoder(vocabulary_size, settings.word_dim, settings.embed_dim)

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Encode images as vectors [B, D]; regions are averaged over the real rows only."""
        features = mean_of_first(images.regions.float(), real_count(images))  # [B, D_in]
        embedding = at_least_single(self.fc(features))  # [B, D]
        if self.settings.image_norm:
            embedding = l2_normalise(embedding, dim=-1)
        if self.settings.absolute_values:
            embedding = embedding.abs()
        return ImageEncoding(embedding)

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Encode captions as vectors [T, D] of unit length."""
        embedding = self.text(texts)
        if self.settings.absolute_values:
            embedding = embedding.abs()
        return TextEncoding(embedding)

    def score_matrix(self, images: ImageEncoding, texts: TextEncoding) -> Tensor:
        """Score [B, T] all pairs; order violations are computed in tiles of images, since each pair needs D values."""
        if self.measure == INNER_PRODUCT:
            return super().score_matrix(images, texts)
        rows = max(1, _ORDER_TILE_VALUES // texts.embedding.numel())
        tiles = images.embedding.split(rows)
        return torch.cat([order_scores(tile[:, None], texts.embedding) for tile in tiles])

    def score_pairs(self, images: ImageEncoding, texts: TextEncoding) -> Tensor:
        """Score [B] image k with caption k."""
        if self.measure == INNER_PRODUCT:
            return super().score_pairs(images, texts)
        return order_scores(images.embedding, texts.embedding)


build = VseppEncoder
