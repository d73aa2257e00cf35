"""Region features as tokens: each with its box, then a small Transformer over those of an image.

Shapes: B images, R regions, D_in width of their features, d model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.models.base import ImageBatch, smallest_count
from itrpipe.models.transformer import EncoderLayer, initialise
from itrpipe.models.vectors import mean_of_first

NORM_EPSILON = 1e-12
"""Epsilon of every layer norm, as in BERT."""
BOX_NUMBERS = 7
"""x0, y0, x1, y1, width, height and area of a region, as fractions of the image."""


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
        self.box = nn.Linear(BOX_NUMBERS, width) if boxes else None
        self.region_norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.box_norm = nn.LayerNorm(width, eps=NORM_EPSILON) if boxes else None
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)

    def forward(self, features: Tensor, boxes: Tensor | None, kind: Tensor | None = None) -> Tensor:
        """[B, R, D_in] features with boxes [B, R, 4], where they are read, to [B, R, d]; `kind` [d] is added to all."""
        states = self.region_norm(self.region(features))
        if self.box is not None:
            assert boxes is not None
            assert self.box_norm is not None
            sides = boxes[..., 2:] - boxes[..., :2]
            numbers = torch.cat([boxes, sides, sides.prod(dim=-1, keepdim=True)], dim=-1)  # [B, R, 7]
            states = states + self.box_norm(self.box(numbers))
        return self.norm(states if kind is None else states + kind)


class RegionTower(nn.Module):
    """One vector of an image's regions.

    Args:
        image_dim: D_in.
        width: d, a multiple of `heads`.
        heads, layers: of the Transformer.
        pool: `mean` of the regions, or `cls`: a class token before them.
        boxes: whether the features have boxes.

    Attributes:
        width, pool: as given.
    """

    def __init__(self, image_dim: int, width: int, heads: int, layers: int, pool: str, boxes: bool) -> None:
        super().__init__()
        self.width, self.pool = width, pool
        self.embedding = RegionEmbedding(width, image_dim, boxes)
        self.start = nn.Parameter(torch.zeros(1, 1, width)) if pool == "cls" else None
        self.layers = nn.ModuleList(EncoderLayer(width, heads, 4 * width, 0.0, NORM_EPSILON) for _ in range(layers))
        initialise(self)
        if self.start is not None:
            nn.init.normal_(self.start, std=0.02)

    @property
    def boxes(self) -> bool:
        """Whether it reads the boxes of regions."""
        return self.embedding.box is not None

    def forward(self, images: ImageBatch) -> Tensor:
        """Returns vectors [B, d]; what is behind the number of an image's regions plays no part.

        Raises:
            DataError: the images have no boxes and the model was trained with some, or an image has no region.
        """
        if self.boxes and images.boxes is None:
            raise DataError(
                "this model was trained on features with boxes, which these have not; extract them as those were"
            )
        full = smallest_count(images) == images.regions.shape[1]
        boxes = images.boxes.float() if self.boxes and images.boxes is not None else None
        states, count = self.embedding(images.regions.float(), boxes), None if full else images.count
        if self.start is not None:
            states = torch.cat([self.start.expand(len(states), 1, -1), states], dim=1)
            count = None if count is None else count + 1
        allowed = None
        if count is not None:
            allowed = (torch.arange(states.shape[1], device=states.device) < count[:, None])[:, None, None]
        for layer in self.layers[:-1]:
            states = layer(states, allowed)
        if self.start is not None:
            return self.layers[-1](states, allowed, first=1)[:, 0]
        return mean_of_first(self.layers[-1](states, allowed), count)
