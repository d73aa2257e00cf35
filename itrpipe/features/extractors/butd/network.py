"""The network of the bottom-up-attention detector: Faster R-CNN on ResNet-101 up to res4 (C4), with attributes.

Shape legend: B images, H x W their padded size in pixels, h x w cells of the feature map (16 pixels each), A anchors
per cell, K regions of all images together.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, section
3.1; layers and sizes as in its published Caffe model and in that model's conversions.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet, resnet101
from torchvision.ops import FrozenBatchNorm2d, roi_pool

from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.hub import download, fitting, local_weights, read_state

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

RANDOM = "random"
_SEED = 0
HUB_FILE = "pytorch_model.bin"
_REMEDY = "name the published unc-nlp/frcnn-vg-finetuned, or get the file again"
# Parts of the network's names -> those of the published conversion.
_NAMES = (
    (r"^rpn_head\.", "proposal_generator.rpn_head."),
    (r"^box_predictor\.", "roi_heads.box_predictor."),
    (r"^res5\.", "roi_heads.res5."),
    (r"\.bn(\d)\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut."),
    (r"\.downsample\.1\.", ".shortcut.norm."),
)


class Predictions(NamedTuple):
    """What the network says of K regions.

    Attributes:
        class_logits: [K, 1601], the last column is the background.
        attribute_logits: [K, 401], the last column says that there is no attribute.
    """

    class_logits: Tensor
    attribute_logits: Tensor


class RpnHead(nn.Module):
    """Region proposals: for every anchor of every cell how likely it holds an object, and how to move it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(_MAP_DIM, _RPN_DIM, kernel_size=3, padding=1)
        self.objectness_logits = nn.Conv2d(_RPN_DIM, ANCHORS, kernel_size=1)
        self.anchor_deltas = nn.Conv2d(_RPN_DIM, 4 * ANCHORS, kernel_size=1)

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """Returns objectness logits [B, h * w * A] and deltas [B, h * w * A, 4], both float32; rows of cells first.

        Args:
            feature_map: [B, 1024, h, w].
        """
        hidden = self.conv(feature_map).relu().float()
        logits = self.objectness_logits(hidden)  # [B, A, h, w]
        deltas = self.anchor_deltas(hidden).unflatten(1, (ANCHORS, 4))  # [B, A, 4, h, w]
        return logits.permute(0, 2, 3, 1).flatten(1), deltas.permute(0, 3, 4, 1, 2).flatten(1, 3)


class BoxPredictor(nn.Module):
    """Class and attribute of a region from its feature vector."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_score = nn.Linear(REGION_DIM, CLASSES + 1)
        self.cls_embedding = nn.Embedding(CLASSES + 1, _CLASS_DIM)
        self.fc_attr = nn.Linear(REGION_DIM + _CLASS_DIM, _ATTRIBUTE_DIM)
        self.attr_score = nn.Linear(_ATTRIBUTE_DIM, ATTRIBUTES + 1)

    def forward(self, features: Tensor) -> Predictions:
        """Predicts from features [K, 2048]."""
        class_logits = self.cls_score(features)
        # The attribute depends on the surest class, and a region of background has its own row in the embedding.
        embedded = self.cls_embedding(class_logits.argmax(dim=1))  # [K, 256]
        hidden = self.fc_attr(torch.cat([features, embedded], dim=1)).relu()
        return Predictions(class_logits, self.attr_score(hidden))


class ButdNetwork(nn.Module):
    """The detector, for inference only.

    Attributes:
        backbone: stem, res2, res3 and res4.
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
        self.rpn_head = RpnHead()
        self.box_predictor = BoxPredictor()

    def _cast(self, values: Tensor) -> Tensor:
        """To the type of the convolutions, and for bfloat16 to the order in which tensor cores want it."""
        dtype = self.rpn_head.conv.weight.dtype
        return values.to(dtype, memory_format=_memory_format(dtype))

    def feature_map(self, images: Tensor) -> Tensor:
        """Returns the map of res4.

        Args:
            images: [B, 3, H, W] float32, BGR minus its mean, zero where an image is padded.

        Returns:
            [B, 1024, h, w] of the network's type.
        """
        return self.backbone(self._cast(images))

    def region_features(self, feature_map: Tensor, boxes: Sequence[Tensor]) -> Tensor:
        """Returns the feature vectors of all images' regions, one image after the other.

        The pooling is the classic one with rounded corners, not RoIAlign: regions that round to the same cells get
        the same vector, bit for bit.

        Args:
            feature_map: [B, 1024, h, w].
            boxes: for each image [P, 4] float32, x1, y1, x2, y2 in pixels of the network's input.

        Returns:
            [K, 2048] float32, not negative.
        """
        image_of = [box.new_full((len(box), 1), number) for number, box in enumerate(boxes)]
        regions = torch.cat([torch.cat(image_of), torch.cat(list(boxes))], dim=1)  # [K, 5]
        feature_map = feature_map.float()  # the pooling knows no bfloat16; a maximum stays what it was
        return torch.cat([self._describe(feature_map, chunk) for chunk in regions.split(_REGIONS_AT_ONCE)])

    def _describe(self, feature_map: Tensor, regions: Tensor) -> Tensor:
        crops = roi_pool(feature_map, regions, _CROP, spatial_scale=1 / STRIDE)  # [K, 1024, 14, 14]
        return self.res5(self._cast(crops)).mean(dim=(2, 3), dtype=torch.float32)

    def for_inference(self, device: torch.device, precision: str) -> ButdNetwork:
        """Makes the loaded network fast: no gradients, no batch norm, and with `bf16` convolutions in bfloat16.

        The predictors stay in single precision: with the 8 bits of bfloat16 many proposals would tie.
        """
        self.eval().requires_grad_(False)
        _fold_batch_norms(self)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for stage in (self.backbone, self.res5, self.rpn_head.conv):
            stage.to(dtype).to(memory_format=_memory_format(dtype))
        return self.to(device)


def _memory_format(dtype: torch.dtype) -> torch.memory_format:
    return torch.channels_last if dtype == torch.bfloat16 else torch.contiguous_format


def _caffe_resnet101() -> ResNet:
    """torchvision's ResNet-101, changed to the one of Caffe and to what Faster R-CNN makes of its last stage."""
    body = resnet101(weights=None, norm_layer=FrozenBatchNorm2d)
    # Windows start at the first pixel and the last one may be cut: for odd sizes another map than with padding 1.
    body.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=0, ceil_mode=True)
    for stage in (body.layer2, body.layer3):
        first = next(layer for layer in stage.modules() if isinstance(layer, Bottleneck))
        # Caffe's ResNet halves the map in the first 1x1 convolution of a stage, torchvision's in the 3x3.
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    for layer in body.layer4.modules():
        if isinstance(layer, nn.Conv2d):
            layer.stride = (1, 1)
            if layer.kernel_size == (3, 3):
                # Dilated in every block, the first included, where torchvision's `replace_stride_with_dilation` is not.
                layer.dilation = layer.padding = (2, 2)
    return body


def _fold_batch_norms(network: nn.Module) -> None:
    """Multiplies every batch norm into the convolution before it; what is left of it does nothing."""
    for parent in list(network.modules()):
        for (_, conv), (name, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, FrozenBatchNorm2d):
                fixed = dict(norm.named_buffers())
                scale = fixed["weight"] * (fixed["running_var"] + norm.eps).rsqrt()
                conv.weight = nn.Parameter(conv.weight * scale[:, None, None, None], requires_grad=False)
                conv.bias = nn.Parameter(fixed["bias"] - fixed["running_mean"] * scale, requires_grad=False)
                setattr(parent, name, nn.Identity())


def load_network(settings: Butd) -> tuple[ButdNetwork, tuple[str, ...]]:
    """Returns the network with the weights that the settings name, and notes for the user.

    Raises:
        MissingInputError: there is no such file, or the hub does not give it.
        DataError: the file is damaged, is not a state dict, or is of another network; names the tensor.
    """
    if settings.weights == RANDOM:
        return random_network(), ("random weights: these features are noise",)
    path = local_weights(settings.weights)
    if path is None:
        path = download(settings.weights, settings.revision, (HUB_FILE,)) / HUB_FILE
    state = read_state(path)
    with torch.device("meta"):  # without memory: the tensors of the file take their place
        network = ButdNetwork()
    names = {name: file_name(name) for name in network.state_dict()}
    wanted = {names[name]: tensor for name, tensor in network.state_dict().items()}
    found = fitting(path, state, wanted, _REMEDY)
    network.load_state_dict({ours: found[theirs] for ours, theirs in names.items()}, assign=True)
    return network, ()


def file_name(name: str) -> str:
    """Returns the name that a tensor of `ButdNetwork` has in the published conversion."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def random_network() -> ButdNetwork:
    """Returns a network with weights from a fixed seed, scaled so that features stay within float16."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = ButdNetwork()
    network.backbone.get_submodule("stem.bn1").get_buffer("weight").fill_(1 / 64)  # of grey levels
    for block in network.modules():
        if isinstance(block, Bottleneck):
            # Else each of the 33 sums of a block with its shortcut would double the variance.
            block.bn3.get_buffer("weight").fill_(0.2)
    return network
