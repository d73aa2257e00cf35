"""Anchors of the bottom-up-attention detector: twelve boxes per cell of the feature map.

The order is size-major, three ratios (height / width = 0.5, 1, 2) for each of the four sizes 64, 128, 256 and 512, as
in the published conversion. Caffe itself orders by ratio first.
"""

from __future__ import annotations

import torch
from torch import Tensor

STRIDE = 16
"""Pixels of the network's input per cell of the feature map."""
SIZES = (64, 128, 256, 512)
# Caffe's windows of 16 x 16 pixels' area for the three ratios, width and height rounded to whole pixels.
_CAFFE_WINDOWS = ((23, 12), (16, 16), (11, 22))
_CAFFE_CENTRE = 7.5
ANCHORS = len(SIZES) * len(_CAFFE_WINDOWS)


def caffe_anchors() -> Tensor:
    """The anchors of the Caffe original, [A, 4]: x2 and y2 are the last pixels inside the box."""
    sides = torch.tensor(
        [[width * size // 16, height * size // 16] for size in SIZES for width, height in _CAFFE_WINDOWS]
    )
    return torch.cat([_CAFFE_CENTRE - (sides - 1) / 2, _CAFFE_CENTRE + (sides - 1) / 2], dim=1)


def place_anchors(height: int, width: int, device: torch.device) -> Tensor:
    """Returns the anchors of a whole feature map, [height * width * A, 4], row by row of cells.

    Args:
        height, width: of the feature map.
        device: of the anchors.
    """
    rows = torch.arange(height, device=device) * STRIDE
    columns = torch.arange(width, device=device) * STRIDE
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    shifts = torch.stack([x, y, x, y], dim=-1).view(-1, 1, 4)
    return (shifts + caffe_anchors().to(device)).flatten(0, 1)
