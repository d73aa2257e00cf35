"""Geometry of the `scenes` detector: anchors, box deltas, overlaps and suppression, all for a batch at once.

Boxes are x0, y0, x1, y1 in pixels unless a function says otherwise. Nothing here loops over images: an image has few
boxes, and the overhead of a Python loop would cost more than the arithmetic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# A proposal may not grow beyond e^4 times its anchor, whatever the network says: the exponential must stay finite.
_LARGEST_LOG_SCALE = 4.0


def make_anchors(rows: int, columns: int, stride: int, sizes: tuple[int, ...], ratios: tuple[float, ...]) -> Tensor:
    """Returns anchors [rows * columns * A, 4], A = len(sizes) * len(ratios), cell after cell.

    Args:
        rows: height of the feature map.
        columns: width of the feature map.
        stride: pixels per cell.
        sizes: square roots of the anchors' areas in pixels.
        ratios: widths over heights.
    """
    shapes = torch.tensor([(size * math.sqrt(ratio), size / math.sqrt(ratio)) for size in sizes for ratio in ratios])
    y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
    centres = torch.stack([x, y], dim=-1).view(-1, 1, 2) * stride  # [cells, 1, 2]
    return torch.cat([centres - shapes / 2, centres + shapes / 2], dim=-1).view(-1, 4)


def decode(deltas: Tensor, anchors: Tensor, width: int, height: int) -> Tensor:
    """Returns boxes [..., 4]: `anchors` moved by `deltas` and cut to the image.

    Args:
        deltas: [..., 4] shifts in units of the anchor's size, and log scales. Source: Faster R-CNN, Eq. 2.
        anchors: [..., 4].
        width, height: of the image.
    """
    size = anchors[..., 2:] - anchors[..., :2]
    centre = anchors[..., :2] + size / 2 + deltas[..., :2] * size
    half = size * deltas[..., 2:].clamp(max=_LARGEST_LOG_SCALE).exp() / 2
    limit = torch.tensor([width, height], dtype=centre.dtype, device=centre.device)
    return torch.cat([(centre - half).clamp(min=0).minimum(limit), (centre + half).clamp(min=0).minimum(limit)], dim=-1)


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Returns intersection over union [..., n, m] of boxes [..., n, 4] and [..., m, 4]; 0 for empty boxes."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    area_first = (first[..., 2:] - first[..., :2]).prod(dim=-1)[..., :, None]
    area_second = (second[..., 2:] - second[..., :2]).prod(dim=-1)[..., None, :]
    return shared / (area_first + area_second - shared).clamp(min=1e-6)


def suppress(boxes: Tensor, threshold: float) -> Tensor:
    """Returns which boxes greedy non-maximum suppression keeps, exactly, for all images at once.

    Args:
        boxes: [B, K, 4], the best first.
        threshold: overlap above which the later box goes.

    Returns:
        [B, K] bool.
    """
    return _suppress(_blocks(boxes, threshold))


def _blocks(boxes: Tensor, threshold: float) -> Tensor:
    """Returns which earlier box overlaps which later one: [B, earlier, later] bool."""
    return (overlaps(boxes, boxes) > threshold).triu(diagonal=1)


def _suppress(blocks: Tensor) -> Tensor:
    """Returns [B, K] bool.

    Greedy suppression says: a box stays unless an earlier box that stays overlaps it. Starting from "all stay" and
    applying this rule to all boxes together, the first k answers are final after k rounds, and in practice after few:
    the rounds end when nothing changes.
    """
    keep = torch.ones(blocks.shape[:2], dtype=torch.bool, device=blocks.device)
    while True:
        updated = ~(blocks & keep[:, :, None]).any(dim=1)
        if torch.equal(updated, keep):
            return keep
        keep = updated


def kept_first(keep: Tensor, count: int) -> Tensor:
    """Returns indices [B, count] of the kept boxes in their order, filled up with the best suppressed ones."""
    # A stable sort keeps both groups in order of their scores.
    return torch.sort((~keep).to(torch.uint8), dim=1, stable=True).indices[:, :count]


def spread(boxes: Tensor, threshold: float, count: int) -> Tensor:
    """Returns indices [B, count] of the kept boxes, then of every kept box's best neighbour, then of its second ...

    A region set of fixed size is larger than the number of things in a picture. Filled up by score it would show the
    most conspicuous thing many times over; so filled up it shows each about equally often.

    Args:
        boxes: [B, K, 4], the best first.
        threshold: overlap above which the later box is a neighbour of the earlier and not kept.
        count: how many indices are wanted.
    """
    blocks = _blocks(boxes, threshold)
    keep = _suppress(blocks)
    suppressor = (blocks & keep[:, :, None]).to(torch.uint8).argmax(dim=1)  # the first box that suppresses each
    group = torch.where(keep, torch.arange(boxes.shape[1], device=boxes.device), suppressor)  # [B, K]
    rank = (group[:, :, None] == group[:, None, :]).triu(diagonal=1).sum(dim=1)  # earlier boxes of the same group
    return torch.sort(rank, dim=1, stable=True).indices[:, :count]


def take(values: Tensor, indices: Tensor) -> Tensor:
    """Returns `values` [B, K, ...] at `indices` [B, n] of each image: [B, n, ...]."""
    return values[torch.arange(len(values), device=values.device)[:, None], indices]
