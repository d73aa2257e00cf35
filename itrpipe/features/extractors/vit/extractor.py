"""Vision transformers of transformers: a vector per patch, and one for the image.

| family                     | `/regions` are the patch tokens          | `/global`                                    |
|----------------------------|------------------------------------------|----------------------------------------------|
| ViT, ViT-MSN, DeiT         | after the final layer norm               | class token after that norm                  |
| DINOv2, also with          | after the final layer norm               | class token after that norm                  |
| registers; DINOv3          |                                          |                                              |
| BEiT                       | after the final layer norm; without one  | pooler: the class token; in mean-pooling     |
|                            | in mean-pooling configurations           | configurations the normed mean of patches    |
| CLIP                       | after the norm that precedes projection  | image embedding; without a projection the    |
|                            |                                          | class token after that norm                  |
| SigLIP, and SigLIP 2 of    | after the final layer norm               | image embedding: attention pooling           |
| fixed frame                |                                          |                                              |

Class, distillation and register tokens are not regions. ViT's pooler is not used: most checkpoints do not have it.
CLIP trains its last norm on the class token alone; it is applied to the patches too, so that they and the image are
of one scale. Embeddings are not divided by their length. SigLIP 2 checkpoints with frames of varying shape (NaFlex)
are not supported.

Source: "An Image is Worth 16x16 Words" (ViT), "Training data-efficient image transformers" (DeiT), "BEiT", "DINOv2",
"Vision Transformers Need Registers", "DINOv3", "Learning Transferable Visual Models From Natural Language
Supervision" (CLIP), "Sigmoid Loss for Language Image Pre-Training" (SigLIP).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from itrpipe.features.declaration import NetworkSettings
from itrpipe.features.extractors.base import Extractor, Images
from itrpipe.features.extractors.vit.declaration import Vit
from itrpipe.features.frames import Framing
from itrpipe.features.hub import PATCHES, Kind
from itrpipe.features.store import FeatureSpec
from itrpipe.features.towers import Seen, open_vision, see


def build(settings: Vit, device: torch.device) -> GridExtractor:
    """Returns the extractor of a vision transformer; errors as of `open_vision`."""
    return GridExtractor(settings, PATCHES, device)


class GridExtractor(Extractor):
    """Fills `/regions`, `/count`, `/boxes` and `/global` with the vectors of a network's grid.

    Boxes are the grid's cells in the original image: a cell is what a vector stands for, not all that it has seen.

    Args:
        settings: which network.
        kinds: that are supported.
        device: where it computes.
        memory_format: of the pixels and of convolutions.

    Attributes:
        spec, transform, notes, batch: as of `Extractor`.
        network: in evaluation mode, on `device`.
    """

    transform: Framing
    batch = 32

    def __init__(
        self,
        settings: NetworkSettings,
        kinds: Mapping[str, Kind],
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        opened, frames = open_vision(settings.model, settings.revision, kinds, random=settings.weights == "random")
        self.transform = frames.framing
        self.notes = opened.notes
        self.network = opened.network.to(device).to(memory_format=memory_format)
        self._normalise = frames.to(device)
        self._device = device
        self._bf16 = settings.precision == "bf16"
        self._memory_format = memory_format
        probe = self._see(torch.zeros(1, 3, *self.transform.frame, dtype=torch.uint8))
        self._cells = probe.grid.cells(self.transform.frame)
        whole = probe.tokens if probe.own is None else probe.own
        self.spec = FeatureSpec(len(self._cells), probe.tokens.shape[2], whole.shape[-1], boxes=True)

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Extracts the features of a batch.

        Args:
            images: results of `transform`, B of [3, h, w] uint8.
            sizes: [B, 2] height and width of the image files.

        Returns:
            regions [B, R, D] and global [B, G] float16, infinite where a value does not fit; count [B] int16, always
            R; boxes [B, R, 4] float32 in 0..1.
        """
        assert isinstance(images, Tensor)
        found = self._see(images)
        whole = found.tokens[:, 0] if found.own is None else found.own
        return {
            "regions": found.tokens[:, -self.spec.regions :].half().cpu().numpy(),
            "global": whole.half().cpu().numpy(),
            "count": np.full(len(whole), self.spec.regions, dtype=np.int16),
            "boxes": self.transform.boxes(self._cells, sizes),
        }

    @torch.inference_mode()
    def _see(self, images: Tensor) -> Seen:
        pixels = self._normalise(images.to(self._device, non_blocking=True))
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            return see(self.network, pixels.contiguous(memory_format=self._memory_format))
