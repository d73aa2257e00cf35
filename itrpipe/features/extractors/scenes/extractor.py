"""Extractor of the embedded dataset, a small Faster R-CNN with attribute heads: twelve regions per drawing.

As in bottom-up attention, a region's kind is predicted first and its attributes from the region and that kind, so that
the vector of a region tells what a thing is and what it looks like. All images have one size, an image has at most a
dozen regions: everything works on whole batches.

Source: Faster R-CNN (Ren et al. 2015), sections 3.1 and 3.3; Bottom-Up Attention (Anderson et al. 2018), section 3.1.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation, clip_boxes_to_image, roi_align

from itrpipe.errors import DataError
from itrpipe.features.extractors.base import Extractor, Images, channels_first
from itrpipe.features.extractors.regions import box_overlaps, place_anchors, shift_boxes, surviving_confidence
from itrpipe.features.extractors.scenes.declaration import WEIGHTS, Scenes
from itrpipe.features.store import FeatureSpec
from itrpipe.features.weights import fill, read_state
from itrpipe.scenes.layout import HEIGHT, WIDTH
from itrpipe.scenes.world import KINDS

REGIONS = 12
REGION_DIM = 256
GLOBAL_DIM = 96

_STRIDE = 8
_WIDTHS = (24, 40, 64, GLOBAL_DIM)
_MAP_WIDTH = 56
_ANCHOR_SIZES = (16, 28, 48, 84)
_ANCHOR_RATIOS = (0.6, 1.1, 2.0)
_ANCHORS = len(_ANCHOR_SIZES) * len(_ANCHOR_RATIOS)
_POOLED = 5
_APPEARANCE_DIM = 132
_KIND_EMBEDDING = 16
# Shifts and log scales of the second stage are small; dividing them by this brings them near 1. Source: Fast R-CNN.
_DELTA_SCALE = (0.1, 0.1, 0.2, 0.2)

_CANDIDATES = 128
_PROPOSALS = 40
_PROPOSAL_OVERLAP = 0.7
_REGION_OVERLAP = 0.5
# A proposal may not grow beyond e^4 times its anchor, whatever the network says: the exponential must stay finite.
_LARGEST_LOG_SCALE = 4.0


class ScenesExtractor(Extractor):
    """Turns drawings into rows of a feature file; see `Extractor`.

    Attributes:
        spec: which datasets it fills: regions [N, 12, 256], boxes, labels, scores and global [N, 96].
    """

    spec = FeatureSpec(REGIONS, REGION_DIM, GLOBAL_DIM, boxes=True, labels=True, scores=True)

    def __init__(self, settings: Scenes, device: torch.device) -> None:
        """Open the weights that come with the package.

        Raises:
            DataError: they are not there, are truncated or of another network.
        """
        self.transform = channels_first
        self._device = device
        self._model = ScenesDetector()
        fill(self._model, WEIGHTS, read_state(WEIGHTS), "install itrpipe again, its weights come with it")
        self._model.eval().to(device)

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Detect regions; region 0 is the whole image, then one per thing by falling score, then more.

        Args:
            images: [B, 3, 144, 192] uint8.
            sizes: [B, 2], not looked at.

        Returns:
            regions [B, 12, 256] float16, count [B] (always 12), boxes [B, 12, 4] float32 in 0..1, labels [B, 12]
            (index in `KINDS`, -1 for the whole image), scores [B, 12] in 0..1 and global [B, 96] float16.

        Raises:
            DataError: the images have another size or type.
        """
        for image in images:
            if image.shape != (3, HEIGHT, WIDTH):
                raise DataError(
                    f"images of shape {tuple(image.shape)} are no images of scenes, which are {(3, HEIGHT, WIDTH)}; "
                    "name a dataset of photographs, or another extractor."
                )
        assert isinstance(images, Tensor)
        rows = self._model(images.to(self._device))
        arrays = {name: values.cpu().numpy() for name, values in rows.items()}
        arrays["count"] = np.full(len(images), REGIONS, dtype=np.int16)
        return arrays


build = ScenesExtractor


class _Residual(nn.Module):
    """Two convolutions around which the input passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Conv2dNormActivation(width, width)
        self.second = Conv2dNormActivation(width, width, activation_layer=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(self.first(x)))


class _Backbone(nn.Module):
    """Four stages, each halving the resolution, merged into one map at stride 8 (a feature pyramid of one level)."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third, fourth = _WIDTHS
        self.fine = nn.Sequential(
            Conv2dNormActivation(3, first, stride=2), Conv2dNormActivation(first, second, stride=2), _Residual(second)
        )
        self.middle = nn.Sequential(Conv2dNormActivation(second, third, stride=2), _Residual(third))
        self.coarse = nn.Sequential(Conv2dNormActivation(third, fourth, stride=2), _Residual(fourth))
        self.from_fine = nn.Conv2d(second, _MAP_WIDTH, 2, 2)
        self.from_middle = nn.Conv2d(third, _MAP_WIDTH, 1)
        self.from_coarse = nn.Conv2d(fourth, _MAP_WIDTH, 1)
        self.merge = Conv2dNormActivation(_MAP_WIDTH, _MAP_WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the map [B, C, H / 8, W / 8], and the mean of the deepest layer [B, G], of pixels [B, 3, H, W]."""
        fine = self.fine(x)  # [B, 40, H / 4, W / 4]
        middle = self.middle(fine)  # [B, 64, H / 8, W / 8]
        coarse = self.coarse(middle)  # [B, 96, H / 16, W / 16]
        context = F.interpolate(self.from_coarse(coarse), scale_factor=2, mode="nearest")
        merged = self.from_middle(middle) + self.from_fine(fine) + context
        return self.merge(merged).float(), coarse.float().mean(dim=(2, 3))


class ScenesDetector(nn.Module):
    """Backbone, region proposals, and heads for kind, box and attributes; for inference only."""

    anchors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone = _Backbone()
        self.proposal_hidden = Conv2dNormActivation(_MAP_WIDTH, _MAP_WIDTH)
        self.objectness = nn.Conv2d(_MAP_WIDTH, _ANCHORS, 1)
        self.anchor_deltas = nn.Conv2d(_MAP_WIDTH, 4 * _ANCHORS, 1)
        self.appearance = nn.Sequential(
            nn.Linear(_MAP_WIDTH * _POOLED**2, _APPEARANCE_DIM),
            nn.ReLU(inplace=True),
            nn.Linear(_APPEARANCE_DIM, _APPEARANCE_DIM),
            nn.ReLU(inplace=True),
        )
        self.kinds = nn.Linear(_APPEARANCE_DIM, len(KINDS) + 1)
        self.region_deltas = nn.Linear(_APPEARANCE_DIM, 4)
        self.kind_embedding = nn.Embedding(len(KINDS), _KIND_EMBEDDING)
        self.attribute_hidden = nn.Linear(_APPEARANCE_DIM + _KIND_EMBEDDING, REGION_DIM - _APPEARANCE_DIM)
        self.whole_image = nn.Linear(GLOBAL_DIM, REGION_DIM)
        sides = []
        for size in _ANCHOR_SIZES:
            for ratio in _ANCHOR_RATIOS:
                sides.append((size * math.sqrt(ratio), size / math.sqrt(ratio)))
        half = torch.tensor(sides) / 2
        cell = torch.cat([-half, half], dim=1)
        anchors = place_anchors(cell, HEIGHT // _STRIDE, WIDTH // _STRIDE, _STRIDE, _STRIDE / 2)
        self.register_buffer("anchors", anchors, persistent=False)

    def propose(self, cells: Tensor) -> Tensor:
        """Return the best proposals [B, 40, 4] that do not overlap much, from the map [B, C, H, W]."""
        hidden = self.proposal_hidden(cells)
        objectness = self.objectness(hidden).permute(0, 2, 3, 1).flatten(1)  # [B, A]
        deltas = self.anchor_deltas(hidden).permute(0, 2, 3, 1).reshape(len(cells), -1, 4)  # [B, A, 4]
        best = objectness.float().topk(_CANDIDATES, dim=1).indices  # [B, K]
        boxes = decode_boxes(pick(deltas.float(), best), self.anchors[best])  # [B, K, 4]
        is_kept, _ = suppress(boxes, _PROPOSAL_OVERLAP)
        # A stable sort keeps both groups in order of their scores: the best suppressed boxes fill up.
        order = (~is_kept).byte().argsort(dim=1, stable=True)
        return pick(boxes, order[:, :_PROPOSALS])

    @torch.no_grad()
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the regions of images [B, 3, 144, 192] uint8, as of `ScenesExtractor`."""
        pixels = (images.float() - 127.5) / 64.0
        cells, pooled = self.backbone(pixels.contiguous(memory_format=torch.channels_last))
        boxes = self.propose(cells)
        crops = roi_align(cells, list(boxes), _POOLED, 1 / _STRIDE, sampling_ratio=2, aligned=True)
        appearance = self.appearance(crops.flatten(1)).view(*boxes.shape[:2], -1)  # [B, 40, 132]
        # The last kind is the background.
        probabilities = self.kinds(appearance).softmax(dim=-1)[..., : len(KINDS)]
        scores, kinds = probabilities.max(dim=-1)  # [B, 40]
        deltas = self.region_deltas(appearance) * boxes.new_tensor(_DELTA_SCALE)
        boxes = decode_boxes(deltas, boxes)

        order = scores.argsort(dim=1, descending=True, stable=True)
        # The kept boxes, then every kept box's best neighbour, then its second ... Filled up by score, a set of fixed
        # size would show the most conspicuous thing many times over; so it shows each about equally often.
        is_kept, overlaps = suppress(pick(boxes, order), _REGION_OVERLAP)
        suppressor = (overlaps & is_kept[:, :, None]).byte().argmax(dim=1)  # the first kept box that overlaps each
        itself = torch.arange(order.shape[1], device=order.device)
        group = torch.where(is_kept, itself, suppressor)  # [B, 40]
        is_same_group = group[:, :, None] == group[:, None, :]
        earlier_boxes = is_same_group.triu(diagonal=1).sum(dim=1)
        spread = earlier_boxes.argsort(dim=1, stable=True)
        chosen = pick(order, spread[:, : REGIONS - 1])  # [B, 11]
        appearance = pick(appearance, chosen)
        kinds = pick(kinds, chosen)
        with_kind = torch.cat([appearance, self.kind_embedding(kinds)], dim=-1)
        regions = torch.cat([appearance, F.relu(self.attribute_hidden(with_kind))], dim=-1)  # [B, 11, 256]
        boxes = pick(boxes, chosen) / boxes.new_tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])

        whole_region = F.relu(self.whole_image(pooled))[:, None]
        whole_box = boxes.new_tensor([0, 0, 1, 1]).expand(len(boxes), 1, 4)
        return {
            "regions": torch.cat([whole_region, regions], dim=1).half(),
            "boxes": torch.cat([whole_box, boxes], dim=1),
            "labels": F.pad(kinds, (1, 0), value=-1).to(torch.int16),
            "scores": F.pad(pick(scores, chosen), (1, 0), value=1.0),
            "global": pooled.half(),
        }


def decode_boxes(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Return boxes [..., 4]: `anchors` moved by `deltas` [..., 4], as of `shift_boxes`, and cut to the image."""
    sides = anchors[..., 2:] - anchors[..., :2]
    centres = anchors[..., :2] + sides / 2
    log_scales = deltas[..., 2:].clamp(max=_LARGEST_LOG_SCALE)
    boxes = shift_boxes(torch.cat([deltas[..., :2], log_scales], dim=-1), centres, sides)
    return clip_boxes_to_image(boxes, (HEIGHT, WIDTH))


def suppress(boxes: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Suppress overlapping boxes greedily, for all images at once.

    Args:
        boxes: [B, K, 4], the best first.
        threshold: overlap above which the later box goes.

    Returns:
        Which boxes stay, [B, K] bool; and which earlier box overlaps which later one, [B, earlier, later] bool.
    """
    overlaps = box_overlaps(boxes)
    falling = torch.arange(boxes.shape[1], 0, -1.0, device=boxes.device)[:, None]
    confidence = surviving_confidence(overlaps, falling.expand(len(boxes), -1, -1), threshold)
    return confidence > 0, (overlaps > threshold).triu(diagonal=1)


def pick(values: Tensor, indices: Tensor) -> Tensor:
    """Return `values` [B, K, ...] at `indices` [B, n] of each image: [B, n, ...]."""
    images = torch.arange(len(values), device=values.device)[:, None]
    return values[images, indices]
