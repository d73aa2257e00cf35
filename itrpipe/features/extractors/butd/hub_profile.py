"""Profile `hub`: as the published conversion of the bottom-up-attention detector (the one for LXMERT).

Boxes are regressed for the region's class, while its features are pooled from the proposal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import nms

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

DELTA_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
"""Factors by which the box deltas of the weights are too large."""

# A box grows by at most the factor 1000 / 16.
_LONGEST_GROWTH = math.log(1000 / 16)


@dataclass(frozen=True)
class HubProfile:
    """Resize, proposals and selection of the published conversion.

    Attributes:
        minimum, maximum: regions per image.
        short_side, long_side: pixels to which an image is resized.
        proposals: per image, at most.
        thresholds: overlaps (IoU) of the class-agnostic NMS, tried in turn until `minimum` regions are left. The
            conversion has the first three and fails if none suffices; the others go on as its predecessor did.
    """

    regresses: ClassVar[bool] = True

    minimum: int
    maximum: int
    short_side: int = 800
    long_side: int = 1333
    proposals: int = 300
    thresholds: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)

    def resize(self, image: Tensor) -> Picture:
        """Resizes as `hub_size` says; bilinear without antialiasing, each axis by its own factor."""
        height, width = image.shape[-2:]
        size = hub_size(height, width, self.short_side, self.long_side)
        pixels = F.interpolate(bgr_minus_mean(image)[None], size=size, mode="bilinear", align_corners=False)[0]
        return Picture.of(pixels, image, size[0] / height, size[1] / width)

    def anchors(self, stored: Tensor) -> Tensor:
        """Takes the stored ones."""
        return stored

    def propose(self, logits: Tensor, deltas: Tensor, anchors: Tensor, picture: Picture) -> Tensor:
        """Takes the surest anchors first, drops what has no area after that, and then applies NMS."""
        order = logits.argsort(descending=True, stable=True)[:PRE_NMS_PROPOSALS]
        boxes = clip(_decode(deltas[order], anchors[order]), *picture.size)
        inside = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        boxes, logits = boxes[inside], logits[order][inside]
        return boxes[nms(boxes, logits, PROPOSAL_NMS)[: self.proposals]]

    def select(
        self, predictions: Sequence[Predictions], proposals: Sequence[Tensor], pictures: Sequence[Picture]
    ) -> list[Selection]:
        """Keeps the surest regions whose boxes, regressed for their class, differ enough; by falling score."""
        return [self._select(*image) for image in zip(predictions, proposals, pictures, strict=True)]

    def _select(self, predictions: Predictions, proposals: Tensor, picture: Picture) -> Selection:
        scores, labels = predictions.class_logits.softmax(dim=1)[:, :-1].max(dim=1)
        deltas = predictions.deltas.take_along_dim(labels[:, None, None], dim=1).squeeze(1)  # [P, 4]
        boxes = clip(_decode(deltas / deltas.new_tensor(DELTA_WEIGHTS), proposals), *picture.size)
        # Without the column for "none", so that these are larger than the probabilities of profile `caffe`.
        attribute_scores, attributes = predictions.attribute_logits[:, :-1].softmax(dim=1).max(dim=1)
        rows = self._keep(boxes, scores)
        return Selection(rows, boxes[rows], labels[rows], scores[rows], attributes[rows], attribute_scores[rows])

    def _keep(self, boxes: Tensor, scores: Tensor) -> Tensor:
        """Rows [n] of the regions to keep: the first threshold that leaves enough, else the surest without NMS."""
        for threshold in self.thresholds:
            kept = nms(boxes, scores, threshold)[: self.maximum]
            if len(kept) >= self.minimum:
                return kept
        return scores.argsort(descending=True, stable=True)[: self.minimum]


def hub_size(height: int, width: int, short_side: int, long_side: int) -> tuple[int, int]:
    """Returns the resized height and width: the shorter becomes `short_side`, unless the longer is too long then."""
    factor = short_side / min(height, width)
    sides = (short_side, factor * width) if height < width else (factor * height, short_side)
    if max(sides) > long_side:
        factor = long_side / max(sides)
        sides = (sides[0] * factor, sides[1] * factor)
    return max(1, int(sides[0] + 0.5)), max(1, int(sides[1] + 0.5))


def _decode(deltas: Tensor, boxes: Tensor) -> Tensor:
    sides = boxes[:, 2:] - boxes[:, :2]
    return decode(deltas, boxes[:, :2] + sides / 2, sides, _LONGEST_GROWTH)
