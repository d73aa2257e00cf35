"""Extractor of the images themselves, in one size, for models that train their own visual network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from itrpipe.features.extractors.base import Extractor, Images, Transform, channels_first
from itrpipe.features.extractors.pixels.declaration import Pixels
from itrpipe.features.store import FeatureSpec


def build(settings: Pixels, device: torch.device) -> PixelExtractor:
    """Returns the extractor; decoding processes do all of its work, so the device has none."""
    return PixelExtractor(Resize(settings.height, settings.width, settings.fit), (settings.height, settings.width))


@dataclass(frozen=True)
class Resize:
    """Resizes a decoded image by bicubic interpolation, with antialiasing where it shrinks.

    Attributes:
        height, width: of the result in pixels.
        fit: `stretch` both sides independently, or `crop` the largest part in the middle that has the right shape.
    """

    height: int
    width: int
    fit: Literal["stretch", "crop"]

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Turns [H, W, 3] uint8 into [3, height, width] uint8."""
        resize = ImageOps.fit if self.fit == "crop" else Image.Image.resize
        resized = resize(Image.fromarray(image), (self.width, self.height), Image.Resampling.BICUBIC)
        return channels_first(np.asarray(resized))


class PixelExtractor(Extractor):
    """Hands resized images on; see `Extractor`.

    Args:
        transform: the resize.
        frame: height and width of what it gives.

    Attributes:
        spec: pixels [N, height, width, 3].
        transform: as given.
    """

    def __init__(self, transform: Transform, frame: tuple[int, int]) -> None:
        self.spec = FeatureSpec(0, 0, pixels=frame)
        self.transform = transform

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Returns `pixels` [B, height, width, 3] uint8 of images [B, 3, height, width] uint8."""
        assert isinstance(images, Tensor)
        return {"pixels": np.ascontiguousarray(images.permute(0, 2, 3, 1).cpu().numpy())}
