"""Extractor of torchvision's Faster R-CNN: regions with boxes and classes, selected as in bottom-up attention.

The boxes are the region proposals themselves, not the detections: so a vector describes exactly its box.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, section
3.1, for the selection; Li et al., Benchmarking Detection Transfer Learning with Vision Transformers, for the network.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection import FasterRCNN, FasterRCNN_ResNet50_FPN_V2_Weights, fasterrcnn_resnet50_fpn_v2

from itrpipe.errors import DataError, MissingInputError, reason_of
from itrpipe.features.extractors.base import channels_first
from itrpipe.features.extractors.frcnn.declaration import Frcnn
from itrpipe.features.extractors.regions import Detector, Proposals, box_overlaps, in_bfloat16
from itrpipe.features.weights import RANDOM_NOTE, fill, local_weights, read_state, same_random_numbers

NAMES = tuple(FasterRCNN_ResNet50_FPN_V2_Weights.__members__)
REGION_DIM = 1024

_CLASS_SCORES = "roi_heads.box_predictor.cls_score.weight"
_RANDOM_CLASSES = 91
# Boxes per level of the feature pyramid before NMS, in torchvision; must not be fewer than are left after it.
_PRE_NMS_PROPOSALS = 1000
_REMEDY = "name weights of torchvision's fasterrcnn_resnet50_fpn_v2"
# torchvision pads a batch to a multiple of this, the stride of the coarsest feature map that is pooled.
_STRIDE = 32
# Pixels of a short side after scaling, at least: of fewer, rounding may leave none.
_THINNEST = 2


def build(settings: Frcnn, device: torch.device) -> FrcnnExtractor:
    """Return the extractor with the weights that the settings name.

    Raises:
        MissingInputError: there is no such file, or torchvision's weights cannot be fetched.
        DataError: the file is damaged, is not a state dict, or is of another network; names the tensor.
    """
    notes = ()
    if settings.weights == "random":
        notes = (RANDOM_NOTE,)
        with same_random_numbers():
            network = _network(settings, _RANDOM_CLASSES)
    else:
        path = _download(settings.weights) if settings.weights in NAMES else local_weights(settings.weights)
        if path is None:
            names = ", ".join(NAMES)
            raise MissingInputError(f"weights '{settings.weights}' are neither a file nor one of {names}; name one.")
        state = read_state(path)
        classes = len(state.get(_CLASS_SCORES, ()))
        if classes < 2:
            raise DataError(f"{path} lacks '{_CLASS_SCORES}', or a class other than the background; {_REMEDY}.")
        with torch.device("meta"):  # without memory: the tensors of the file take their place
            network = _network(settings, classes)
        notes = fill(network, path, state, _REMEDY)
        if notes:
            raise DataError(f"{notes[0]}; {_REMEDY}.")
    network.eval().requires_grad_(False)
    if settings.precision == "bf16":
        in_bfloat16(network, "backbone", "rpn.head.conv", "roi_heads.box_head")
    network = network.to(memory_format=torch.channels_last).to(device)
    return FrcnnExtractor(network, settings, device, notes)


def _network(settings: Frcnn, classes: int) -> FasterRCNN:
    return fasterrcnn_resnet50_fpn_v2(
        weights=None,
        weights_backbone=None,
        num_classes=classes,
        min_size=settings.short_side,
        max_size=settings.long_side,
        rpn_pre_nms_top_n_test=max(_PRE_NMS_PROPOSALS, settings.proposals),
        rpn_post_nms_top_n_test=settings.proposals,
    )


def _download(name: str) -> Path:
    """Return the file of torchvision's weights, downloaded unless it is there; its name says how its digest begins."""
    url = FasterRCNN_ResNet50_FPN_V2_Weights[name].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = path.stem.rpartition("-")[2]
            torch.hub.download_url_to_file(url, str(path), hash_prefix=digest, progress=sys.stderr.isatty())
        except Exception as error:  # of HTTP or of the disk
            raise MissingInputError(
                f"{url} cannot be fetched ({reason_of(error)}); put that file at {path}, or name a local file as "
                "weights."
            ) from error
    return path


@dataclass(frozen=True)
class StretchThin:
    """Puts the channels first; the scaling gives fractions of grey levels, so it runs on the device.

    An image so thin that torchvision's scaling would leave no pixel of its short side is stretched to two.

    Attributes:
        long_side: pixels to which a long side is scaled, at most.
    """

    long_side: int

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Turn [H, W, 3] uint8 into [3, h, w] uint8."""
        height, width = self.size(*image.shape[:2])
        if (height, width) != image.shape[:2]:
            image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
        return channels_first(image)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the result."""
        if max(height, width) * _THINNEST <= min(height, width) * self.long_side:
            return height, width
        if height < width:
            return _THINNEST, self.long_side
        return self.long_side, _THINNEST


class FrcnnExtractor(Detector):
    """The detector; its labels are torchvision's, from 1, since 0 is the background.

    Attributes:
        transform: see `StretchThin`.
    """

    transform: StretchThin
    width = REGION_DIM

    def __init__(self, network: Any, settings: Frcnn, device: torch.device, notes: tuple[str, ...]) -> None:
        super().__init__(network, settings, device, notes)
        self.transform = StretchThin(settings.long_side)
        self.nms = settings.nms

    def group(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the image after scaling and padding, which so depends on no other image."""
        height, width = self.transform.size(height, width)
        scaled, _ = self._network.transform.resize(torch.empty(3, height, width, device="meta"))
        height, width = scaled.shape[1:]
        return math.ceil(height / _STRIDE) * _STRIDE, math.ceil(width / _STRIDE) * _STRIDE

    def propose(self, images: list[Tensor]) -> Proposals:
        """Run the network on B images [3, h, w] uint8 of one group."""
        network = self._network
        heads = network.roi_heads
        scaled, _ = network.transform([image.float() / 255 for image in images])
        scaled.tensors = scaled.tensors.contiguous(memory_format=torch.channels_last)
        maps = network.backbone(scaled.tensors)
        boxes, _ = network.rpn(scaled, maps)
        # On its first call the pooling learns the strides from these sizes: those of tiny images would mislead it.
        padded = [tuple(scaled.tensors.shape[-2:])] * len(boxes)
        vectors = heads.box_head(heads.box_roi_pool(maps, boxes, padded))
        logits, _ = heads.box_predictor(vectors)
        probabilities = logits.softmax(dim=1)[:, 1:]
        extents = [(width, height) for height, width in scaled.image_sizes]
        overlaps = box_overlaps(pad_sequence(boxes, batch_first=True))
        return Proposals(boxes, extents, overlaps, vectors, probabilities, first_label=1)
