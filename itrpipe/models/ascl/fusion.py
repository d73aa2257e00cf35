"""The cross-modal fusion of AsCL: attention between regions and words with several heads, and the score of a pair.

Regions look at words and words at regions; each finds a vector of the other side (Eq. 1):

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

This file has the equations for aligned pairs; `itrpipe.models.ascl.tiles` computes all pairs.

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion". The gate, and the variant without matrices, are in the code of their later method ACF-R only.

Shapes: N pairs, R regions, W words, D width, H heads, d = D / H; Q queries over S context vectors.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from itrpipe.models.cross_attention import NORM_EPSILON
from itrpipe.models.vectors import at_least_single

Variant = Literal["paper", "released"]

RELEASED_SCALES = {"to_words": 4.0, "to_regions": 9.0}
"""Fixed factors of the products that replace 1 / sqrt(d) in the released code."""


class CrossModalFusion(nn.Module):
    """Scores of image-caption pairs.

    Args:
        width: D.
        heads: H, a divisor of D.
        variant: `paper`, or `released`: heads are slices of the vectors themselves, without matrices, and the products
            have fixed factors.
        u1: share of the local score.
    """

    def __init__(self, width: int, heads: int, variant: Variant, u1: float) -> None:
        super().__init__()
        scales = RELEASED_SCALES if variant == "released" else dict.fromkeys(RELEASED_SCALES)
        self.u1 = u1
        self.to_words, self.to_regions = (HeadedAttention(width, heads, scale) for scale in scales.values())
        self.global_text, self.global_regions = nn.Linear(width, width), nn.Linear(width, width)
        self.gate = nn.Linear(2 * width, width)

    def score_pairs(
        self, regions: Tensor, count: Tensor | None, whole: Tensor, words: Tensor, lengths: Tensor
    ) -> Tensor:
        """Scores [N] of image k with caption k.

        Args:
            regions: [N, R, D].
            count: [N] real regions per image, or None where all are real. What lies past it has no influence.
            whole: [N, D] V_g2.
            words: [N, W, D].
            lengths: [N] words per caption. What lies past them has no influence.
        """
        real_regions, real_words = real_places(regions, count), real_places(words, lengths)
        regions, words = cleared(regions, real_regions), cleared(words, real_words)
        found_words = self.to_words(regions, words, real_words)  # [N, R, D]
        found_regions = self.to_regions(words, regions, real_regions)  # [N, W, D]
        of_regions = mean_of_real(_cosine(regions, found_words)[..., None], real_regions)[:, 0]
        of_words = mean_of_real(_cosine(words, found_regions)[..., None], real_words)[:, 0]
        text = self.global_text(mean_of_real(found_words, real_regions))
        seen = self.global_regions(mean_of_real(found_regions, real_words))
        gate = torch.sigmoid(self.gate(torch.cat([whole, seen], dim=-1)))
        return self.combined((of_regions + of_words) / 2, gate, whole, seen, text)

    def combined(self, local: Tensor, gate: Tensor, whole: Tensor, seen: Tensor, text: Tensor) -> Tensor:
        """S [...] of S_local [...], t, V_g2, V_g1 and W_g [..., D] (Eq. 3 and 4)."""
        return self.u1 * local + (1 - self.u1) * _cosine(_gated(gate, whole, seen), text)


class HeadedAttention(nn.Module):
    """Queries of one side look at the vectors of the other (Eq. 1).

    Args:
        width: D.
        heads: H.
        scale: factor of the products of a variant without matrices; None for the paper's matrices and 1 / sqrt(d).

    Attributes:
        query, key, output: [D, D] Z^X, Z^Y and Z^O, the heads side by side, applied from the right; identities in the
            variant without.
        heads, scale: H, and the factor of the products.
    """

    query: Tensor
    key: Tensor
    output: Tensor

    def __init__(self, width: int, heads: int, scale: float | None) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5 if scale is None else scale
        for name in ("query", "key", "output"):
            if scale is None:
                setattr(self, name, nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width))))
            else:
                self.register_buffer(name, torch.eye(width), persistent=False)

    def forward(self, queries: Tensor, context: Tensor, real: Tensor) -> Tensor:
        """Vectors [N, Q, D] that queries [N, Q, D] find in a context [N, S, D], of which `real` bool [N, S] count."""
        asked, keys = self._split(queries @ self.query), self._split(context @ self.key)  # [N, H, Q, d], [N, H, S, d]
        products = self.scale * asked @ keys.transpose(2, 3)  # [N, H, Q, S]
        weights = products.masked_fill(~real[:, None, None], float("-inf")).softmax(dim=-1)
        return (weights @ keys).transpose(1, 2).flatten(2) @ self.output

    def _split(self, vectors: Tensor) -> Tensor:
        return vectors.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def real_places(vectors: Tensor, count: Tensor | None) -> Tensor:
    """Which of the vectors [N, S, D] are real, bool [N, S]: the first `count` [N] of each item, or all for None."""
    places = torch.arange(vectors.shape[1], device=vectors.device)
    return (places < (vectors.shape[1] if count is None else count[:, None])).expand(len(vectors), -1)


def cleared(vectors: Tensor, real: Tensor) -> Tensor:
    """The vectors [N, S, D] in at least single precision, with zeros where they are not `real` [N, S]."""
    return at_least_single(vectors).masked_fill(~real[..., None], 0.0)


def mean_of_real(vectors: Tensor, real: Tensor) -> Tensor:
    """Mean [N, D] of the `real` [N, S] ones of [N, S, D]."""
    return vectors.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1, keepdim=True)


def cosine_of(inner: Tensor, squared: Tensor) -> Tensor:
    """Cosines from inner products and the products of the squared lengths.

    A vector of no length, such as a word that noise has cut off, has cosine zero; its gradient is passed on unscaled.
    """
    return inner * squared.masked_fill(squared <= NORM_EPSILON**2, 1.0).rsqrt()


def _gated(gate: Tensor, whole: Tensor, seen: Tensor) -> Tensor:
    return seen + gate * (whole - seen)


def _cosine(left: Tensor, right: Tensor) -> Tensor:
    inner = (left * right).sum(dim=-1)
    return cosine_of(inner, left.square().sum(dim=-1) * right.square().sum(dim=-1))
