"""The Transformer encoder layer, with a mask of its own for every sequence.

Source: Vaswani et al., 2017, in the form of BERT (Devlin et al., NAACL 2019): layer norm after each residual, GELU.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


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
        self.heads, self.dropout = heads, dropout
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
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self._projected(states, projected, first)
        )
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=allowed, dropout_p=dropout)
        attended = self.output(attended.transpose(1, 2).reshape(batch, -1, width))
        states = self.attention_norm(states[:, :first] + F.dropout(attended, self.dropout, self.training))
        forwarded = F.dropout(self.feed_forward(states), self.dropout, self.training)
        return self.feed_forward_norm(states + forwarded)

    def _projected(self, states: Tensor, projected: Tensor | None, first: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, first, d], keys and values [B, n, d]."""
        if projected is None and first is not None:
            width = states.shape[-1]
            weight, bias = self.project.weight, self.project.bias
            queries = F.linear(states[:, :first], weight[:width], bias[:width])
            keys, values = F.linear(states, weight[width:], bias[width:]).chunk(2, dim=-1)
            return queries, keys, values
        queries, keys, values = (self.project(states) if projected is None else projected).chunk(3, dim=-1)
        return queries[:, :first], keys, values


def initialise(module: nn.Module, deviation: float = 0.02) -> None:
    """BERT's initial weights: normal with this standard deviation, biases zero; layer norms stay 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
