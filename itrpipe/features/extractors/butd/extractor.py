"""Extractor of the bottom-up-attention detector of Visual Genome: regions with boxes, classes and attributes.

It does as the Caffe tool that wrote the published feature files of SCAN, VSRN and UNITER. Boxes are pixels with both
ends inside, so that a width is x2 - x1 + 1. The region proposals are the boxes: the tool describes and keeps them
without regression.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torchvision.ops import clip_boxes_to_image, nms

from itrpipe.features.extractors.base import Images, channels_first
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.butd.network import REGION_DIM, STRIDE, ButdNetwork, load_network
from itrpipe.features.extractors.regions import Proposals, box_overlaps, moved, place_anchors, region_rows
from itrpipe.features.store import FeatureSpec

# Pixels to which an image is resized.
SHORT_SIDE, LONG_SIDE = 600, 1000
# Region proposals of an image at most, and by falling objectness before NMS.
PROPOSALS, _CANDIDATES = 300, 6000
# Largest overlaps of two proposals, and of two regions of one class.
_PROPOSAL_NMS, _CLASS_NMS = 0.7, 0.3
# Sides of a proposal in pixels of the image file, at least.
_SMALLEST_SIDE = 16
# Of a shorter side of the input, a line of pixels say, nothing is left after the stem.
_SHORTEST_SIDE = 3
# Grey levels 0..255 in the order blue, green, red: the network has learnt from images as OpenCV reads them. With red
# first its answers look plausible and its features are off by a quarter.
_MEAN_BGR = (102.9801, 115.9465, 122.7717)
# Sizes of anchors, and Caffe's windows of 16 x 16 pixels' area for three ratios, rounded to whole pixels.
_SIZES = (64, 128, 256, 512)
_WINDOWS = ((23, 12), (16, 16), (11, 22))
_CENTRE = 7.5
# Of 300 proposals each; a larger batch gains nothing.
_BATCH = 4


def build(settings: Butd, device: torch.device) -> ButdExtractor:
    """Returns the extractor with the weights that the settings name.

    Raises:
        MissingInputError: there is no such file of weights, or the hub does not give it.
        DataError: the weights are damaged or of another network.
    """
    network, notes = load_network(settings)
    return ButdExtractor(network.for_inference(device, settings.precision), settings, device, notes)


class Picture(NamedTuple):
    """An image as the network takes it.

    Attributes:
        pixels: [3, h, w] float32, resized, BGR minus the mean.
        scale: pixels here per pixel of the image file.
        extent: width and height of the image file times its scale. Not always whole, so not always those of `pixels`.
    """

    pixels: Tensor
    scale: float
    extent: tuple[float, float]


class ButdExtractor:
    """Turns images into rows of a feature file; see `Extractor`. The boxes are the region proposals.

    Attributes:
        spec: regions [N, max_regions, 2048], boxes, labels, scores and attributes.
        transform: the decoded image, channels first; the resize gives fractions of grey levels and runs on the device.
        batch: see `Extractor`.
        notes: what there is to say of the weights and settings.
    """

    batch = _BATCH

    def __init__(self, network: ButdNetwork, settings: Butd, device: torch.device, notes: tuple[str, ...] = ()) -> None:
        self.spec = FeatureSpec(settings.max_regions, REGION_DIM, boxes=True, labels=True, scores=True, attributes=True)
        self.transform, self.notes = channels_first, notes
        self._network, self._settings, self._device = network, settings, device

    def group(self, height: int, width: int) -> tuple[int, int]:
        """The size itself: padded beside a larger image, an image would get slightly other features at the seam."""
        return height, width

    @torch.inference_mode()
    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Detects regions.

        Args:
            images: B images, see `Images`; where their sizes differ they are padded.
            sizes: [B, 2]; not needed, since the images still have the size of their files.

        Returns:
            As of `region_rows`: regions of width 2048, labels in 0..1599 and attributes in 0..399.
        """
        pictures = [resized(image.to(self._device)) for image in images]
        # TF32 keeps 10 bits of a factor: with it, `fp32` would not be what its name says.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            feature_map = self._network.feature_map(padded([picture.pixels for picture in pictures]))
            boxes = propose(self._network, feature_map, pictures)
            vectors = self._network.region_features(feature_map, boxes)
        said = self._network.box_predictor(vectors)
        classes, attributes = (logits.softmax(dim=1)[:, :-1] for logits in said)
        found = Proposals(boxes, [each.extent for each in pictures], vectors, classes, attributes=attributes)
        # Overlaps are those in the image file, where the pixel that a width includes weighs more than here.
        in_files = [box / picture.scale for box, picture in zip(boxes, pictures, strict=True)]
        overlaps = box_overlaps(pad_sequence(in_files, batch_first=True), extra=1)
        return region_rows(found, overlaps, _CLASS_NMS, self._settings)


def resized(image: Tensor) -> Picture:
    """Resizes [3, H, W] uint8 RGB as `caffe_size` says; bilinear without antialiasing, both axes by one factor."""
    factor, height, width = caffe_size(image.shape[1], image.shape[2])
    pixels = image.flip(0).float() - torch.tensor(_MEAN_BGR, device=image.device).view(3, 1, 1)
    pixels = _interpolate(_interpolate(pixels, 1, factor, height), 2, factor, width)
    return Picture(pixels, factor, (image.shape[2] * factor, image.shape[1] * factor))


def caffe_size(height: int, width: int) -> tuple[float, int, int]:
    """Returns the factor and the resized height and width: round half to even, where the factor itself is not round."""
    factor = SHORT_SIDE / min(height, width)
    if round(factor * max(height, width)) > LONG_SIDE:
        factor = LONG_SIDE / max(height, width)
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


def padded(images: Sequence[Tensor]) -> Tensor:
    """Joins resized images in [B, 3, H, W], zero (the mean) at the right and the bottom of the smaller ones."""
    height, width = (max(_SHORTEST_SIDE, *(image.shape[axis] for image in images)) for axis in (1, 2))
    return torch.stack([F.pad(each, (0, width - each.shape[2], 0, height - each.shape[1])) for each in images])


def caffe_anchors() -> Tensor:
    """The anchors of the Caffe original, [A, 4]: x2 and y2 are the last pixels inside the box.

    The order is size-major, three ratios (height / width = 0.5, 1, 2) for each size, as in the published conversion.
    Caffe itself orders by ratio first.
    """
    sides = torch.tensor([[width * size // 16, height * size // 16] for size in _SIZES for width, height in _WINDOWS])
    return torch.cat([_CENTRE - (sides - 1) / 2, _CENTRE + (sides - 1) / 2], dim=1)


def propose(network: ButdNetwork, feature_map: Tensor, pictures: Sequence[Picture]) -> list[Tensor]:
    """Returns the region proposals of each image, [P, 4] in pixels of the network's input, by falling objectness.

    Args:
        network: the detector.
        feature_map: [B, 1024, h, w].
        pictures: the B images.
    """
    logits, deltas = network.rpn_head(feature_map)
    height, width = feature_map.shape[-2:]
    anchors = place_anchors(caffe_anchors().to(feature_map.device), height, width, STRIDE)
    return [surest(logits[row], deltas[row], anchors, picture) for row, picture in enumerate(pictures)]


def surest(logits: Tensor, deltas: Tensor, anchors: Tensor, picture: Picture) -> Tensor:
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
    boxes = moved(deltas, anchors[:, :2] + sides / 2, sides)
    boxes = clip_boxes_to_image(boxes, (picture.pixels.shape[1] - 1, picture.pixels.shape[2] - 1))
    large = (boxes[:, 2:] - boxes[:, :2] + 1 >= _SMALLEST_SIDE * picture.scale).all(dim=1)
    boxes, logits = boxes[large], logits[large]
    order = logits.argsort(descending=True, stable=True)[:_CANDIDATES]
    # With both ends inside, a box covers what an ordinary box covers that ends one pixel later.
    ordinary = boxes[order] + boxes.new_tensor([0, 0, 1, 1])
    return boxes[order][nms(ordinary, logits[order], _PROPOSAL_NMS)[:PROPOSALS]]
