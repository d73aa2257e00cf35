"""The region detector of the embedded dataset: a small Faster R-CNN with attribute heads.

As in bottom-up attention, a region's kind is predicted first and its attributes from the region and that kind, so that
the vector of a region tells what a thing is and what it looks like. All images have one size, an image has at most a
dozen regions: everything works on whole batches.

Source: Faster R-CNN (Ren et al. 2015), sections 3.1 and 3.3; Bottom-Up Attention (Anderson et al. 2018), section 3.1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from itrpipe.features.extractors.scenes.boxes import decode, kept_first, make_anchors, spread, suppress, take
from itrpipe.scenes.layout import HEIGHT, WIDTH
from itrpipe.scenes.world import KINDS

REGIONS = 12
REGION_DIM = 256
GLOBAL_DIM = 96

BACKGROUND = len(KINDS)
"""Class of a region that shows no object; the kinds are 0 to BACKGROUND - 1 in the order of `KINDS`."""

STRIDE = 8
_WIDTHS = (24, 40, 64, GLOBAL_DIM)
_MAP_WIDTH = 56
_ANCHOR_SIZES = (16, 28, 48, 84)
_ANCHOR_RATIOS = (0.6, 1.1, 2.0)
_ANCHORS = len(_ANCHOR_SIZES) * len(_ANCHOR_RATIOS)
_POOLED = 5
_APPEARANCE_DIM = 132
_KIND_EMBEDDING = 16
# Shifts and log scales of the second stage are small; dividing them by this brings them near 1. Source: Fast R-CNN.
DELTA_SCALE = (0.1, 0.1, 0.2, 0.2)

_CANDIDATES = 128
_PROPOSALS = 40
_PROPOSAL_OVERLAP = 0.7
_REGION_OVERLAP = 0.5


class FeatureMap(NamedTuple):
    """What the backbone gives: `cells` [B, C, H / 8, W / 8] and `pooled` [B, G], the mean of its deepest layer."""

    cells: Tensor
    pooled: Tensor


class Regions(NamedTuple):
    """What the second stage says of boxes: `appearance` [B, R, 132], `kinds` [B, R, 25] logits, `deltas` [B, R, 4]."""

    appearance: Tensor
    kinds: Tensor
    deltas: Tensor


class Detections(NamedTuple):
    """The regions of images; region 0 is the whole image, then one per thing by falling score, then more.

    Attributes:
        regions: [B, 12, 256], never negative.
        boxes: [B, 12, 4] in 0..1.
        labels: [B, 12] index in `KINDS`; -1 for the whole image.
        scores: [B, 12] probability of the label in 0..1; 1 for the whole image.
        global_: [B, 96].
    """

    regions: Tensor
    boxes: Tensor
    labels: Tensor
    scores: Tensor
    global_: Tensor


class _ConvNorm(nn.Sequential):
    """3 x 3 convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _Residual(nn.Module):
    """Two convolutions around which the input passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _ConvNorm(width, width)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(self.first(x)))


class _Backbone(nn.Module):
    """Four stages, each halving the resolution, merged into one map at stride 8 (a feature pyramid of one level)."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third, fourth = _WIDTHS
        self.fine = nn.Sequential(_ConvNorm(3, first, 2), _ConvNorm(first, second, 2), _Residual(second))
        self.middle = nn.Sequential(_ConvNorm(second, third, 2), _Residual(third))
        self.coarse = nn.Sequential(_ConvNorm(third, fourth, 2), _Residual(fourth))
        self.from_fine = nn.Conv2d(second, _MAP_WIDTH, 2, 2)
        self.from_middle = nn.Conv2d(third, _MAP_WIDTH, 1)
        self.from_coarse = nn.Conv2d(fourth, _MAP_WIDTH, 1)
        self.merge = _ConvNorm(_MAP_WIDTH, _MAP_WIDTH)

    def forward(self, x: Tensor) -> FeatureMap:
        fine = self.fine(x)  # [B, 40, H / 4, W / 4]
        middle = self.middle(fine)  # [B, 64, H / 8, W / 8]
        coarse = self.coarse(middle)  # [B, 96, H / 16, W / 16]
        context = F.interpolate(self.from_coarse(coarse), scale_factor=2, mode="nearest")
        merged = self.from_middle(middle) + self.from_fine(fine) + context
        return FeatureMap(self.merge(merged).float(), coarse.float().mean(dim=(2, 3)))


class ScenesDetector(nn.Module):
    """Backbone, region proposals, and heads for kind, box and attributes; for inference only."""

    anchors: Tensor
    delta_scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone = _Backbone()
        self.proposal_hidden = _ConvNorm(_MAP_WIDTH, _MAP_WIDTH)
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
        attribute_dim = REGION_DIM - _APPEARANCE_DIM
        self.attribute_hidden = nn.Linear(_APPEARANCE_DIM + _KIND_EMBEDDING, attribute_dim)
        self.whole_image = nn.Linear(GLOBAL_DIM, REGION_DIM)
        anchors = make_anchors(HEIGHT // STRIDE, WIDTH // STRIDE, STRIDE, _ANCHOR_SIZES, _ANCHOR_RATIOS)
        self.register_buffer("anchors", anchors, persistent=False)
        self.register_buffer("delta_scale", torch.tensor(DELTA_SCALE), persistent=False)

    def feature_map(self, images: Tensor) -> FeatureMap:
        """Returns the backbone's output for images [B, 3, 144, 192] uint8."""
        assert images.shape[1:] == (3, HEIGHT, WIDTH), images.shape
        x = (images.float() - 127.5) / 64.0
        return self.backbone(x.contiguous(memory_format=torch.channels_last))

    def propose(self, cells: Tensor) -> Tensor:
        """Returns the best proposals [B, 40, 4] that do not overlap much, from the map [B, C, H, W]."""
        hidden = self.proposal_hidden(cells)
        objectness = self.objectness(hidden).permute(0, 2, 3, 1).flatten(1)  # [B, A]
        deltas = self.anchor_deltas(hidden).permute(0, 2, 3, 1).reshape(len(cells), -1, 4)  # [B, A, 4]
        best = objectness.float().topk(_CANDIDATES, dim=1).indices  # [B, K]
        boxes = decode(take(deltas.float(), best), self.anchors[best], WIDTH, HEIGHT)  # [B, K, 4]
        return take(boxes, kept_first(suppress(boxes, _PROPOSAL_OVERLAP), _PROPOSALS))

    def look(self, cells: Tensor, boxes: Tensor) -> Regions:
        """Returns the second stage's verdict on boxes [B, R, 4]."""
        count, regions = boxes.shape[:2]
        image = torch.arange(count, device=boxes.device, dtype=boxes.dtype).repeat_interleave(regions)
        rois = torch.cat([image[:, None], boxes.reshape(-1, 4)], dim=1)
        pooled = roi_align(cells, rois, _POOLED, 1 / STRIDE, sampling_ratio=2, aligned=True)
        appearance = self.appearance(pooled.flatten(1)).view(count, regions, -1)
        return Regions(appearance, self.kinds(appearance), self.region_deltas(appearance))

    @torch.no_grad()
    def forward(self, images: Tensor) -> Detections:
        """Detects the regions of images [B, 3, 144, 192] uint8."""
        cells, pooled = self.feature_map(images)
        boxes = self.propose(cells)
        found = self.look(cells, boxes)
        scores, kinds = found.kinds.softmax(dim=-1)[..., :BACKGROUND].max(dim=-1)  # [B, 40]
        boxes = decode(found.deltas * self.delta_scale, boxes, WIDTH, HEIGHT)
        order = scores.argsort(dim=1, descending=True, stable=True)
        chosen = take(order, spread(take(boxes, order), _REGION_OVERLAP, REGIONS - 1))
        appearance, kinds = take(found.appearance, chosen), take(kinds, chosen)
        hidden = F.relu(
            self.attribute_hidden(torch.cat([appearance, self.kind_embedding(kinds)], dim=-1))
        )  # [B, 11, 124]
        whole_image = F.relu(self.whole_image(pooled))
        boxes = take(boxes, chosen) / boxes.new_tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
        return Detections(
            regions=torch.cat([whole_image[:, None], torch.cat([appearance, hidden], dim=-1)], dim=1),
            boxes=torch.cat([boxes.new_tensor([0, 0, 1, 1]).expand(len(boxes), 1, 4), boxes], dim=1),
            labels=F.pad(kinds, (1, 0), value=-1),
            scores=F.pad(take(scores, chosen), (1, 0), value=1.0),
            global_=pooled,
        )
