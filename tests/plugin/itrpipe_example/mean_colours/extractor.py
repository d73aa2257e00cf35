"""The extractor itself."""

import numpy as np
import torch

from itrpipe.features.extractors.base import channels_first
from itrpipe.features.store import FeatureSpec


class MeanColoursExtractor:
    """Regions [B, cells^2, 3] in 0..1, and their boxes as fractions of the image."""

    notes = ()
    batch = 64
    transform = staticmethod(channels_first)

    def __init__(self, cells):
        self.cells = cells
        self.spec = FeatureSpec(regions=cells * cells, region_dim=3, boxes=True)

    def group(self, height, width):
        """Images of one size share a batch."""
        return height, width

    def __call__(self, images, sizes):
        pixels = (images if isinstance(images, torch.Tensor) else torch.stack(list(images))).float() / 255
        means = torch.nn.functional.adaptive_avg_pool2d(pixels, self.cells)  # [B, 3, cells, cells]
        row, column = np.divmod(np.arange(self.cells**2), self.cells)
        boxes = np.stack([column, row, column + 1, row + 1], axis=1).astype(np.float32) / self.cells
        return {
            "regions": means.flatten(2).transpose(1, 2).cpu().numpy(),
            "boxes": np.broadcast_to(boxes, (len(pixels), *boxes.shape)),
            "count": np.full(len(pixels), self.cells**2),
        }


def build(settings, device):
    """Makes the extractor; a mean needs no accelerator."""
    return MeanColoursExtractor(settings.cells)
