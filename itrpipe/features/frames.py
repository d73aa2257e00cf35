"""From a decoded image to the pixels that a vision network of transformers takes, and back to the image.

An image becomes, byte for byte, the pixels that the network's own image processor makes of it, in two halves: resizing
and cropping on bytes in the decoding threads (`Framing`), rescaling and normalising in float32 on the device
(`Preprocessing`). `Framing.boxes` says which part of the original image the network then sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tvF
from transformers.image_utils import pil_torch_interpolation_mapping

from itrpipe.errors import DataError, UsageError
from itrpipe.features.hub import PROCESSOR_FILES
from itrpipe.storage.disk import reading

PREPROCESSOR = PROCESSOR_FILES[0]
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
    """Resizes an image and cuts the frame that a network sees out of its middle.

    It does as the network's own image processor, without that one's overhead for every image.

    Attributes:
        resize: height and width to which the image is stretched; or pixels of the shorter edge, keeping the shape;
            or None, where it is not resized.
        frame: height and width of every frame. A frame larger than the image has a black margin.
        interpolation: of the resizing.
    """

    resize: tuple[int, int] | int | None
    frame: tuple[int, int]
    interpolation: InterpolationMode = InterpolationMode.BICUBIC

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Returns the frame [3, h, w] uint8 of an image [H, W, 3] uint8 RGB."""
        whole, first = self.placed(np.array([image.shape[:2]]))
        (height, width), (top, left) = whole[0].tolist(), first[0].tolist()
        # Torch takes no memory that it may not write to; images that are decoded here are never copied.
        pixels = torch.from_numpy(np.require(image, requirements="W"))
        # A view of the image as it lies in memory, which the resizing reads fastest.
        resized = tvF.resize(pixels.permute(2, 0, 1), [height, width], self.interpolation)
        if (height, width) != self.frame:
            bottom = self.frame[0] - height + top
            right = self.frame[1] - width + left
            resized = F.pad(resized, (-left, right, -top, bottom))  # less than nothing is cut off
        return resized.contiguous().numpy()

    def placed(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns how large images are when they are resized, and where the frame begins in them.

        Args:
            sizes: [B, 2] height and width of the images.

        Returns:
            Height and width [B, 2] int64; row and column [B, 2] int64, below 0 where there is a margin. An odd rest
            goes to the right and to the bottom, of a crop as of a margin.
        """
        whole = sizes
        if isinstance(self.resize, tuple):
            whole = np.broadcast_to(self.resize, sizes.shape)
        elif self.resize is not None:  # the longer edge is rounded down, as processors do
            whole = (self.resize * sizes / sizes.min(1, keepdims=True)).astype(np.int64)
        rest = whole - np.array(self.frame)
        return whole, np.sign(rest) * (np.abs(rest) // 2)

    def boxes(self, cells: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns cells of the frame as boxes of the original images.

        Args:
            cells: [R, 4] x0, y0, x1, y1 as fractions of the frame.
            sizes: [B, 2] height and width of the images.

        Returns:
            [B, R, 4] float32, clipped to 0..1: nothing of an image lies in a margin.
        """
        whole, first = self.placed(sizes)
        corner, end = (np.tile((each / whole)[:, None, ::-1], 2) for each in (first, first + self.frame))  # [B, 1, 4]
        return (corner + cells * (end - corner)).clip(0, 1).astype(np.float32)


class Preprocessing(nn.Module):
    """Everything that happens to an image before the network; as a module, the half on the device.

    Attributes:
        framing: the half on bytes.
        mean, std: [3, 1, 1] float32, in units of the bytes.
        notes: what a user should know of it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, framing: Framing, mean: Tensor, std: Tensor, notes: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.framing = framing
        self.notes = notes
        self.register_buffer("mean", mean.view(3, 1, 1), persistent=False)
        self.register_buffer("std", std.view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Rescales and normalises frames [B, 3, h, w] uint8 to pixels [B, 3, h, w] float32."""
        return images.float().sub_(self.mean).div_(self.std)  # in one place: fresh memory costs more than the sums


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
        framing = _framing(processor, name) if name in _PROCESSORS else None
        if framing is None:
            raise UsageError(
                f"{folder}: the image processor {name} gives images of different sizes, or is none of "
                f"{', '.join(_PROCESSORS)}; set a height and a width as 'size', or 'do_center_crop' and 'crop_size', "
                f"in its {PREPROCESSOR}, or choose another model."
            )
        framing(np.zeros((*framing.frame, 3), np.uint8))  # what the library reads late
        scale = 1.0 / processor.rescale_factor if processor.do_rescale else 1.0
        colours = (processor.image_mean, processor.image_std) if processor.do_normalize else ([0.0] * 3, [1.0] * 3)
        mean, std = (torch.tensor(each) * scale for each in colours)  # in float32 at once, as the processors do
        if not torch.stack([mean, std, mean / std]).isfinite().all():
            raise DataError(f"{path}: rescale_factor, image_mean and image_std make no numbers of pixels; correct them")
    rounded = name == _FLOAT_RESIZING and processor.do_rescale and processor.do_resize
    return Preprocessing(framing, mean, std, (_ROUNDED,) if rounded else ())


def _framing(processor: Any, name: str) -> Framing | None:
    """Reads the resizing and cropping from a processor's settings; None where `Framing` cannot express them."""
    resize, crop = (_sides(each) for each in (processor.size, processor.crop_size))
    if not processor.do_resize:
        resize = None
    elif resize is None:
        return None
    frame = crop if processor.do_center_crop else resize
    if name == _CONVNEXT and isinstance(resize, int):
        square = resize, resize
        frame = frame if processor.do_center_crop else square
        if resize >= _CONVNEXT_STRETCHES_FROM:
            resize = square
        elif frame == square:
            resize = int(resize / processor.crop_pct)  # to more than the frame, which is cropped
        else:
            return None  # that would be a second crop
    if processor.do_pad or not isinstance(frame, tuple):
        return None
    return Framing(resize, frame, pil_torch_interpolation_mapping[processor.resample])


def _sides(size: Any) -> tuple[int, int] | int | None:
    """Height and width in a processor's settings, or the shorter edge; None where they hold anything else."""
    match dict(size or {}):
        case {"height": height, "width": width, **others} if not others:
            return height, width
        case {"shortest_edge": edge, **others} if not others:
            return edge
    return None
