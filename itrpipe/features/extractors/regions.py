"""Detectors of photographs: from region proposals to the rows of a feature file, and boxes.

The rules are those of the bottom-up-attention tool. It leaves the proposals where they are. Within each class it
suppresses the boxes that a surer box of that class covers, takes as a box's confidence the largest probability of a
class in which it survived, and keeps the surest.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, section
3.1, and the tool that wrote the published feature files.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchvision.ops import box_iou

from itrpipe.features.declaration import RegionSettings
from itrpipe.features.extractors.base import Extractor, Images, channels_first
from itrpipe.features.store import FeatureSpec


class Proposals(NamedTuple):
    """The region proposals of B images, K in all, and how a network sees them.

    Attributes:
        boxes: for each image [P, 4] in pixels of the network's input, by falling objectness.
        extents: for each image its width and height in these pixels.
        overlaps: [B, P, P] intersection over union of each image's proposals, filled up to the largest P.
        vectors: [K, D].
        probabilities: [K, C] of the classes without the background.
        first_label: number of the first class.
        attributes: [K, A] probabilities, or None.
    """

    boxes: Sequence[Tensor]
    extents: Sequence[tuple[float, float]]
    overlaps: Tensor
    vectors: Tensor
    probabilities: Tensor
    first_label: int = 0
    attributes: Tensor | None = None


class Detector(Extractor):
    """Turns images into rows of a feature file: `region_rows` of what a network proposes.

    Args:
        network: of torch, on the device, for inference.
        settings: how many regions are kept.
        device: where it computes.
        notes: what there is to say of the weights.

    Attributes:
        spec: regions [N, max_regions, `width`], boxes, labels, scores and perhaps attributes.
        transform: the decoded image, channels first; scaling gives fractions of grey levels and runs on the device.
        batch: small, since an image has hundreds of proposals; a larger one takes memory and gains nothing.
        width: of a region's vector.
        attributes: whether regions have some.
        nms: see `surviving_confidence`.
    """

    batch = 4
    width: ClassVar[int]
    attributes: ClassVar[bool] = False
    nms: float

    def __init__(self, network: Any, settings: RegionSettings, device: torch.device, notes: tuple[str, ...]) -> None:
        self.spec = FeatureSpec(
            settings.max_regions, self.width, boxes=True, labels=True, scores=True, attributes=self.attributes
        )
        self.transform = channels_first
        self.notes = notes
        self._network = network
        self._settings = settings
        self._device = device

    @abstractmethod
    def propose(self, images: list[Tensor]) -> Proposals:
        """Run the network on B images [3, h, w] uint8 of one group, on its device."""

    @torch.inference_mode()
    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Detect regions.

        Args:
            images: B images, see `Images`.
            sizes: [B, 2]; not needed, since boxes are fractions.
        """
        # TF32 keeps 10 bits of a factor: with it, `fp32` would not be what its name says.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            proposals = self.propose([image.to(self._device, non_blocking=True) for image in images])
        return region_rows(proposals, self.nms, self._settings)


class _InBfloat16(nn.Module):
    """Runs a part of a network in mixed precision and gives its results in single precision."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, inputs: Tensor) -> Tensor | dict[str, Tensor]:
        with torch.autocast(inputs.device.type, torch.bfloat16):
            outputs = self.part(inputs)
        if isinstance(outputs, dict):
            return {name: output.float() for name, output in outputs.items()}
        return outputs.float()


def in_bfloat16(network: nn.Module, *parts: str) -> None:
    """Let parts of a network compute in mixed precision.

    Layers that predict scores and boxes should not be among them: in the 8 bits of bfloat16 many proposals would tie.
    """
    for name in parts:
        network.set_submodule(name, _InBfloat16(network.get_submodule(name)))
    network.to(memory_format=torch.channels_last)


def region_rows(proposals: Proposals, nms: float, settings: RegionSettings) -> dict[str, np.ndarray]:
    """Select the regions of each image.

    Args:
        proposals: of B images.
        nms: see `surviving_confidence`.
        settings: how many are kept.

    Returns:
        count [B] int16; with R rows of each image, zero beyond its count: regions [B, R, D] float16, boxes [B, R, 4]
        float32 in 0..1, labels [B, R] int16, scores [B, R] float32, the probability of the label; and where there are
        attributes, attributes [B, R] int16 and attribute_scores [B, R] float32.
    """
    counts = [len(boxes) for boxes in proposals.boxes]
    # Boxes that only fill up have no probability: they come last in every class and cover no other.
    probabilities = pad_sequence(list(proposals.probabilities.split(counts)), batch_first=True)
    # One transfer for the whole batch.
    confidence = surviving_confidence(proposals.overlaps, probabilities, nms).cpu()
    kept = []
    fractions = []
    first = 0
    for image, boxes in enumerate(proposals.boxes):
        chosen = select_regions(
            confidence[image, : len(boxes)], settings.min_regions, settings.max_regions, settings.min_score
        )
        kept.append(first + chosen)
        fractions.append(boxes / boxes.new_tensor(proposals.extents[image] * 2))
        first += len(boxes)
    rows = torch.cat(kept).to(proposals.vectors.device)
    scores, labels = proposals.probabilities[rows].max(dim=1)
    values = {
        "regions": proposals.vectors[rows].half(),
        "boxes": torch.cat(fractions)[rows].clamp(0, 1),
        "labels": (labels + proposals.first_label).to(torch.int16),
        "scores": scores,
    }
    if proposals.attributes is not None:
        attribute_scores, attributes = proposals.attributes[rows].max(dim=1)
        values["attributes"] = attributes.to(torch.int16)
        values["attribute_scores"] = attribute_scores
    count = np.array([len(rows_of_image) for rows_of_image in kept], dtype=np.int16)
    is_real = np.arange(settings.max_regions) < count[:, None]  # [B, R]
    arrays = {"count": count}
    for name, tensor in values.items():
        array = tensor.cpu().numpy()
        arrays[name] = np.zeros((*is_real.shape, *array.shape[1:]), array.dtype)
        arrays[name][is_real] = array
    return arrays


def surviving_confidence(overlaps: Tensor, probabilities: Tensor, nms: float) -> Tensor:
    """Return how sure the detector is of each box after greedy non-maximum suppression (NMS) in every class.

    In each class the boxes come by falling probability, of equal ones the one with the higher index first; a box is
    suppressed if it overlaps by more than `nms` one that came before it and was not. All classes of all images take
    the P steps together.

    Args:
        overlaps: [B, P, P] intersection over union, symmetric.
        probabilities: [B, P, C] of the foreground classes.
        nms: largest overlap that two boxes of a class may have, 0..1.

    Returns:
        [B, P] largest probability of a class in which the box survives, 0 if there is none.
    """
    by_class = probabilities.mT.contiguous()  # [B, C, P]
    is_itself = torch.eye(overlaps.shape[-1], dtype=torch.bool, device=overlaps.device)
    covers = (overlaps > nms) & ~is_itself
    image = torch.arange(len(covers), device=covers.device)[:, None]
    suppressed = torch.zeros_like(by_class, dtype=torch.bool)
    for box in _falling(by_class).unbind(dim=-1):  # [B, C], the next box of each class
        survives = ~suppressed.gather(-1, box[..., None])
        suppressed |= covers[image, box] & survives
    # A survivor stays unsuppressed: the boxes it overlaps and that came earlier had been suppressed themselves.
    return by_class.masked_fill(suppressed, 0).amax(dim=1)


def select_regions(confidence: Tensor, minimum: int, maximum: int, threshold: float) -> Tensor:
    """Return which of an image's boxes are kept, in the order in which the tool writes them.

    Args:
        confidence: [P], by falling objectness of the proposals.
        minimum: so many boxes at least, surest first, or all of them if P is smaller.
        maximum: so many at most, surest first.
        threshold: boxes at least so sure are kept, in their own order if neither limit cuts.

    Returns:
        [n] int64 indices; of equally sure boxes the one with the higher index comes first.
    """
    kept = (confidence >= threshold).nonzero().squeeze(1)
    if len(kept) < minimum:
        return _falling(confidence)[:minimum]
    if len(kept) > maximum:
        return _falling(confidence)[:maximum]
    return kept


def _falling(values: Tensor) -> Tensor:
    """Return the order of falling values in the last dimension as numpy's `argsort()[::-1]`: of equal ones the last."""
    return values.argsort(dim=-1, stable=True).flip(-1)


def box_overlaps(boxes: Tensor) -> Tensor:
    """Return the intersection over union [B, P, P] of each image's boxes [B, P, 4]; 0 for two boxes without area."""
    return torch.vmap(box_iou)(boxes, boxes).nan_to_num()


def place_anchors(cell: Tensor, rows: int, columns: int, stride: int, start: float = 0) -> Tensor:
    """Return the anchors of a whole feature map, [rows * columns * A, 4], row by row of cells.

    Args:
        cell: [A, 4] around the origin, in pixels of the network's input.
        rows, columns: of the feature map.
        stride: pixels per cell.
        start: where the first cell has its origin.
    """
    down = torch.arange(rows, device=cell.device) * stride + start
    across = torch.arange(columns, device=cell.device) * stride + start
    y, x = torch.meshgrid(down, across, indexing="ij")
    origins = torch.stack([x, y, x, y], dim=-1).view(-1, 1, 4)
    return (origins + cell).flatten(0, 1)


def shift_boxes(deltas: Tensor, centres: Tensor, sides: Tensor) -> Tensor:
    """Move and stretch boxes. Source: Faster R-CNN, Eq. 2.

    Args:
        deltas: [..., 4] dx and dy in sides of the box, dw and dh as logarithms of factors.
        centres: [..., 2] x and y of the boxes.
        sides: [..., 2] width and height of the boxes.

    Returns:
        [..., 4] x1, y1, x2, y2.
    """
    centres = deltas[..., :2] * sides + centres
    half = deltas[..., 2:].exp() * sides / 2
    return torch.cat([centres - half, centres + half], dim=-1)
