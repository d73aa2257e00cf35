"""From a decoded image to the pixels that a pretrained network of transformers was trained on, and back to its frame.

An image becomes, byte for byte, the pixels that the network's own image processor makes of it, in two halves: resizing
and cropping on bytes in the decoding threads (`PixelTransform`), rescaling and normalising in float32 on the device
(`PixelNormalization`). `Framing` says which part of the original image the network then sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tvF
from transformers.image_utils import pil_torch_interpolation_mapping

from itrpipe.errors import DataError, UsageError
from itrpipe.storage.disk import reading

PREPROCESSOR = "preprocessor_config.json"
_CONVNEXT = "ConvNextImageProcessor"
# It rescales before it resizes, so that its resized pixels are not rounded to bytes.
_FLOAT_RESIZING = "DINOv3ViTImageProcessor"
_OTHERS = ("Beit", "Bit", "CLIP", "DeiT", "Siglip", "ViT")
_PROCESSORS = (_CONVNEXT, _FLOAT_RESIZING, *(f"{name}ImageProcessor" for name in _OTHERS))
# From this short edge on, ConvNeXT's processor stretches the image and crops nothing.
_CONVNEXT_STRETCHES_FROM = 384
_ROUNDED = "resized pixels are rounded to 8 bits, which this model's own image processor does not do"


@dataclass(frozen=True)
class Framing:
    """How an image becomes the frame a network sees: it is resized, then the middle is cropped.

    Attributes:
        resize: height and width to which the image is stretched; or pixels of the shorter edge, keeping the shape;
            or None, where it is not resized.
        crop: height and width of the crop, or None. A crop larger than the image has a black margin.
    """

    resize: tuple[int, int] | int | None
    crop: tuple[int, int] | None

    @property
    def frame(self) -> tuple[int, int] | None:
        """Height and width of every frame, or None if they differ from image to image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def resized(self, sizes: np.ndarray) -> np.ndarray:
        """Returns height and width [B, 2] int64 after resizing images of height and width [B, 2]."""
        if self.resize is None:
            return sizes
        if isinstance(self.resize, tuple):
            return np.broadcast_to(np.array(self.resize), sizes.shape)
        # The longer edge is rounded down, as processors do.
        return (self.resize * sizes / sizes.min(1, keepdims=True)).astype(np.int64)

    def first(self, resized: np.ndarray) -> np.ndarray:
        """Returns row and column [B, 2] at which the crop begins in resized images; below 0 where there is a margin.

        An odd rest goes to the right and to the bottom, of a crop as of a margin.
        """
        rest = resized - np.array(self.crop)
        return np.sign(rest) * (np.abs(rest) // 2)

    def boxes(self, cells: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns cells of the frame as boxes of the original images.

        Args:
            cells: [R, 4] x0, y0, x1, y1 as fractions of the frame.
            sizes: [B, 2] height and width of the images.

        Returns:
            [B, R, 4] float32, clipped to 0..1: nothing of an image lies in a margin.
        """
        if self.crop is None:
            return np.tile(cells.clip(0, 1).astype(np.float32), (len(sizes), 1, 1))
        resized = self.resized(sizes)
        first = self.first(resized)
        ends = np.stack([first, first + self.crop], 1)[..., ::-1] / resized[:, None, ::-1]  # [B, 2, 2] x and y
        corner, extent = ends[:, :1], ends[:, 1:] - ends[:, :1]
        return (np.tile(corner, 2) + cells * np.tile(extent, 2)).clip(0, 1).astype(np.float32)


@dataclass(frozen=True)
class PixelTransform:
    """Resizes and crops one image as the network's own image processor does, without its overhead for every image.

    Attributes:
        framing: the sizes.
        interpolation: of the resizing.
    """

    framing: Framing
    interpolation: InterpolationMode

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Returns the frame [3, h, w] uint8 of an image [H, W, 3] uint8 RGB."""
        height, width = self.framing.resized(np.array([image.shape[:2]]))[0].tolist()
        # A view of the image as it lies in memory, which the resizing reads fastest.
        resized = tvF.resize(torch.from_numpy(image).permute(2, 0, 1), [height, width], self.interpolation)
        if self.framing.crop is not None:
            top, left = self.framing.first(np.array([height, width])).tolist()
            bottom, right = self.framing.crop[0] - height + top, self.framing.crop[1] - width + left
            resized = F.pad(resized, (-left, right, -top, bottom))  # less than nothing is cut off
        return resized.contiguous().numpy()


class PixelNormalization(nn.Module):
    """Rescales and normalises bytes to what the network takes.

    Attributes:
        mean, std: [3, 1, 1] float32, in units of the bytes.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, processor: Any) -> None:
        super().__init__()
        scale = 1.0 / processor.rescale_factor if processor.do_rescale else 1.0
        mean = processor.image_mean if processor.do_normalize else (0.0, 0.0, 0.0)
        std = processor.image_std if processor.do_normalize else (1.0, 1.0, 1.0)
        # In float32 from the start, as the processors compute it.
        self.register_buffer("mean", (torch.tensor(mean) * scale).view(3, 1, 1), persistent=False)
        self.register_buffer("std", (torch.tensor(std) * scale).view(3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns pixels [B, 3, h, w] float32 of images [B, 3, h, w] uint8."""
        return (images.float() - self.mean) / self.std


class Preprocessing(NamedTuple):
    """Everything that happens to an image before the network.

    Attributes:
        transform: the half on bytes.
        normalization: the half on the device.
        framing: the part of the image that is left.
        frame: its height and width in pixels.
        notes: what a user should know of it.
    """

    transform: PixelTransform
    normalization: PixelNormalization
    framing: Framing
    frame: tuple[int, int]
    notes: tuple[str, ...]


def load_preprocessing(folder: Path) -> Preprocessing:
    """Returns the preprocessing that a folder's `preprocessor_config.json` describes.

    Raises:
        DataError: the file is damaged.
        UsageError: the image processor is unknown here, or its images differ in size.
    """
    path = folder / PREPROCESSOR
    with reading(path, "preprocessing", "download the model again"):
        processor: Any = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        name = type(processor).__name__
        if name not in _PROCESSORS:
            raise UsageError(
                f"{folder}: the image processor {name} is not supported, supported are {', '.join(_PROCESSORS)}; "
                "choose another model."
            )
        framing = _framing(processor)
        if framing is None or framing.frame is None or processor.do_pad:
            raise UsageError(
                f"{folder}: the image processor {name} gives images of different sizes; set a height and a width as "
                f"'size', or 'do_center_crop' and 'crop_size', in its {PREPROCESSOR}."
            )
        normalization = PixelNormalization(processor)
        if not all(each.isfinite().all() for each in normalization.buffers()) or not normalization.std.all():
            raise DataError(f"{path}: rescale_factor, image_mean and image_std make no numbers of pixels; correct them")
        transform = PixelTransform(framing, pil_torch_interpolation_mapping[processor.resample])
        transform(np.zeros((*framing.frame, 3), np.uint8))  # also what the library reads late
    notes = (_ROUNDED,) if name == _FLOAT_RESIZING and processor.do_rescale and processor.do_resize else ()
    return Preprocessing(transform, normalization, framing, framing.frame, notes)


def _framing(processor: Any) -> Framing | None:
    """Reads the resizing and cropping from a processor's settings; None where `Framing` cannot express them."""
    size, crop_size = dict(processor.size or {}), dict(processor.crop_size or {})
    crop = None
    if processor.do_center_crop:
        if crop_size.keys() != {"height", "width"}:
            return None
        crop = crop_size["height"], crop_size["width"]
    if not processor.do_resize:
        return Framing(None, crop)
    if size.keys() == {"height", "width"}:
        return Framing((size["height"], size["width"]), crop)
    if size.keys() != {"shortest_edge"}:
        return None
    edge = size["shortest_edge"]
    if type(processor).__name__ != _CONVNEXT:
        return Framing(edge, crop)
    if edge >= _CONVNEXT_STRETCHES_FROM:
        return Framing((edge, edge), crop)
    # It resizes to more than the frame and crops. A further crop of other size would be a second one.
    return Framing(int(edge / processor.crop_pct), (edge, edge)) if crop in (None, (edge, edge)) else None
