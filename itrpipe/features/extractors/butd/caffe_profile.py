"""Profile `caffe`: as the tool that wrote the published feature files of SCAN, VSRN and UNITER.

Boxes are pixels with both ends inside, so that a width is x2 - x1 + 1. The region proposals are the boxes: the tool
describes and keeps them without regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchvision.ops import nms

from itrpipe.features.extractors.butd.anchors import caffe_anchors
from itrpipe.features.extractors.butd.network import Predictions
from itrpipe.features.extractors.butd.profiles import (
    PRE_NMS_PROPOSALS,
    PROPOSAL_NMS,
    Picture,
    Selection,
    bgr_minus_mean,
    clip,
    decode,
)
from itrpipe.features.extractors.region_selection import box_overlaps, select_regions, surviving_confidence

# Of a class's boxes two may overlap so much (IoU).
_CLASS_NMS = 0.3
# Sides of a proposal in pixels of the image file, at least.
_SMALLEST_SIDE = 16


@dataclass(frozen=True)
class CaffeProfile:
    """Resize, proposals and selection of the Caffe original.

    Attributes:
        minimum, maximum: regions per image.
        min_score: as many regions as are this sure are kept, within these limits.
        short_side, long_side: pixels to which an image is resized.
        proposals: per image, at most.
    """

    regresses: ClassVar[bool] = False

    minimum: int
    maximum: int
    min_score: float
    short_side: int = 600
    long_side: int = 1000
    proposals: int = 300

    def resize(self, image: Tensor) -> Picture:
        """Resizes as `caffe_size` says; bilinear without antialiasing, both axes by exactly the same factor."""
        factor, height, width = caffe_size(image.shape[-2], image.shape[-1], self.short_side, self.long_side)
        pixels = _interpolate(bgr_minus_mean(image), 1, factor, height)
        return Picture.of(_interpolate(pixels, 2, factor, width), image, factor, factor)

    def anchors(self, stored: Tensor) -> Tensor:
        """Takes Caffe's own, whatever came with the weights."""
        return caffe_anchors().to(stored.device)

    def propose(self, logits: Tensor, deltas: Tensor, anchors: Tensor, picture: Picture) -> Tensor:
        """Drops what is too small first, takes the surest anchors after that, and then applies NMS."""
        sides = anchors[:, 2:] - anchors[:, :2] + 1
        # x2 comes out one too large for a box with both ends inside. The original does so too.
        boxes = decode(deltas, anchors[:, :2] + sides / 2, sides)
        height, width = picture.size
        boxes = clip(boxes, height - 1, width - 1)
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= _SMALLEST_SIDE * picture.scale_x).all(dim=1)
        boxes, logits = boxes[large], logits[large]
        order = logits.argsort(descending=True, stable=True)[:PRE_NMS_PROPOSALS]
        boxes, logits = boxes[order], logits[order]
        # With both ends inside, a box covers what an ordinary box covers that ends one pixel later.
        ordinary = boxes + boxes.new_tensor([0, 0, 1, 1])
        return boxes[nms(ordinary, logits, PROPOSAL_NMS)[: self.proposals]]

    def select(
        self, predictions: Sequence[Predictions], proposals: Sequence[Tensor], pictures: Sequence[Picture]
    ) -> list[Selection]:
        """Keeps the proposals that stay surest after NMS within each class; see `select_regions` for their order."""
        probabilities = [image.class_logits.softmax(dim=1)[:, :-1] for image in predictions]
        # Overlaps are those in the image file, where the pixel that a width includes weighs more than here.
        boxes = [box / picture.scale_x for box, picture in zip(proposals, pictures, strict=True)]
        overlaps = box_overlaps(pad_sequence(boxes, batch_first=True), plus_one=True)
        # Boxes that only fill up have no probability: they come last in every class and cover no other.
        confidence = surviving_confidence(overlaps, pad_sequence(probabilities, batch_first=True), _CLASS_NMS)
        images = zip(confidence, proposals, probabilities, predictions, strict=True)
        return [self._select(*image) for image in images]

    def _select(
        self, confidence: Tensor, proposals: Tensor, probabilities: Tensor, predictions: Predictions
    ) -> Selection:
        rows = select_regions(confidence[: len(proposals)], self.minimum, self.maximum, self.min_score)
        scores, labels = probabilities[rows].max(dim=1)
        attributes = predictions.attribute_logits[rows].softmax(dim=1)[:, :-1].max(dim=1)
        return Selection(rows, proposals[rows], labels, scores, attributes.indices, attributes.values)


def caffe_size(height: int, width: int, short_side: int, long_side: int) -> tuple[float, int, int]:
    """Returns the factor and the resized height and width: round half to even, where the factor itself is not round."""
    factor = short_side / min(height, width)
    if round(factor * max(height, width)) > long_side:
        factor = long_side / max(height, width)
    return factor, max(1, round(factor * height)), max(1, round(factor * width))


def _interpolate(image: Tensor, axis: int, factor: float, length: int) -> Tensor:
    """Resizes one axis of an image to `length` as OpenCV does for a given factor.

    Pixel i lies at (i + 0.5) / factor - 0.5. torch's `interpolate` takes the factor from the sizes, where it was
    rounded; at edges that is wrong by up to 60 grey levels.
    """
    last = image.shape[axis] - 1
    places = ((torch.arange(length, dtype=torch.float64, device=image.device) + 0.5) / factor - 0.5).clamp(0, last)
    before = places.long()
    shape = [-1 if number == axis else 1 for number in range(image.ndim)]
    part = (places - before).to(image.dtype).view(shape)
    return torch.lerp(image.index_select(axis, before), image.index_select(axis, (before + 1).clamp(max=last)), part)
