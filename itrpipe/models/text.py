"""The caption encoders of VSE++ and VSRN, a vector per caption, and of SCAN and BFAN, a vector per word: GRUs."""

from __future__ import annotations

from torch import Tensor, nn

from itrpipe.models.base import TextBatch, l2_normalise, unit_vectors
from itrpipe.models.recurrent import last_states, pack, unpack
from itrpipe.models.vectors import at_least_single


class GruTextEncoder(nn.Module):
    """Words to one unit vector per caption: the hidden state of the last token.

    Captions are packed: the GRU then skips padding altogether.

    Args:
        vocabulary_size: number of token ids, specials included.
        word_dim: width of the word embedding.
        embed_dim: width D of the caption vector.

    Source: VSE++ §3.1; initialisation as in its published code.
    """

    def __init__(self, vocabulary_size: int, word_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        self.rnn = nn.GRU(word_dim, embed_dim, batch_first=True)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, texts: TextBatch) -> Tensor:
        """Caption vectors [T, D] of unit length, in the order of the batch."""
        packed = pack(self.embed(texts.tokens), texts.host_lengths)
        return l2_normalise(at_least_single(last_states(self.rnn, packed)), dim=-1)


class BiGruWordEncoder(nn.Module):
    """Words to unit vectors in their context, the two directions of the GRU averaged.

    Captions are packed, so that the backward direction starts at the last real token of each.

    Args:
        vocabulary_size: number of token ids, specials included.
        word_dim: width of the word embedding.
        embed_dim: width D of the word vectors.

    Source: SCAN, its text representation; initialisation as in its published code.
    """

    def __init__(self, vocabulary_size: int, word_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, word_dim)
        self.rnn = nn.GRU(word_dim, embed_dim, batch_first=True, bidirectional=True)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, texts: TextBatch) -> Tensor:
        """Word vectors [T, W, D] in the order of the batch: unit length up to the caption's length, then zero."""
        packed = pack(self.embed(texts.tokens), texts.host_lengths)
        states = unpack(self.rnn(packed)[0], texts.tokens.shape[1])
        forward, backward = at_least_single(states).chunk(2, dim=-1)  # [T, W, D] each
        return unit_vectors((forward + backward) / 2)
