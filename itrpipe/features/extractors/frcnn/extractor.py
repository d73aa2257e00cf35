"""Extractor of torchvision's Faster R-CNN: regions with boxes and classes, selected as in bottom-up attention.

The boxes are the region proposals themselves, not the detections: so a vector describes exactly its box.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, section
3.1, for the selection; Li et al., Benchmarking Detection Transfer Learning with Vision Transformers, for the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection import FasterRCNN

from itrpipe.features.extractors.base import Images, channels_first
from itrpipe.features.extractors.frcnn.declaration import Frcnn
from itrpipe.features.extractors.frcnn.weights import load_network
from itrpipe.features.extractors.region_selection import box_overlaps, select_regions, surviving_confidence
from itrpipe.features.store import FeatureSpec

REGION_DIM = 1024

# The layers that predict scores and boxes stay in single precision: in 8 bits many proposals would tie.
_BFLOAT16_PARTS = ("backbone", "rpn.head.conv", "roi_heads.box_head")
# torchvision pads a batch to a multiple of this, the stride of the coarsest feature map that is pooled.
_STRIDE = 32
# Of 300 proposals each; a larger batch takes memory and gains nothing.
_BATCH = 4
# Pixels of a short side after scaling, at least: of fewer, rounding may leave none.
_THINNEST = 2


def build(settings: Frcnn, device: str | torch.device) -> FrcnnExtractor:
    """Returns the extractor with the weights that the settings name.

    Raises:
        MissingInputError: there is no such file, or torchvision's weights cannot be fetched.
        DataError: the weights are damaged or of another network.
    """
    network, notes = load_network(settings)
    network.eval().requires_grad_(False)
    if settings.precision == "bf16":
        for name in _BFLOAT16_PARTS:
            network.set_submodule(name, _InBfloat16(network.get_submodule(name)))
    device = torch.device(device)
    return FrcnnExtractor(network.to(memory_format=torch.channels_last).to(device), settings, device, notes)


@dataclass(frozen=True)
class Prepare:
    """Puts the channels first; the scaling gives fractions of grey levels, so it runs on the device.

    An image so thin that torchvision's scaling would leave no pixel of its short side is stretched to two.

    Attributes:
        long_side: pixels to which a long side is scaled, at most.
    """

    long_side: int

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Turns [H, W, 3] uint8 into [3, h, w] uint8."""
        height, width = self.size(*image.shape[:2])
        if (height, width) != image.shape[:2]:
            image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
        return channels_first(image)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the result."""
        if max(height, width) * _THINNEST <= min(height, width) * self.long_side:
            return height, width
        return (_THINNEST, self.long_side) if height < width else (self.long_side, _THINNEST)


class Proposals(NamedTuple):
    """The region proposals of B images, P_1 + ... + P_B in all.

    Attributes:
        boxes: for each image [P_i, 4] in pixels of the scaled image, by falling objectness.
        extents: for each image height and width after scaling.
        vectors: [P_1 + ... + P_B, 1024].
        probabilities: [P_1 + ... + P_B, C] of the C classes without the background; a row sums to less than 1.
    """

    boxes: list[Tensor]
    extents: list[tuple[int, int]]
    vectors: Tensor
    probabilities: Tensor


class FrcnnExtractor:
    """Turns images into rows of a feature file; see `Extractor`.

    Attributes:
        spec: regions [N, max_regions, 1024], boxes, labels and scores.
        transform: see `Prepare`.
        notes: what there is to say of the weights.
        batch: see `Extractor`.
    """

    def __init__(self, network: FasterRCNN, settings: Frcnn, device: torch.device, notes: tuple[str, ...] = ()) -> None:
        self.spec = FeatureSpec(settings.max_regions, REGION_DIM, boxes=True, labels=True, scores=True)
        self.transform = Prepare(settings.long_side)
        self.notes = notes
        self.batch = _BATCH
        # torchvision does not say of the parts of a detector what they are.
        self._network: Any = network
        self._settings, self._device = settings, device

    def group(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the image after scaling and padding, so that padding does not depend on other images."""
        height, width = self.transform.size(height, width)
        shorter, longer = min(height, width), max(height, width)
        # The very arithmetic of torchvision, whose results are rounded down.
        factor = min(self._settings.short_side / shorter, self._settings.long_side / longer)
        return _padded(math.floor(height * factor)), _padded(math.floor(width * factor))

    @torch.inference_mode()
    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Detects regions.

        Args:
            images: B images, see `Images`.
            sizes: [B, 2]; not needed, since boxes are fractions.

        Returns:
            regions [B, R, 1024] float16, count [B] int16, boxes [B, R, 4] float32 in 0..1, labels [B, R] int16
            (torchvision's classes from 1; 0 is the background, which no region is) and scores [B, R] float32, the
            probability of the class. Rows beyond count are zero.
        """
        # TF32 keeps 10 bits of a factor: with it, `fp32` would not be what its name says.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            proposals = self.propose(images)
        kept = self._select(proposals)
        counts = [len(boxes) for boxes in proposals.boxes]
        rows = torch.cat([rows + start for rows, start in zip(kept, _starts(counts), strict=True)]).to(self._device)
        scores, labels = proposals.probabilities[rows].max(dim=1)
        fractions = [
            (boxes / boxes.new_tensor([width, height, width, height])).clamp(0, 1)
            for boxes, (height, width) in zip(proposals.boxes, proposals.extents, strict=True)
        ]
        found = {
            "regions": proposals.vectors[rows].half(),
            "boxes": torch.cat(fractions)[rows],
            "labels": (labels + 1).to(torch.int16),
            "scores": scores,
        }
        return self._rows(found, [len(rows) for rows in kept])

    def propose(self, images: Sequence[Tensor] | Tensor) -> Proposals:
        """Runs the network on B images [3, h, w] uint8 of one group."""
        network = self._network
        scaled, _ = network.transform([image.to(self._device, non_blocking=True).float() / 255 for image in images])
        scaled.tensors = scaled.tensors.contiguous(memory_format=torch.channels_last)
        maps = network.backbone(scaled.tensors)
        boxes, _ = network.rpn(scaled, maps)
        # On its first call the pooling learns the strides from these sizes: those of tiny images would mislead it.
        padded = [tuple(scaled.tensors.shape[-2:])] * len(boxes)
        vectors = network.roi_heads.box_head(network.roi_heads.box_roi_pool(maps, boxes, padded))
        logits, _ = network.roi_heads.box_predictor(vectors)
        return Proposals(boxes, scaled.image_sizes, vectors, logits.softmax(dim=1)[:, 1:])

    def _select(self, proposals: Proposals) -> list[Tensor]:
        """Returns which of its proposals each image keeps, int64 on the CPU: one transfer for the whole batch."""
        counts = [len(boxes) for boxes in proposals.boxes]
        boxes = pad_sequence(proposals.boxes, batch_first=True)  # [B, P, 4]; padded boxes have no area and no class
        probabilities = pad_sequence(list(proposals.probabilities.split(counts)), batch_first=True)  # [B, P, C]
        overlaps = box_overlaps(boxes, plus_one=False)
        confidence = surviving_confidence(overlaps, probabilities, self._settings.nms).cpu()
        limits = self._settings.min_regions, self._settings.max_regions, self._settings.min_score
        return [select_regions(row[:count], *limits) for row, count in zip(confidence, counts, strict=True)]

    def _rows(self, found: dict[str, Tensor], counts: list[int]) -> dict[str, np.ndarray]:
        """Gives each image R rows; `found` has the images' rows one after the other."""
        real = np.arange(self.spec.regions) < np.array(counts)[:, np.newaxis]  # [B, R]
        rows = {"count": np.array(counts, dtype=np.int16)}
        for name, tensor in found.items():
            values = tensor.cpu().numpy()
            rows[name] = np.zeros((*real.shape, *values.shape[1:]), dtype=values.dtype)
            rows[name][real] = values
        return rows


class _InBfloat16(nn.Module):
    """Runs a part of the network in mixed precision and gives its results in single precision."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, inputs: Tensor) -> Tensor | dict[str, Tensor]:
        with torch.autocast(inputs.device.type, torch.bfloat16):
            found = self.part(inputs)
        return {name: each.float() for name, each in found.items()} if isinstance(found, dict) else found.float()


def _padded(side: int) -> int:
    return math.ceil(side / _STRIDE) * _STRIDE


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:number]) for number in range(len(counts))]
