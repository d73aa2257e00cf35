"""Extractor of the bottom-up-attention detector of Visual Genome: regions with boxes, classes and attributes.

Source: Anderson et al., Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering, CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.features.extractors.base import Images, channels_first
from itrpipe.features.extractors.butd.anchors import place_anchors
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.butd.network import REGION_DIM, ButdNetwork
from itrpipe.features.extractors.butd.selection import Picture, RegionRules, Selection
from itrpipe.features.extractors.butd.weights import load_network
from itrpipe.features.store import FeatureSpec

# Of a shorter side, a line of pixels say, nothing is left after the stem.
_SHORTEST_SIDE = 3
# Of 300 proposals each; a larger batch gains nothing.
_BATCH = 4
_TYPES = {"regions": np.float16, "labels": np.int16, "attributes": np.int16}


def build(settings: Butd, device: torch.device) -> ButdExtractor:
    """Returns the extractor with the weights that the settings name.

    Raises:
        MissingInputError: there is no such file of weights, or the hub does not give it.
        DataError: the weights are damaged or of another network.
    """
    network, notes = load_network(settings)
    network = network.for_inference(device, settings.precision)
    rules = RegionRules(settings.min_regions, settings.max_regions, settings.min_score)
    return ButdExtractor(network, rules, device, notes)


class ButdExtractor:
    """Turns images into rows of a feature file; see `Extractor`. The boxes are the region proposals.

    Attributes:
        spec: regions [N, max_regions, 2048], boxes, labels, scores and attributes.
        transform: the decoded image, channels first; the resize gives fractions of grey levels and runs on the device.
        batch: see `Extractor`.
        notes: what there is to say of the weights and settings.
    """

    def __init__(
        self, network: ButdNetwork, rules: RegionRules, device: torch.device, notes: tuple[str, ...] = ()
    ) -> None:
        self.spec = FeatureSpec(rules.maximum, REGION_DIM, boxes=True, labels=True, scores=True, attributes=True)
        self.transform = channels_first
        self.notes = notes
        self.batch = _BATCH
        self._network, self._rules, self._device = network, rules, device

    def group(self, height: int, width: int) -> tuple[int, int]:
        """The size itself: padded beside a larger image, an image would get slightly other features at the seam."""
        return height, width

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Detects regions.

        Args:
            images: B images, see `Images`.
            sizes: [B, 2]; not needed, since the images still have the size of their files.

        Returns:
            regions [B, R, 2048] float16, count [B], boxes [B, R, 4] float32 in 0..1, labels [B, R] (0..1599), scores
            [B, R] float32 probability of the class, attributes [B, R] (0..399) and attribute_scores [B, R] float32.
            Rows beyond count are zero.
        """
        found = self.detect(list(images))
        rows = {"count": np.array([len(image["labels"]) for image in found], dtype=np.int16)}
        for name in self.spec.shapes().keys() - rows.keys():
            rows[name] = _padded([image[name] for image in found], self.spec.regions, _TYPES.get(name, np.float32))
        return rows

    @torch.inference_mode()
    def detect(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Detects regions in images [3, H, W] uint8 RGB; where their sizes differ they are padded.

        Returns:
            For each image its n regions: regions [n, 2048] float32 and the rest as of `__call__`.
        """
        pictures = [self._rules.resize(image.to(self._device)) for image in images]
        # TF32 keeps 10 bits of a factor: with it, `fp32` would not be what its name says.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            feature_map = self._network.feature_map(pad_pictures(pictures))
            proposals = propose(self._network, self._rules, feature_map, pictures)
            features = self._network.region_features(feature_map, proposals)
        counts = [len(boxes) for boxes in proposals]
        predictions = self._network.box_predictor(features).split(counts)
        selections = self._rules.select(predictions, proposals, pictures)
        parts = zip(selections, pictures, features.split(counts), strict=True)
        return [_arrays(*image) for image in parts]


def pad_pictures(pictures: Sequence[Picture]) -> Tensor:
    """Joins resized images in [B, 3, H, W], zero (the mean) at the right and the bottom of the smaller ones."""
    height = max(_SHORTEST_SIDE, *(picture.size[0] for picture in pictures))
    width = max(_SHORTEST_SIDE, *(picture.size[1] for picture in pictures))
    padded = [F.pad(each.pixels, (0, width - each.size[1], 0, height - each.size[0])) for each in pictures]
    return torch.stack(padded)


def propose(network: ButdNetwork, rules: RegionRules, feature_map: Tensor, pictures: Sequence[Picture]) -> list[Tensor]:
    """Returns the region proposals of each image, [P, 4] in pixels of the network's input, by falling objectness.

    Args:
        network: the detector.
        rules: choose the proposals.
        feature_map: [B, 1024, h, w].
        pictures: the B images.
    """
    logits, deltas = network.rpn_head(feature_map)
    height, width = feature_map.shape[-2:]
    anchors = place_anchors(height, width, feature_map.device)
    return [rules.propose(logits[row], deltas[row], anchors, picture) for row, picture in enumerate(pictures)]


def _arrays(selection: Selection, picture: Picture, features: Tensor) -> dict[str, Tensor]:
    return {
        "regions": features[selection.rows],
        "boxes": picture.fractions(selection.boxes),
        "labels": selection.labels,
        "scores": selection.scores,
        "attributes": selection.attributes,
        "attribute_scores": selection.attribute_scores,
    }


def _padded(parts: Sequence[Tensor], rows: int, dtype: type) -> np.ndarray:
    """Joins the arrays [n, ...] of each image in [B, rows, ...], zero beyond n."""
    joined = np.zeros((len(parts), rows, *parts[0].shape[1:]), dtype=dtype)
    for target, part in zip(joined, parts, strict=True):
        target[: len(part)] = part.cpu().numpy()
    return joined
