"""Which region proposals of an image are kept: the rules of the bottom-up-attention tool.

The tool leaves the proposals where they are. Within each class it suppresses the boxes that a surer box of that class
covers, takes as a box's confidence the largest probability of a class in which it survived, and keeps the surest.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, section
3.1, and the tool that wrote the published feature files.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Bits in a word of a set of boxes.
_WORD = 64


def box_overlaps(boxes: Tensor, plus_one: bool) -> Tensor:
    """Returns the intersection over union of every pair of an image's boxes.

    Args:
        boxes: [..., P, 4] x1, y1, x2, y2 with x1 <= x2 and y1 <= y2.
        plus_one: the corners are pixels that belong to the box, as in Caffe: its width is x2 - x1 + 1.

    Returns:
        [..., P, P] in 0..1 and of the boxes' type; 0 for two boxes without area.
    """
    extra = 1 if plus_one else 0
    area = (boxes[..., 2:] - boxes[..., :2] + extra).prod(dim=-1)
    first, second = boxes.unsqueeze(-2), boxes.unsqueeze(-3)
    corner = torch.maximum(first[..., :2], second[..., :2])
    sides = (torch.minimum(first[..., 2:], second[..., 2:]) - corner + extra).clamp(min=0)
    intersection = sides.prod(dim=-1)
    union = area.unsqueeze(-1) + area.unsqueeze(-2) - intersection
    return torch.where(union > 0, intersection / union, 0)


def surviving_confidence(overlaps: Tensor, probabilities: Tensor, nms: float) -> Tensor:
    """Returns how sure the detector is of each box after greedy non-maximum suppression (NMS) in every class.

    In each class the boxes come by falling probability, of equal ones the one with the higher index first; a box is
    suppressed if it overlaps by more than `nms` one that came before it and was not. All classes of all images take
    the P steps together. What is suppressed in a class is a set of boxes of one bit each, so that a step costs B * C
    operations on P / 64 words.

    Args:
        overlaps: [B, P, P] intersection over union, symmetric.
        probabilities: [B, P, C] of the foreground classes.
        nms: largest overlap that two boxes of a class may have, 0..1.

    Returns:
        [B, P] largest probability of a class in which the box survives, 0 if there is none.
    """
    batch, boxes, classes = probabilities.shape
    assert overlaps.shape == (batch, boxes, boxes)
    by_class = probabilities.transpose(1, 2).reshape(batch * classes, boxes)
    covered = _pack((overlaps > nms) & ~torch.eye(boxes, dtype=torch.bool, device=overlaps.device)).flatten(0, 1)
    first_box = torch.arange(batch, device=overlaps.device).mul_(boxes).repeat_interleave(classes)  # in `covered`
    suppressed = covered.new_zeros(batch * classes, covered.shape[-1])
    for box in _falling(by_class).T.contiguous():  # [B * C], the next box of each class
        word = suppressed.gather(1, (box // _WORD).unsqueeze(1))
        survives = ((word >> (box % _WORD).unsqueeze(1)) & 1) - 1  # all bits, or none
        suppressed |= covered[box + first_box] & survives
    # A survivor's bit stays clear: the boxes it overlaps and that came earlier had been suppressed themselves.
    confidence = by_class.masked_fill(_unpack(suppressed, boxes), 0).view(batch, classes, boxes)
    return confidence.amax(dim=1) if classes else probabilities.new_zeros(batch, boxes)


def select_regions(confidence: Tensor, minimum: int, maximum: int, threshold: float) -> Tensor:
    """Returns which of an image's boxes are kept, in the order in which the tool writes them.

    Args:
        confidence: [P], by falling objectness of the proposals.
        minimum: so many boxes at least, surest first, or all of them if P is smaller.
        maximum: so many at most, surest first.
        threshold: boxes at least so sure are kept, in their own order if neither limit cuts.

    Returns:
        [n] int64 indices; of equally sure boxes the one with the higher index comes first.
    """
    kept = (confidence >= threshold).nonzero().squeeze(1)
    if minimum <= len(kept) <= maximum:
        return kept
    return _falling(confidence)[: minimum if len(kept) < minimum else maximum]


def _falling(values: Tensor) -> Tensor:
    """The order of falling values in the last dimension, of equal ones the later first: numpy's `argsort()[::-1]`."""
    return values.argsort(dim=-1, stable=True).flip(-1)


def _pack(members: Tensor) -> Tensor:
    """Sets of boxes, bool [..., P], as words of 64 bits [..., ceil(P / 64)]."""
    padded = torch.nn.functional.pad(members, (0, -members.shape[-1] % _WORD))
    bits = torch.ones((), dtype=torch.int64, device=members.device) << torch.arange(_WORD, device=members.device)
    return (padded.unflatten(-1, (-1, _WORD)) * bits).sum(dim=-1)


def _unpack(words: Tensor, boxes: int) -> Tensor:
    """The inverse of `_pack`."""
    places = torch.arange(_WORD, device=words.device)
    return ((words.unsqueeze(-1) >> places) & 1).bool().flatten(-2)[..., :boxes]
