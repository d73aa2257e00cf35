"""What the two profiles of the bottom-up-attention detector share: pictures, selected regions, and what a profile is.

A profile is everything before the first and after the last layer of the network. `caffe` does as the tool with which
the published feature files were made, `hub` as the published conversion of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from itrpipe.features.extractors.butd.network import Predictions

# Grey levels 0..255 in the order blue, green, red: the network has learnt from images as OpenCV reads them. With red
# first its answers look plausible and its features are off by a quarter.
_MEAN_BGR = (102.9801, 115.9465, 122.7717)

# Candidates by falling objectness before NMS.
PRE_NMS_PROPOSALS = 6000
PROPOSAL_NMS = 0.7


@dataclass(frozen=True)
class Picture:
    """An image as the network takes it.

    Attributes:
        pixels: [3, h, w] float32, resized, BGR minus the mean.
        scale_y, scale_x: pixels here per pixel of the image file.
        extent: [4] width, height, width, height of the image file times its scale. Not always whole, so not always
            the size of `pixels`.
    """

    pixels: Tensor
    scale_y: float
    scale_x: float
    extent: tuple[float, float, float, float]

    @classmethod
    def of(cls, pixels: Tensor, image: Tensor, scale_y: float, scale_x: float) -> Picture:
        """Joins resized pixels with the scale that led to them from `image` [3, H, W]."""
        height, width = image.shape[-2] * scale_y, image.shape[-1] * scale_x
        return cls(pixels, scale_y, scale_x, (width, height, width, height))

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


class Profile(Protocol):
    """What the profiles do differently.

    Attributes:
        regresses: whether boxes differ from the proposals that the features describe.
        maximum: regions per image.
    """

    regresses: ClassVar[bool]

    @property
    def maximum(self) -> int: ...

    def resize(self, image: Tensor) -> Picture:
        """Prepares an image [3, H, W] uint8 RGB."""
        ...

    def anchors(self, stored: Tensor) -> Tensor:
        """Chooses the anchors [A, 4] of a cell; `stored` ones came with the weights."""
        ...

    def propose(self, logits: Tensor, deltas: Tensor, anchors: Tensor, picture: Picture) -> Tensor:
        """Chooses the proposals of an image.

        Args:
            logits: [M] objectness of every anchor of the feature map.
            deltas: [M, 4] how far the object is from the anchor.
            anchors: [M, 4] in pixels of the network's input.
            picture: the image.

        Returns:
            [P, 4] by falling objectness, in pixels of the picture.
        """
        ...

    def select(
        self, predictions: Sequence[Predictions], proposals: Sequence[Tensor], pictures: Sequence[Picture]
    ) -> list[Selection]:
        """Chooses among the proposals [P, 4] of each image by what the network says of them."""
        ...


def bgr_minus_mean(image: Tensor) -> Tensor:
    """Turns [3, H, W] uint8 RGB into float32 BGR around zero."""
    return image.flip(0).float() - torch.tensor(_MEAN_BGR, device=image.device).view(3, 1, 1)


def decode(deltas: Tensor, centres: Tensor, sides: Tensor, longest_growth: float = float("inf")) -> Tensor:
    """Moves and stretches boxes.

    Args:
        deltas: [..., 4] dx and dy in sides of the box, dw and dh as logarithms of factors.
        centres: [..., 2] x and y of the boxes.
        sides: [..., 2] width and height of the boxes.
        longest_growth: larger logarithms count as this.

    Returns:
        [..., 4] x1, y1, x2, y2.
    """
    centres = deltas[..., :2] * sides + centres
    half = deltas[..., 2:].clamp(max=longest_growth).exp() * sides / 2
    return torch.cat([centres - half, centres + half], dim=-1)


def clip(boxes: Tensor, height: float, width: float) -> Tensor:
    """Cuts boxes [..., 4] to 0..width and 0..height."""
    return boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]))
