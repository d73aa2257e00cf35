"""Vision networks of transformers and timm: a vector for each patch or cell, and one for the image.

`/regions` are the last hidden state: patch tokens row by row without those before them (class, distillation,
registers), or the cells of the last feature map. `/global` is the network's own vector of an image where the weights
have one that was trained: the image embedding of CLIP and SigLIP, the output of a pooler; else it is the mean of all
tokens. Neither is divided by its length.
"""

from __future__ import annotations

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from itrpipe.encoders.encoder import VISION, Encoder, open_config, open_encoder, open_images
from itrpipe.encoders.folders import find_folder, quiet
from itrpipe.encoders.images import Grid
from itrpipe.features.extractors.base import Extractor, Images
from itrpipe.features.extractors.vision.declaration import Vision
from itrpipe.features.extractors.vision.frames import Framing
from itrpipe.features.store import FeatureSpec
from itrpipe.features.weights import RANDOM_NOTE, same_random_numbers


def build(settings: Vision, device: torch.device) -> GridExtractor:
    """Return the extractor; errors are those of `itrpipe.encoders.encoder.open_encoder`."""
    if settings.weights == "random":
        folder, notes = find_folder(settings.model, settings.revision, (VISION,), weights=False)
        config = open_config(folder)
        with quiet(), same_random_numbers():
            network = transformers.AutoModel.from_config(config, dtype=torch.float32).eval()
        encoder = Encoder(network, open_images(folder), None)
        notes = (*notes, RANDOM_NOTE)
    else:
        encoder, notes = open_encoder(settings.model, settings.revision, (VISION,))
    return GridExtractor(encoder, notes, settings.precision == "bf16", device)


class GridExtractor(Extractor):
    """Fills `/regions`, `/count`, `/boxes` and `/global` with the vectors of a network's grid.

    Boxes are the grid's cells in the original image: a cell is what a vector stands for, not all that it has seen.

    Args:
        encoder: of images.
        notes: what a user should know of it.
        bf16: whether it computes in bfloat16.
        device: where it computes.

    Attributes:
        spec, transform, notes, batch: see `Extractor`.
        encoder: in evaluation mode, on `device`.
    """

    transform: Framing
    batch = 32

    def __init__(self, encoder: Encoder, notes: tuple[str, ...], bf16: bool, device: torch.device) -> None:
        self.transform = Framing(encoder.images)
        self.notes = notes
        self.encoder = encoder.to(device)
        self._device = device
        self._bf16 = bf16
        convolutions = [part for part in encoder.modules() if isinstance(part, nn.Conv2d)]
        if len(convolutions) > 1:  # the one that cuts an image into patches would be slower
            encoder.to(memory_format=torch.channels_last)
        frame = encoder.images.frame
        regions, whole, grid = self._encode(torch.zeros(1, 3, *frame, dtype=torch.uint8))
        # The cells [R, 4] x0, y0, x1, y1 of the grid as fractions of the frame.
        frame_height, frame_width = frame
        rows, columns = np.mgrid[: grid.rows, : grid.columns]
        x = columns.ravel() * grid.width / frame_width
        y = rows.ravel() * grid.height / frame_height
        self._cells = np.stack((x, y, x + grid.width / frame_width, y + grid.height / frame_height), axis=1)
        self.spec = FeatureSpec(grid.rows * grid.columns, regions.shape[2], whole.shape[1], boxes=True)

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Extract the features of a batch.

        Args:
            images: results of `transform`, B of [3, h, w].
            sizes: [B, 2] height and width of the image files.

        Returns:
            regions [B, R, D] and global [B, G] float16, infinite where a value does not fit; count [B] int16, always
            R; boxes [B, R, 4] float32 in 0..1.
        """
        assert isinstance(images, Tensor)
        regions, whole, _ = self._encode(images)
        return {
            "regions": regions.half().cpu().numpy(),
            "global": whole.half().cpu().numpy(),
            "count": np.full(len(whole), self.spec.regions, dtype=np.int16),
            "boxes": self.transform.boxes(self._cells, sizes),
        }

    @torch.inference_mode()
    def _encode(self, images: Tensor) -> tuple[Tensor, Tensor, Grid]:
        """Return the vectors [B, R, D] of cells and [B, G] of images, and the cells."""
        frames = images.to(self._device, non_blocking=True)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            outputs = [self.encoder.image_outputs(block) for block in self.encoder.blocks(frames)]
            whole = [self.encoder.pooled(output) for output in outputs]
        grid = outputs[0].grid
        regions = [output.tokens[:, -grid.rows * grid.columns :] for output in outputs]
        return torch.cat(regions), torch.cat(whole), grid
