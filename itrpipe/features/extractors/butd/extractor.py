"""Extractor of the bottom-up-attention detector of Visual Genome: regions with boxes, classes and attributes.

It does as the Caffe tool that wrote the published feature files of SCAN, VSRN and UNITER. Boxes are pixels with both
ends inside, so that a width is x2 - x1 + 1. The region proposals are the boxes: the tool describes and keeps them
without regression. The network is Faster R-CNN on ResNet-101 up to res4 (C4), with attributes.

Shape legend: B images, H x W their padded size in pixels, h x w cells of the feature map (16 pixels each), A anchors
per cell, K regions of all images together.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, CVPR 2018;
layers and sizes as in its published Caffe model and in that model's conversions.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import huggingface_hub
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.resnet import Bottleneck, ResNet, resnet101
from torchvision.ops import FrozenBatchNorm2d, clip_boxes_to_image, nms, roi_pool

from itrpipe.encoders.folders import fetching, quiet
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.regions import (
    Detector,
    Proposals,
    box_overlaps,
    in_bfloat16,
    place_anchors,
    shift_boxes,
)
from itrpipe.features.weights import RANDOM_NOTE, fill, local_weights, read_state, same_random_numbers

# Pixels to which an image is resized.
SHORT_SIDE = 600
LONG_SIDE = 1000
# Region proposals of an image at most, and by falling objectness before NMS.
PROPOSALS = 300
_CANDIDATES = 6000
# Largest overlaps of two proposals, and of two regions of one class.
_PROPOSAL_NMS = 0.7
_CLASS_NMS = 0.3
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
# With both ends inside, a box covers what an ordinary box covers that ends one pixel later.
_LAST_PIXEL = (0, 0, 1, 1)

# Of the network.
STRIDE = 16
"""Pixels of the network's input per cell of the feature map."""
ANCHORS = 12
"""Boxes per cell."""
CLASSES = 1600
ATTRIBUTES = 400
REGION_DIM = 2048

_MAP_DIM = 1024  # channels of res4
_RPN_DIM = 512
_CLASS_DIM = 256  # of the embedded class that the attributes are predicted with
_ATTRIBUTE_DIM = 512
_CROP = 14  # cells of a pooled region, per side
# One activation of res5 takes 1.6 MB per region in single precision.
_REGIONS_AT_ONCE = 50

_HUB_FILE = "pytorch_model.bin"
_REMEDY = "name the published unc-nlp/frcnn-vg-finetuned, or get the file again"
# Parts of names in the published conversion -> those of the network.
_NAMES = (
    (r"^(proposal_generator|roi_heads)\.((rpn_head|box_predictor)\.)?", ""),
    (r"\.conv(\d)\.norm\.", r".bn\1."),
    (r"\.shortcut\.norm\.", ".downsample.1."),
    (r"\.shortcut\.", ".downsample.0."),
)
# What the published conversion holds besides: of training, of other ways to resize, and of moving boxes.
_UNREAD = re.compile(r"\.num_batches_tracked$|pixel_(mean|std)$|\.cell_anchors\.|\.bbox_pred\.")


def build(settings: Butd, device: torch.device) -> ButdExtractor:
    """Return the extractor with the weights that the settings name.

    Raises:
        MissingInputError: there is no such file of weights, or the hub does not give it.
        DataError: the weights are damaged or of another network.
    """
    network, notes = load_network(settings)
    network.eval().requires_grad_(False)
    _fold_batch_norms(network)
    if settings.precision == "bf16":
        parts = ("backbone", "res5", "conv")
        for part in parts:
            network.get_submodule(part).bfloat16()  # once, where otherwise every pass would round the weights
        in_bfloat16(network, *parts)
    return ButdExtractor(network.to(device), settings, device, notes)


class ButdExtractor(Detector):
    """The detector; labels are in 0..1599 and attributes in 0..399."""

    width = REGION_DIM
    attributes = True
    nms = _CLASS_NMS

    def group(self, height: int, width: int) -> tuple[int, int]:
        """Return the size itself: padded beside a larger image, an image would get other features at the seam."""
        return height, width

    def propose(self, images: list[Tensor]) -> Proposals:
        """Run the network on B images [3, H, W] uint8 of one size; the boxes are the region proposals."""
        network: ButdNetwork = self._network
        pixels, scale = resized(torch.stack(images))
        height, width = pixels.shape[2:]
        margin_right = max(0, _SHORTEST_SIDE - width)
        margin_below = max(0, _SHORTEST_SIDE - height)
        feature_map = network.backbone(F.pad(pixels, (0, margin_right, 0, margin_below)))
        rows, columns = feature_map.shape[2:]
        anchors = place_anchors(caffe_anchors().to(self._device), rows, columns, STRIDE)
        boxes = []
        for logits, deltas in zip(*network.anchor_scores(feature_map), strict=True):
            boxes.append(surest(logits, deltas, anchors, (height, width), scale))
        vectors = network.region_features(feature_map, boxes)
        class_logits, attribute_logits = network.predictions(vectors)
        classes = class_logits.softmax(dim=1)[:, :-1]
        attributes = attribute_logits.softmax(dim=1)[:, :-1]
        # Overlaps are those in the image file, where the pixel that a width includes weighs more than here.
        in_file = pad_sequence(boxes, batch_first=True) / scale
        overlaps = box_overlaps(in_file + in_file.new_tensor(_LAST_PIXEL))
        # In pixels here; not always whole, and so not always the size of `pixels`.
        extent = (images[0].shape[2] * scale, images[0].shape[1] * scale)
        return Proposals(boxes, [extent] * len(images), overlaps, vectors, classes, attributes=attributes)


def resized(images: Tensor) -> tuple[Tensor, float]:
    """Resize images as `caffe_size` says; bilinear without antialiasing, both axes by one factor.

    Args:
        images: [B, 3, H, W] uint8 RGB.

    Returns:
        Pixels [B, 3, h, w] float32, BGR minus the mean; and how many of them a pixel of the file becomes.
    """
    factor, height, width = caffe_size(*images.shape[2:])
    mean = torch.tensor(_MEAN_BGR, device=images.device).view(3, 1, 1)
    pixels = images.flip(1).float() - mean
    pixels = _interpolate(pixels.mT, factor, height).mT
    return _interpolate(pixels, factor, width), factor


def caffe_size(height: int, width: int) -> tuple[float, int, int]:
    """Return the factor and the resized height and width: round half to even, where the factor itself is not round."""
    factor = SHORT_SIDE / min(height, width)
    if round(factor * max(height, width)) > LONG_SIDE:
        factor = LONG_SIDE / max(height, width)
    return factor, max(1, round(factor * height)), max(1, round(factor * width))


def _interpolate(image: Tensor, factor: float, length: int) -> Tensor:
    """Resize the last axis of an image to `length` as OpenCV does for a given factor.

    Pixel i lies at (i + 0.5) / factor - 0.5. torch's `interpolate` takes the factor from the sizes, where it was
    rounded; at edges that is wrong by up to 60 grey levels.
    """
    last = image.shape[-1] - 1
    pixels = torch.arange(length, dtype=torch.float64, device=image.device)
    places = ((pixels + 0.5) / factor - 0.5).clamp(0, last)
    left = places.long()
    right = (left + 1).clamp(max=last)
    return torch.lerp(image[..., left], image[..., right], (places - left).float())


def caffe_anchors() -> Tensor:
    """Return the anchors of the Caffe original, [A, 4]: x2 and y2 are the last pixels inside the box.

    The order is size-major, three ratios (height / width = 0.5, 1, 2) for each size, as in the published conversion.
    Caffe itself orders by ratio first.
    """
    sides = []
    for size in _SIZES:
        for width, height in _WINDOWS:
            sides.append([width * size // 16, height * size // 16])
    half = (torch.tensor(sides) - 1) / 2
    return torch.cat([_CENTRE - half, _CENTRE + half], dim=1)


def surest(logits: Tensor, deltas: Tensor, anchors: Tensor, size: tuple[int, int], scale: float) -> Tensor:
    """Drop what is too small first, take the surest anchors after that, and then apply NMS.

    Args:
        logits: [M] objectness of every anchor of the feature map.
        deltas: [M, 4] how far the object is from the anchor.
        anchors: [M, 4] in pixels of the network's input.
        size: height and width of the image, in these pixels.
        scale: of these pixels per pixel of the image file.

    Returns:
        [P, 4] by falling objectness, in pixels of the network's input.
    """
    sides = anchors[:, 2:] - anchors[:, :2] + 1
    # x2 comes out one too large for a box with both ends inside. The original does so too.
    boxes = shift_boxes(deltas, anchors[:, :2] + sides / 2, sides)
    boxes = clip_boxes_to_image(boxes, (size[0] - 1, size[1] - 1))
    is_large = (boxes[:, 2:] - boxes[:, :2] + 1 >= _SMALLEST_SIDE * scale).all(dim=1)
    boxes = boxes[is_large]
    logits = logits[is_large]
    order = logits.argsort(descending=True, stable=True)[:_CANDIDATES]
    boxes = boxes[order]
    kept = nms(boxes + boxes.new_tensor(_LAST_PIXEL), logits[order], _PROPOSAL_NMS)
    return boxes[kept[:PROPOSALS]]


# The network.


class ButdNetwork(nn.Module):
    """The detector, for inference only.

    Attributes:
        backbone: stem, res2, res3 and res4; makes the feature map [B, 1024, h, w] of images [B, 3, H, W] float32, BGR
            minus its mean.
        res5: last stage of the ResNet; runs on each region's crop of the feature map.
    """

    def __init__(self) -> None:
        super().__init__()
        body = _caffe_resnet101()
        stem = nn.Sequential(
            OrderedDict(conv1=body.conv1, bn1=body.bn1, relu=nn.ReLU(inplace=True), maxpool=body.maxpool)
        )
        self.backbone = nn.Sequential(OrderedDict(stem=stem, res2=body.layer1, res3=body.layer2, res4=body.layer3))
        self.res5 = body.layer4
        self.conv = nn.Conv2d(_MAP_DIM, _RPN_DIM, kernel_size=3, padding=1)
        self.objectness_logits = nn.Conv2d(_RPN_DIM, ANCHORS, kernel_size=1)
        self.anchor_deltas = nn.Conv2d(_RPN_DIM, 4 * ANCHORS, kernel_size=1)
        self.cls_score = nn.Linear(REGION_DIM, CLASSES + 1)
        self.cls_embedding = nn.Embedding(CLASSES + 1, _CLASS_DIM)
        self.fc_attr = nn.Linear(REGION_DIM + _CLASS_DIM, _ATTRIBUTE_DIM)
        self.attr_score = nn.Linear(_ATTRIBUTE_DIM, ATTRIBUTES + 1)

    def anchor_scores(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """Predict for every anchor of every cell how likely it holds an object, and how to move it.

        Args:
            feature_map: [B, 1024, h, w].

        Returns:
            Objectness logits [B, h * w * A] and deltas [B, h * w * A, 4]; rows of cells first.
        """
        hidden = self.conv(feature_map).relu()
        logits = self.objectness_logits(hidden)  # [B, A, h, w]
        logits = logits.permute(0, 2, 3, 1).flatten(1)
        deltas = self.anchor_deltas(hidden).unflatten(1, (ANCHORS, 4))  # [B, A, 4, h, w]
        deltas = deltas.permute(0, 3, 4, 1, 2).flatten(1, 3)
        return logits, deltas

    def region_features(self, feature_map: Tensor, boxes: Sequence[Tensor]) -> Tensor:
        """Return the feature vectors of all images' regions, one image after the other.

        The pooling is the classic one with rounded corners, not RoIAlign: regions that round to the same cells get
        the same vector, bit for bit.

        Args:
            feature_map: [B, 1024, h, w].
            boxes: for each image [P, 4] float32, x1, y1, x2, y2 in pixels of the network's input.

        Returns:
            [K, 2048] float32, not negative.
        """
        vectors = []
        for cells, regions in zip(feature_map.split(1), boxes, strict=True):
            crops = roi_pool(cells, [regions], _CROP, spatial_scale=1 / STRIDE)  # [P, 1024, 14, 14]
            for some_crops in crops.split(_REGIONS_AT_ONCE):
                vectors.append(self.res5(some_crops).mean(dim=(2, 3)))
        return torch.cat(vectors)

    def predictions(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of classes [K, 1601] and attributes [K, 401] of features [K, 2048].

        The last columns are the background, and that there is no attribute.
        """
        class_logits = self.cls_score(features)
        # The attribute depends on the surest class, and a region of background has its own row in the embedding.
        embedded = self.cls_embedding(class_logits.argmax(dim=1))  # [K, 256]
        hidden = self.fc_attr(torch.cat([features, embedded], dim=1)).relu()
        return class_logits, self.attr_score(hidden)


def _caffe_resnet101() -> ResNet:
    """Return torchvision's ResNet-101, changed to the one of Caffe and to what Faster R-CNN makes of its last stage."""
    body = resnet101(weights=None, norm_layer=FrozenBatchNorm2d)
    # Windows start at the first pixel and the last one may be cut: for odd sizes another map than with padding 1.
    body.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=0, ceil_mode=True)
    for stage in (body.layer2, body.layer3):
        first = next(layer for layer in stage.modules() if isinstance(layer, Bottleneck))
        # Caffe's ResNet halves the map in the first 1x1 convolution of a stage, torchvision's in the 3x3.
        first.conv1.stride = (2, 2)
        first.conv2.stride = (1, 1)
    for layer in body.layer4.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride = (1, 1)
            if layer.kernel_size == (3, 3):
                # Dilated in every block, the first included, where torchvision's `replace_stride_with_dilation` is not.
                layer.dilation = layer.padding = (2, 2)
    return body


def _fold_batch_norms(network: nn.Module) -> None:
    """Multiply every batch norm into the convolution before it; what is left of it does nothing."""
    for parent in list(network.modules()):
        for (_, conv), (name, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, FrozenBatchNorm2d):
                fixed = dict(norm.named_buffers())
                conv.weight, conv.bias = fuse_conv_bn_weights(
                    conv.weight,
                    conv.bias,
                    fixed["running_mean"],
                    fixed["running_var"],
                    norm.eps,
                    fixed["weight"],
                    fixed["bias"],
                )
                setattr(parent, name, nn.Identity())


def load_network(settings: Butd) -> tuple[ButdNetwork, tuple[str, ...]]:
    """Return the network with the weights that the settings name, and notes for the user.

    Raises:
        MissingInputError: there is no such file, or the hub does not give it.
        DataError: the file is damaged, is not a state dict, or is of another network; names the tensor.
    """
    if settings.weights == "random":
        with same_random_numbers():
            network = ButdNetwork()
        # Scaled so that features stay within float16.
        network.backbone.get_submodule("stem.bn1").get_buffer("weight").fill_(1 / 64)  # of grey levels
        for block in network.modules():
            if isinstance(block, Bottleneck):
                # Else each of the 33 sums of a block with its shortcut would double the variance.
                block.bn3.get_buffer("weight").fill_(0.2)
        return network, (RANDOM_NOTE,)
    path = local_weights(settings.weights)
    if path is None:
        with fetching(settings.weights, settings.revision), quiet(progress=sys.stderr.isatty()):
            path = Path(huggingface_hub.hf_hub_download(settings.weights, _HUB_FILE, revision=settings.revision))
    with torch.device("meta"):  # without memory: the tensors of the file take their place
        network = ButdNetwork()
    state = {}
    for name, tensor in read_state(path).items():
        if _UNREAD.search(name):
            continue
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        state[name] = tensor
    return network, fill(network, path, state, _REMEDY)
