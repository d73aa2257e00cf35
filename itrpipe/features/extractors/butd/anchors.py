"""Anchors of the bottom-up-attention detector: twelve boxes per cell of the feature map.

The order is size-major, three ratios (height / width = 0.5, 1, 2) for each of the four sizes 64, 128, 256 and 512.
Caffe orders by ratio first; `from_caffe_order` says which of its anchors comes where.
"""

from __future__ import annotations

import torch
from torch import Tensor

STRIDE = 16
"""Pixels of the network's input per cell of the feature map."""
SIZES = (64, 128, 256, 512)
RATIOS = (0.5, 1.0, 2.0)
ANCHORS = len(SIZES) * len(RATIOS)

# Caffe's windows of 16 x 16 pixels' area for the three ratios, width and height rounded to whole pixels.
_CAFFE_WINDOWS = ((23, 12), (16, 16), (11, 22))
_CAFFE_CENTRE = 7.5


def exact_anchors() -> Tensor:
    """The anchors of the published conversion, [A, 4]: unrounded, their centre on the cell's top left corner."""
    areas, ratios = torch.meshgrid(torch.tensor(SIZES).double() ** 2, torch.tensor(RATIOS).double(), indexing="ij")
    width = (areas / ratios).sqrt().flatten()
    height = width * ratios.flatten()
    return (torch.stack([-width, -height, width, height], dim=1) / 2).float()


def caffe_anchors() -> Tensor:
    """The anchors of the Caffe original, [A, 4]: x2 and y2 are the last pixels inside the box."""
    sides = torch.tensor(
        [[width * size // 16, height * size // 16] for size in SIZES for width, height in _CAFFE_WINDOWS]
    )
    return torch.cat([_CAFFE_CENTRE - (sides - 1) / 2, _CAFFE_CENTRE + (sides - 1) / 2], dim=1)


def from_caffe_order() -> Tensor:
    """For each anchor in our order its place in Caffe's order, [A] int64."""
    return torch.arange(ANCHORS).view(len(RATIOS), len(SIZES)).T.flatten()


def place_anchors(cell_anchors: Tensor, height: int, width: int) -> Tensor:
    """Returns the anchors of a whole feature map, [height * width * A, 4], row by row of cells.

    Args:
        cell_anchors: [A, 4] anchors of the first cell.
        height, width: of the feature map.
    """
    rows = torch.arange(height, device=cell_anchors.device) * STRIDE
    columns = torch.arange(width, device=cell_anchors.device) * STRIDE
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    shifts = torch.stack([x, y, x, y], dim=-1).view(-1, 1, 4)
    return (shifts + cell_anchors).flatten(0, 1)
