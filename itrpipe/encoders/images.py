"""Readers of images: they make frames by a network's own image processor, and read the network's outputs.

Shapes: B images, h and w height and width of a frame (what the network sees of an image), n tokens, D width of a
vector.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from itrpipe.errors import DataError, UsageError

Pool = Literal["auto", "own", "mean", "cls"]
_SIDE = 64
"""Side in pixels of the images that a processor is tried with."""
_WHITE = 255
_ROUNDING = 1e-2
"""Levels of a frame of bytes are whole numbers but for so much."""


class Grid(NamedTuple):
    """Cells of a frame, row by row from its upper left corner.

    Attributes:
        rows, columns: how many.
        height, width: of a cell, in pixels of the frame.
    """

    rows: int
    columns: int
    height: float
    width: float


class ImageOutputs(NamedTuple):
    """The outputs of a network for images.

    Attributes:
        tokens: [B, n, D'], the last of them those of the cells, row by row; class token and registers come before.
        own: [B, D] the network's own vectors; None where it has none.
        grid: the cells.
    """

    tokens: Tensor
    own: Tensor | None
    grid: Grid


class ImageReader(nn.Module):
    """Makes frames of images as the image processor of a model does, and reads the outputs of its network.

    Args:
        processor: of transformers.

    Raises:
        DataError: the processor makes no numbers of colours.
        UsageError: it makes frames of different sizes.

    Attributes:
        processor: as given.
        frame: h and w.
        in_bytes: whether frames are bytes. Some processors scale colours before they resize, and frames of these are
            real numbers.
        scale, shift: [3, 1, 1] float32, of the colours.
        colours: which of red, green and blue each of the three channels of a frame is.
        interpolation: `bicubic` or `bilinear`, as the processor resizes.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, processor: Any) -> None:
        super().__init__()
        self.processor = processor
        name = type(processor).__name__
        # Processors name their colours and sizes in many ways; what they do to an image tells all of it.
        black = self.pixels(np.zeros((_SIDE, _SIDE, 3), np.uint8))
        white = self.pixels(np.full((_SIDE, _SIDE, 3), _WHITE, np.uint8))
        colour = np.array([0, 1, 2], np.uint8) * (_WHITE // 2)
        coloured = self.pixels(np.tile(colour, (_SIDE, _SIDE, 1)))
        noise = np.random.default_rng(0).integers(0, _WHITE, (2 * _SIDE, _SIDE, 3), dtype=np.uint8)
        noisy = self.pixels(noise)
        if black.ndim != 3 or noisy.shape != black.shape:
            raise UsageError(
                f"the image processor {name} makes images of different sizes, or patches of them, "
                "which cannot lie in one batch; set a height and a width in its preprocessor_config.json"
            )
        _, height, width = black.shape
        self.frame = (height, width)
        row, column = height // 2, width // 2  # the middle, since a frame may have margins
        shift = black[:, row, column].view(3, 1, 1)
        scale = (white[:, row, column].view(3, 1, 1) - shift) / _WHITE
        if not (scale.isfinite() & shift.isfinite() & (scale != 0)).all():
            raise DataError(
                f"the image processor {name} makes no numbers of colours; correct image_std and "
                "rescale_factor in its preprocessor_config.json"
            )
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)
        # Frames are made on the processor, wherever the network is, and a module moves no tuple.
        self._on_host = scale.clone(), shift.clone()
        shown = self.levels(coloured)[:, row, column] / (_WHITE // 2)
        self.colours = shown.round().int().tolist()
        self.interpolation = "bicubic"  # Lanczos, too
        if getattr(processor, "resample", None) == Image.Resampling.BILINEAR:
            self.interpolation = "bilinear"
        levels = self.levels(noisy)
        self.in_bytes = bool((levels - levels.round()).abs().max() < _ROUNDING)
        # Most processors can be asked for bytes, which takes a quarter of the time.
        self._gives_bytes = self.in_bytes and hasattr(processor, "do_rescale") and hasattr(processor, "do_normalize")

    def pixels(self, image: np.ndarray) -> Tensor:
        """Return what the processor makes of an image [H, W, 3] uint8 RGB: [3, h, w] float32, normalised."""
        return self.processor(Image.fromarray(image), return_tensors="pt")["pixel_values"][0]

    def framed(self, image: np.ndarray) -> Tensor:
        """Return the frame of an image [H, W, 3] uint8 RGB: [3, h, w], uint8 where that loses nothing."""
        if not self.in_bytes:
            return self.pixels(image)
        if not self._gives_bytes:
            return self.as_bytes(self.pixels(image))
        frames = self.processor(
            np.require(image, requirements="W"),  # torch warns of memory that it may not write to
            do_rescale=False,
            do_normalize=False,
            input_data_format="channels_last",
            return_tensors="pt",
        )
        return frames["pixel_values"][0].to(torch.uint8)

    def as_bytes(self, frames: Tensor) -> Tensor:
        """Return frames [..., 3, h, w] as bytes; those of pixels are rounded."""
        if frames.dtype == torch.uint8:
            return frames
        return self.levels(frames).round_().clamp_(0, _WHITE).to(torch.uint8)

    def levels(self, pixels: Tensor) -> Tensor:
        """Return pixels [..., 3, h, w] as levels of 0 to 255, not rounded, on the CPU."""
        scale, shift = self._on_host
        return (pixels - shift) / scale

    def cropped(self, image: np.ndarray, box: np.ndarray) -> Tensor:
        """Return a part of an image as a frame [3, h, w] uint8, resized in the way of the processor.

        Args:
            image: [H, W, 3] uint8 RGB.
            box: top, left, height and width of the part, in pixels.
        """
        top, left, height, width = box.tolist()
        part = image[top : top + height, left : left + width]
        pixels = torch.from_numpy(part).permute(2, 0, 1)[None]
        resized = F.interpolate(pixels, self.frame, mode=self.interpolation, antialias=True)
        return resized[0, self.colours]

    def normalised(self, frames: Tensor) -> Tensor:
        """Return pixels [B, 3, h, w] float32 of frames; those that are no bytes are pixels."""
        if frames.dtype != torch.uint8:
            return frames
        return frames.float().mul_(self.scale).add_(self.shift)  # in one place: fresh memory costs more than the sums

    def read_outputs(self, outputs: Any, patch: int) -> ImageOutputs:
        """Return the outputs of a network for frames, with the grid of their cells.

        Args:
            outputs: of the network.
            patch: smallest side of a cell, in pixels.
        """
        height, width = self.frame
        tokens = outputs.last_hidden_state
        vectors = own_vector(outputs)
        if tokens.ndim == 4:  # [B, D', rows, columns]
            rows, columns = tokens.shape[2:]
            grid = Grid(rows, columns, height / rows, width / columns)
            return ImageOutputs(tokens.flatten(2).transpose(1, 2), vectors, grid)
        # The finest grid of square cells that has at most so many.
        side = patch
        while (height // side) * (width // side) > tokens.shape[1]:
            side += 1
        return ImageOutputs(tokens, vectors, Grid(height // side, width // side, side, side))


def own_vector(outputs: Any) -> Tensor | None:
    """Return the vectors [N, D] that stand for whole images or captions in the output of a network, if there are some.

    Raises:
        UsageError: the output has one vector for each token instead.
    """
    vectors = outputs if isinstance(outputs, Tensor) else getattr(outputs, "pooler_output", None)
    if vectors is None:
        return None
    if vectors.ndim == 4:  # [N, D, 1, 1] of a convolutional network
        vectors = vectors.flatten(1)
    if vectors.ndim != 2:
        raise UsageError(
            f"the network returns {type(outputs).__name__} with {list(vectors.shape)}, not one vector for each image "
            "or caption, and how it is pooled is not known; choose another model"
        )
    return vectors
