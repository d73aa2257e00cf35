"""Histograms of gradients and colours: features without weights, for a first model where no network can be fetched.

A region is a cell of a grid. Its vector is a histogram of oriented gradients, 9 unsigned orientations in each of 4 x 4
parts, votes shared between neighbouring orientations, of length 1 (Dalal and Triggs, "Histograms of oriented gradients
for human detection", CVPR 2005, Sec. 6); a joint histogram of lightness and two opponent colours in 4 x 5 x 5 bins, its
square roots (Swain and Ballard, "Color indexing", IJCV 1991; Arandjelović and Zisserman, CVPR 2012, for the roots); and
the mean colour of 2 x 2 parts. The global vector is the same without the means, of the whole image and of its quarters
(Lazebnik et al., "Beyond bags of features", CVPR 2006, Sec. 3).
"""

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from itrpipe.features.extractors.base import Extractor, Images, channels_first
from itrpipe.features.extractors.hog.declaration import Hog
from itrpipe.features.store import FeatureSpec

ORIENTATIONS = 9
PARTS = 4
MEANS = 2
LIGHTNESS = 4
OPPONENT = 5
COLOURS = LIGHTNESS * OPPONENT**2
_RANGE = 0.4
"""Opponent colours beyond this, of 1, fall into the last bin."""
_FLOOR = 1e-3
"""Added to the length of gradients, so that a flat cell stays near zero."""
REGION_DIM = ORIENTATIONS * PARTS**2 + COLOURS + 3 * MEANS**2
GLOBAL_DIM = 5 * (ORIENTATIONS * PARTS**2 + COLOURS)
_LEVELS = (1, 2)


class HogExtractor(Extractor):
    """Fills `/regions`, `/count`, `/boxes` and `/global`; see `Extractor`.

    Args:
        settings: the grid and its cells.
        device: where it computes.

    Attributes:
        spec: grid² regions of `REGION_DIM`, a global vector of `GLOBAL_DIM`.
        transform: resizes to a square.
    """

    def __init__(self, settings: Hog, device: torch.device) -> None:
        grid = settings.grid
        self._grid = grid
        self._device = device
        self.transform = partial(stretched, grid * settings.cell)
        self.spec = FeatureSpec(grid * grid, REGION_DIM, GLOBAL_DIM, boxes=True)
        edges = np.linspace(0, 1, grid + 1, dtype=np.float32)
        top, left = np.meshgrid(edges[:-1], edges[:-1], indexing="ij")
        boxes = np.stack([left, top, left + edges[1], top + edges[1]], axis=-1)
        self._boxes = boxes.reshape(-1, 4).clip(0, 1)

    @torch.inference_mode()
    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Return regions [B, R, D] and global [B, G] float16, count [B] int16 and boxes [B, R, 4] float32 in 0..1."""
        assert isinstance(images, Tensor)
        rgb = images.to(self._device).float() / 255
        red, green, blue = rgb.unbind(1)
        lightness = rgb.mean(1)  # 0..1
        red_green = red - green  # -1..1, as the next
        yellow_blue = (red + green - 2 * blue) / 2
        colours = torch.stack([lightness, red_green, yellow_blue], dim=1)  # [B, 3, H, W]
        gradients = gradient_votes(lightness)
        shares = colour_votes(colours)
        regions = [*histograms(gradients, shares, self._grid), in_cells(colours, self._grid, MEANS)]
        levels = []
        for grid in _LEVELS:
            for vectors in histograms(gradients, shares, grid):
                levels.append(vectors.flatten(1) / grid)  # so that all levels are equally long
        return {
            "regions": torch.cat(regions, dim=2).half().cpu().numpy(),
            "global": torch.cat(levels, dim=1).half().cpu().numpy(),
            "count": np.full(len(colours), self.spec.regions, dtype=np.int16),
            "boxes": np.repeat(self._boxes[None], len(colours), axis=0),
        }


build = HogExtractor


def stretched(side: int, image: np.ndarray) -> np.ndarray:
    """Stretch an image [H, W, 3] uint8 to a square [3, side, side], by bicubic interpolation with antialiasing."""
    resized = Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)
    return channels_first(np.asarray(resized))


def gradient_votes(lightness: Tensor) -> Tensor:
    """Return the length of the gradient of every pixel of [B, H, W], shared by its two nearest orientations.

    Borders have no gradient across them. Returns [B, 9, H, W].
    """
    across = F.pad(lightness[:, :, 2:] - lightness[:, :, :-2], (1, 1))
    down = F.pad(lightness[:, 2:] - lightness[:, :-2], (0, 0, 1, 1))
    length = torch.hypot(across, down)[:, None]
    angle = torch.atan2(down, across).remainder(math.pi)[:, None]
    orientation = angle * (ORIENTATIONS / math.pi)
    below = orientation.floor()
    share = orientation - below
    orientations = torch.cat([below, below + 1], dim=1).long()
    weights = torch.cat([length * (1 - share), length * share], dim=1)
    return _votes(orientations, weights, ORIENTATIONS)


def colour_votes(colours: Tensor) -> Tensor:
    """Return one for the bin of every pixel's colour, [B, 100, H, W], of opponent colours [B, 3, H, W]."""

    def bins(values: Tensor, count: int) -> Tensor:
        return (values * count).long().clamp(0, count - 1)

    lightness = bins(colours[:, 0], LIGHTNESS)
    opponents = (colours[:, 1:] + _RANGE) / (2 * _RANGE)
    red_green, yellow_blue = bins(opponents, OPPONENT).unbind(1)
    colour = (lightness * OPPONENT + red_green) * OPPONENT + yellow_blue
    return _votes(colour[:, None], torch.ones_like(colours[:, :1]), COLOURS)


def _votes(places: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return the sums [B, count, H, W] of weights [B, n, H, W] by their bins; bins go round after `count`."""
    votes = weights.new_zeros(len(weights), count, *weights.shape[2:])
    return votes.scatter_add_(1, places % count, weights)


def histograms(gradients: Tensor, colours: Tensor, grid: int) -> list[Tensor]:
    """Compute the histograms of the cells of a grid.

    Args:
        gradients: votes [B, 9, H, W].
        colours: votes [B, 100, H, W].
        grid: cells on each side.

    Returns:
        Gradients [B, grid², 144], of length 1, and square roots of the shares of the colours [B, grid², 100].
    """
    oriented = in_cells(gradients, grid, PARTS)
    oriented = oriented / (oriented.norm(dim=2, keepdim=True) + _FLOOR)
    return [oriented, in_cells(colours, grid, 1).sqrt()]


def in_cells(values: Tensor, grid: int, parts: int) -> Tensor:
    """Return the means [B, grid², C * parts²] of [B, C, H, W] in parts * parts parts of the cells of a grid."""
    pooled = F.adaptive_avg_pool2d(values, grid * parts)
    return F.unfold(pooled, parts, stride=parts).mT.contiguous()
