"""What the `scenes` detector is trained on: the objects of the scenes as tensors, and its losses.

Source: Faster R-CNN (Ren et al. 2015), Eq. 1; the attribute losses as in Bottom-Up Attention, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.datasets.scenes.layout import HEIGHT, WIDTH, Scene
from itrpipe.datasets.scenes.world import KINDS, SETTINGS, USUAL_OBJECTS
from itrpipe.features.extractors.scenes.boxes import encode, overlaps, take
from itrpipe.features.extractors.scenes.detector import ATTRIBUTES, BACKGROUND, Proposals, Regions, ScenesDetector

_ANCHOR_POSITIVE, _ANCHOR_NEGATIVE = 0.6, 0.3
_ANCHOR_SAMPLES = 32  # of each sign and image
_REGION_POSITIVE = 0.5
_REGION_SAMPLES, _REGION_POSITIVES = 24, 12  # of an image
_ATTRIBUTE_WEIGHT = 0.5
_SETTING_WEIGHT = 0.3


class Objects(NamedTuple):
    """The true objects of B images, padded to five.

    Attributes:
        boxes: [B, 5, 4] pixels; zero where there is no object.
        real: [B, 5] bool.
        kinds: [B, 5] index in `KINDS`.
        attributes: for each name of `ATTRIBUTES` the index [B, 5] of its value.
        settings: [B] index in `SETTINGS`.
    """

    boxes: Tensor
    real: Tensor
    kinds: Tensor
    attributes: dict[str, Tensor]
    settings: Tensor

    def select(self, indices: Tensor) -> Objects:
        """Returns the objects of the images at `indices` [b]."""
        attributes = {name: values[indices] for name, values in self.attributes.items()}
        return Objects(self.boxes[indices], self.real[indices], self.kinds[indices], attributes, self.settings[indices])

    def mirrored(self, flip: Tensor) -> Objects:
        """Returns the objects with those of the images in `flip` [B] bool mirrored from left to right."""
        x0, y0, x1, y1 = self.boxes.unbind(dim=-1)
        mirrored = torch.stack([WIDTH - x1, y0, WIDTH - x0, y1], dim=-1)
        return self._replace(boxes=torch.where(flip[:, None, None] & self.real[..., None], mirrored, self.boxes))


def objects_of(scenes: Sequence[Scene]) -> Objects:
    """Returns the objects of scenes as tensors."""
    boxes = torch.zeros(len(scenes), USUAL_OBJECTS, 4)
    codes = torch.zeros(len(scenes), USUAL_OBJECTS, 1 + len(ATTRIBUTES), dtype=torch.int64)
    real = torch.zeros(len(scenes), USUAL_OBJECTS, dtype=torch.bool)
    size = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
    for row, scene in enumerate(scenes):
        count = len(scene.objects)
        boxes[row, :count] = torch.tensor([item.box for item in scene.objects]) * size
        codes[row, :count] = torch.tensor(
            [
                [KINDS.index(item.kind)] + [values.index(getattr(item, name)) for name, values in ATTRIBUTES.items()]
                for item in scene.objects
            ]
        )
        real[row, :count] = True
    attributes = {name: codes[..., column] for column, name in enumerate(ATTRIBUTES, start=1)}
    settings = torch.tensor([SETTINGS.index(scene.setting) for scene in scenes])
    return Objects(boxes, real, codes[..., 0], attributes, settings)


def losses(model: ScenesDetector, images: Tensor, objects: Objects, half_precision: bool) -> dict[str, Tensor]:
    """Returns the terms of the loss, already weighted; their sum is to be minimised.

    Args:
        model: the detector.
        images: [B, 3, 144, 192] uint8 or float of the same range.
        objects: what the images show.
        half_precision: whether the convolutions compute in bfloat16; everything after them is float32.
    """
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half_precision):
        cells, pooled = model.feature_map(images)
        proposals = model.propose(cells)
    candidates = torch.cat([model.proposal_boxes(proposals), objects.boxes], dim=1)
    boxes, matched, positive, used = _sample_regions(candidates, objects)
    regions = model.look(cells, boxes)
    terms = _proposal_losses(model.anchors, proposals, objects)
    terms |= _region_losses(model, regions, boxes, objects, matched, positive, used)
    terms["setting"] = _SETTING_WEIGHT * F.cross_entropy(model.look_around(pooled)[1], objects.settings)
    return terms


def _overlaps_with(boxes: Tensor, objects: Objects) -> Tensor:
    """Returns overlaps [B, n, 5] of boxes [B, n, 4] or [n, 4]; -1 where there is no object."""
    return overlaps(boxes, objects.boxes).masked_fill(~objects.real[:, None], -1.0)


def _choose(mask: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns `count` random places [B, count] where `mask` [B, n] is true, and which of them really are."""
    keys = torch.rand(mask.shape, device=mask.device).masked_fill(~mask, -1.0)
    best = keys.topk(count, dim=1)
    return best.indices, best.values >= 0


def _proposal_losses(anchors: Tensor, proposals: Proposals, objects: Objects) -> dict[str, Tensor]:
    """Objectness and boxes of a random choice of anchors."""
    overlap = _overlaps_with(anchors.expand(len(objects.real), -1, -1), objects)  # [B, A, 5]
    best, matched = overlap.max(dim=2)
    # The anchor nearest to an object counts as positive even where none comes near enough.
    nearest = (overlap == overlap.amax(dim=1, keepdim=True).clamp(min=1e-3)).any(dim=2)
    places, wanted = _choose((best >= _ANCHOR_POSITIVE) | nearest, _ANCHOR_SAMPLES)
    others, unwanted = _choose((best < _ANCHOR_NEGATIVE) & ~nearest, _ANCHOR_SAMPLES)
    logits = take(proposals.objectness, torch.cat([places, others], dim=1))
    targets = torch.cat([wanted, torch.zeros_like(unwanted)], dim=1).float()
    sampled = torch.cat([wanted, unwanted], dim=1)
    true_boxes = take(objects.boxes, take(matched, places))[wanted]
    expected = encode(true_boxes, anchors[places][wanted])
    distance = F.smooth_l1_loss(take(proposals.deltas, places)[wanted], expected, reduction="sum", beta=1 / 9)
    return {
        "objectness": F.binary_cross_entropy_with_logits(logits[sampled], targets[sampled]),
        "anchor_box": distance / sampled.sum(),
    }


def _sample_regions(candidates: Tensor, objects: Objects) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns boxes [B, S, 4], the object [B, S] each shows, which show one at all, and which are to be used."""
    best, matched = _overlaps_with(candidates, objects).max(dim=2)  # [B, n]
    # The padding of the true boxes is empty and must not be sampled.
    whole = (candidates[..., 2:] > candidates[..., :2]).all(dim=-1)
    places, positive = _choose((best >= _REGION_POSITIVE) & whole, _REGION_POSITIVES)
    others, negative = _choose((best < _REGION_POSITIVE) & whole, _REGION_SAMPLES - _REGION_POSITIVES)
    chosen = torch.cat([places, others], dim=1)
    shows = torch.cat([positive, torch.zeros_like(negative)], dim=1)
    used = torch.cat([positive, negative], dim=1)
    return take(candidates, chosen), take(matched, chosen), shows, used


def _region_losses(
    model: ScenesDetector,
    regions: Regions,
    boxes: Tensor,
    objects: Objects,
    matched: Tensor,
    positive: Tensor,
    used: Tensor,
) -> dict[str, Tensor]:
    """Kinds of all sampled regions; boxes and attributes of those that show an object."""
    kinds = take(objects.kinds, matched)
    targets = kinds.masked_fill(~positive, BACKGROUND)
    expected = encode(take(objects.boxes, matched)[positive], boxes[positive]) / model.delta_scale
    distance = F.smooth_l1_loss(regions.deltas[positive], expected, reduction="sum", beta=1 / 9)
    _, logits = model.look_closer(regions.appearance[positive], kinds[positive])
    terms = {
        "kind": F.cross_entropy(regions.kinds[used], targets[used]),
        "box": distance / used.sum(),
    }
    for name, values in objects.attributes.items():
        terms[name] = _ATTRIBUTE_WEIGHT * F.cross_entropy(logits[name], take(values, matched)[positive])
    return terms
