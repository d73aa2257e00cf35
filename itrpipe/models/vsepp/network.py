"""VSE++: mean-pooled image regions and a GRU over words, compared by cosine or by order violation.

Source: Faghri et al., "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives", BMVC 2018. Published
for one vector per image; on region features the regions are averaged first, as later papers do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from itrpipe.features.embeddings import INNER_PRODUCT, ORDER
from itrpipe.models.base import (
    DualEncoder,
    ImageBatch,
    ImageEncoding,
    TextBatch,
    TextEncoding,
    l2_normalise,
    smallest_count,
)
from itrpipe.models.text import GruTextEncoder
from itrpipe.models.vectors import at_least_single, mean_of_first
from itrpipe.models.vsepp.declaration import Vsepp

_ORDER_TILE_VALUES = 1 << 24
"""Largest number of values in one [b, T, D] tile of order violations: 64 MiB in single precision."""


def image_projection(image_dim: int, embed_dim: int) -> nn.Linear:
    """Linear layer from region features to the joint space; weights uniform in +-sqrt(6 / (in + out)), bias 0."""
    projection = nn.Linear(image_dim, embed_dim)
    bound = math.sqrt(6.0 / (image_dim + embed_dim))
    nn.init.uniform_(projection.weight, -bound, bound)
    nn.init.zeros_(projection.bias)
    return projection


def mean_of_regions(images: ImageBatch) -> Tensor:
    """Mean [B, D_in] over the real regions of each image, in single precision."""
    full = smallest_count(images) == images.regions.shape[1]
    return mean_of_first(images.regions.float(), None if full else images.count)


def order_scores(images: Tensor, texts: Tensor) -> Tensor:
    """-||max(0, text - image)||_2 over the last axis, with broadcasting, in single precision at least.

    The gradient where a caption violates nothing is zero; a bare square root would make it NaN there.

    Source: Order embeddings (Vendrov et al., ICLR 2016), Eq. 2, as used in VSE++ §4.6.
    """
    return -torch.linalg.vector_norm((at_least_single(texts) - at_least_single(images)).clamp(min=0), dim=-1)


class VseppEncoder(DualEncoder):
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
        """Embeddings [B, D]; regions are averaged over the real rows only."""
        embedding = at_least_single(self.fc(mean_of_regions(images)))  # [B, D]
        if self.settings.image_norm:
            embedding = l2_normalise(embedding, dim=-1)
        return ImageEncoding(embedding.abs() if self.settings.absolute_values else embedding)

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        """Embeddings [T, D] of unit length."""
        embedding = self.text(texts)
        return TextEncoding(embedding.abs() if self.settings.absolute_values else embedding)

    def score_matrix(self, images: ImageEncoding, texts: TextEncoding) -> Tensor:
        """Scores [B, T]; order violations are computed in tiles of images, since each pair needs D values."""
        if self.settings.measure == "cosine":
            return super().score_matrix(images, texts)
        rows = max(1, _ORDER_TILE_VALUES // texts.embedding.numel())
        tiles = [order_scores(tile[:, None], texts.embedding) for tile in images.embedding.split(rows)]
        return torch.cat(tiles)

    def score_pairs(self, images: ImageEncoding, texts: TextEncoding) -> Tensor:
        """Scores [B] of image k with caption k."""
        if self.settings.measure == "cosine":
            return super().score_pairs(images, texts)
        return order_scores(images.embedding, texts.embedding)


def build(settings: Vsepp, image_dim: int, vocabulary_size: int) -> DualEncoder:
    """Make a VSE++ model with fresh weights."""
    return VseppEncoder(settings, image_dim, vocabulary_size)
