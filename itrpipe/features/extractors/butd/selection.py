"""What the bottom-up-attention detector does before its first layer and after its last.

It does as the Caffe tool that wrote the published feature files of SCAN, VSRN and UNITER. Boxes are pixels with both
ends inside, so that a width is x2 - x1 + 1. The region proposals are the boxes: the tool describes and keeps them
without regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchvision.ops import nms

from itrpipe.features.extractors.butd.network import Predictions
from itrpipe.features.extractors.region_selection import box_overlaps, select_regions, surviving_confidence

# Grey levels 0..255 in the order blue, green, red: the network has learnt from images as OpenCV reads them. With red
# first its answers look plausible and its features are off by a quarter.
_MEAN_BGR = (102.9801, 115.9465, 122.7717)

# Candidates by falling objectness before NMS.
_PRE_NMS_PROPOSALS = 6000
_PROPOSAL_NMS = 0.7
# Of a class's boxes two may overlap so much (IoU).
_CLASS_NMS = 0.3
# Sides of a proposal in pixels of the image file, at least.
_SMALLEST_SIDE = 16


@dataclass(frozen=True)
class Picture:
    """An image as the network takes it.

    Attributes:
        pixels: [3, h, w] float32, resized, BGR minus the mean.
        scale: pixels here per pixel of the image file.
        extent: [4] width, height, width, height of the image file times its scale. Not always whole, so not always
            the size of `pixels`.
    """

    pixels: Tensor
    scale: float
    extent: tuple[float, float, float, float]

    @classmethod
    def of(cls, pixels: Tensor, image: Tensor, scale: float) -> Picture:
        """Joins resized pixels with the scale that led to them from `image` [3, H, W]."""
        height, width = image.shape[-2] * scale, image.shape[-1] * scale
        return cls(pixels, scale, (width, height, width, height))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the resized image."""
        return self.pixels.shape[-2], self.pixels.shape[-1]

    def fractions(self, boxes: Tensor) -> Tensor:
        """Turns boxes [..., 4] in pixels of this picture into fractions of the image."""
        return (boxes / boxes.new_tensor(self.extent)).clamp(0, 1)


@dataclass(frozen=True)
class Selection:
    """The regions of an image that are kept, in the order in which they are written.

    Attributes:
        rows: [n] int64, their rows among the image's proposals.
        boxes: [n, 4] in pixels of the picture.
        labels: [n] int64 class, 0..1599.
        scores: [n] probability of the class.
        attributes: [n] int64, 0..399.
        attribute_scores: [n] probability of the attribute.
    """

    rows: Tensor
    boxes: Tensor
    labels: Tensor
    scores: Tensor
    attributes: Tensor
    attribute_scores: Tensor


@dataclass(frozen=True)
class RegionRules:
    """Resize, proposals and selection of the Caffe original.

    Attributes:
        minimum, maximum: regions per image.
        min_score: as many regions as are this sure are kept, within these limits.
        short_side, long_side: pixels to which an image is resized.
        proposals: per image, at most.
    """

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
        return Picture.of(_interpolate(pixels, 2, factor, width), image, factor)

    def propose(self, logits: Tensor, deltas: Tensor, anchors: Tensor, picture: Picture) -> Tensor:
        """Drops what is too small first, takes the surest anchors after that, and then applies NMS.

        Args:
            logits: [M] objectness of every anchor of the feature map.
            deltas: [M, 4] how far the object is from the anchor.
            anchors: [M, 4] in pixels of the network's input.
            picture: the image.

        Returns:
            [P, 4] by falling objectness, in pixels of the picture.
        """
        sides = anchors[:, 2:] - anchors[:, :2] + 1
        # x2 comes out one too large for a box with both ends inside. The original does so too.
        boxes = decode(deltas, anchors[:, :2] + sides / 2, sides)
        height, width = picture.size
        boxes = clip(boxes, height - 1, width - 1)
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= _SMALLEST_SIDE * picture.scale).all(dim=1)
        boxes, logits = boxes[large], logits[large]
        order = logits.argsort(descending=True, stable=True)[:_PRE_NMS_PROPOSALS]
        boxes, logits = boxes[order], logits[order]
        # With both ends inside, a box covers what an ordinary box covers that ends one pixel later.
        ordinary = boxes + boxes.new_tensor([0, 0, 1, 1])
        return boxes[nms(ordinary, logits, _PROPOSAL_NMS)[: self.proposals]]

    def select(
        self, predictions: Sequence[Predictions], proposals: Sequence[Tensor], pictures: Sequence[Picture]
    ) -> list[Selection]:
        """Keeps the proposals that stay surest after NMS within each class; see `select_regions` for their order."""
        probabilities = [image.class_logits.softmax(dim=1)[:, :-1] for image in predictions]
        # Overlaps are those in the image file, where the pixel that a width includes weighs more than here.
        boxes = [box / picture.scale for box, picture in zip(proposals, pictures, strict=True)]
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


def bgr_minus_mean(image: Tensor) -> Tensor:
    """Turns [3, H, W] uint8 RGB into float32 BGR around zero."""
    return image.flip(0).float() - torch.tensor(_MEAN_BGR, device=image.device).view(3, 1, 1)


def decode(deltas: Tensor, centres: Tensor, sides: Tensor) -> Tensor:
    """Moves and stretches boxes.

    Args:
        deltas: [..., 4] dx and dy in sides of the box, dw and dh as logarithms of factors.
        centres: [..., 2] x and y of the boxes.
        sides: [..., 2] width and height of the boxes.

    Returns:
        [..., 4] x1, y1, x2, y2.
    """
    centres = deltas[..., :2] * sides + centres
    half = deltas[..., 2:].exp() * sides / 2
    return torch.cat([centres - half, centres + half], dim=-1)


def clip(boxes: Tensor, height: float, width: float) -> Tensor:
    """Cuts boxes [..., 4] to 0..width and 0..height."""
    return boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]))
