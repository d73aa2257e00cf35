"""Random changes of training images, each image by draws of its own: crops, flips and RandAugment, on bytes.

All draws come from a numpy generator that is given, so that a resumed run sees the images of an uninterrupted one. They
are drawn for whole batches, and applied where the images are: on a GPU a batch at a time.

Source: RandAugment (Cubuk et al., 2020); which operations and how strong they are as in FNE's released code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as image_functional

SMALLEST_AREA = 0.5
RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10

_LEVEL = 0.7  # level 7 of 10
_OPERATIONS_PER_IMAGE = 2
_PROBABILITY = 0.5
_FILL = 128.0
# Full strength of each kind; a shift is of the side, 10 pixels of 384.
_ROTATION = 30.0
_SHEAR = 0.3
_SHIFT = 10 / 384
_ENHANCEMENT = 0.1 + 1.8 * _LEVEL

# At 384 pixels an image takes 5 ms, more than a GPU needs to train on it.
_THREADS = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="augment")


class Changes(NamedTuple):
    """The changes of the B images of a batch.

    Attributes:
        boxes: int64 [B, 4] top, left, height and width of the part that is kept, in pixels.
        flips: bool [B], which are mirrored then.
        operations: int64 [B, 2] numbers of two operations of RandAugment, one after the other.
        signs: int64 [B, 2] their directions, 1 or -1; 0 where one is left out.
    """

    boxes: np.ndarray
    flips: np.ndarray
    operations: np.ndarray
    signs: np.ndarray

    def of(self, rows: slice) -> Changes:
        """Return the changes of some of the images."""
        return Changes(*(each[rows] for each in self))


def draw_changes(may_flip: np.ndarray, size: tuple[int, int], kind: str, rng: np.random.Generator) -> Changes:
    """Draw changes of a batch, each image's independent of the others'.

    Args:
        may_flip: bool [B], images whose captions stay true of them when they are mirrored.
        size: height and width of the images.
        kind: `crop` keeps a part of each, `flip` also mirrors half of those that it may, `full` also applies
            RandAugment.
        rng: of the batch.
    """
    count = len(may_flip)
    boxes = crop_boxes(count, *size, rng)
    flips = (rng.random(count) < 0.5) & may_flip & (kind != "crop")
    operations = rng.integers(len(_POINTWISE) + _WARPS, size=(count, _OPERATIONS_PER_IMAGE))
    applied = (rng.random(operations.shape) < _PROBABILITY) & (kind == "full")
    return Changes(boxes, flips, operations, np.where(rng.random(operations.shape) < 0.5, 1, -1) * applied)


def crop_boxes(count: int, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Random parts of images, int64 [B, 4]: top, left, height and width in pixels.

    The share of the area is uniform in 0.5..1, the shape against the image's log-uniform in 3:4 to 4:3; where ten
    draws do not fit it is the whole image.
    """
    areas = rng.uniform(SMALLEST_AREA, 1.0, (count, _ATTEMPTS)) * height * width
    ratios = np.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1]), (count, _ATTEMPTS))) * width / height
    widths = np.rint(np.sqrt(areas * ratios))
    heights = np.rint(np.sqrt(areas / ratios))
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    rows = np.arange(count)
    first = fits.argmax(axis=1)
    found = fits.any(axis=1)
    kept_width = np.where(found, widths[rows, first], width).astype(np.int64)
    kept_height = np.where(found, heights[rows, first], height).astype(np.int64)
    top = rng.integers(height - kept_height + 1)
    left = rng.integers(width - kept_width + 1)
    return np.stack([top, left, kept_height, kept_width], axis=1)


def augment(images: Tensor, frame: tuple[int, int], changes: Changes) -> Tensor:
    """Change every image of a batch, where the images are.

    Args:
        images: [B, 3, H, W] uint8.
        frame: height and width of the results.
        changes: of each image.

    Returns:
        [B, 3, h, w] uint8, on the device of the images. A GPU rounds once where a processor rounds twice.
    """
    device = images.device
    if device.type == "cpu":
        changed = torch.empty(len(images), 3, *frame, dtype=torch.uint8)

        def crop(row: int) -> None:
            top, left, height, width = changes.boxes[row]
            changed[row] = resize(images[row, :, top : top + height, left : left + width], frame)

        list(_THREADS.map(crop, range(len(images))))
    else:
        changed = resampled(images, frame, changes.boxes)
    changed = torch.where(torch.from_numpy(changes.flips).to(device)[:, None, None, None], changed.flip(-1), changed)
    for numbers, signs in zip(changes.operations.T, changes.signs.T, strict=True):
        numbers = np.where(signs == 0, 0, numbers)
        for number, operation in enumerate(_POINTWISE):
            rows = np.flatnonzero(numbers == number)
            if number and len(rows):
                chosen = torch.from_numpy(rows).to(device)
                changed[chosen] = operation(changed[chosen])
        rows = np.flatnonzero(numbers >= len(_POINTWISE))
        if len(rows):
            chosen = torch.from_numpy(rows).to(device)
            changed[chosen] = _warp(changed[chosen], numbers[rows] - len(_POINTWISE), signs[rows])
    return changed


def resize(images: Tensor, frame: tuple[int, int]) -> Tensor:
    """Images [B, 3, H, W] uint8 as [B, 3, h, w], by bicubic interpolation with antialiasing."""
    if images.shape[-2:] == frame:
        return images
    return image_functional.resize(images, list(frame), InterpolationMode.BICUBIC, antialias=True)


def resampled(images: Tensor, frame: tuple[int, int], boxes: np.ndarray) -> Tensor:
    """A part of each image, resized as `resize` does, all of them in two products of matrices.

    Args:
        images: [B, 3, H, W] uint8.
        frame: h and w.
        boxes: int64 [B, 4], see `Changes`.

    Returns:
        [B, 3, h, w] uint8.
    """
    top, left, height, width = torch.from_numpy(boxes).to(images.device).unbind(1)
    rows = _bicubic(top, height, frame[0], images.shape[-2])
    columns = _bicubic(left, width, frame[1], images.shape[-1])
    exact = rows[:, None] @ images.float() @ columns[:, None].mT
    return exact.round_().clamp_(0, 255).to(torch.uint8)


def _bicubic(start: Tensor, extent: Tensor, size: int, whole: int) -> Tensor:
    """Weights [B, size, whole] of the pixels of a line for those of a part of it, resized.

    Keys' cubic with a = -1/2, stretched where the part shrinks, as Pillow has it.
    """
    start = start[:, None, None].float()
    extent = extent[:, None, None].float()
    scale = extent / size
    at = torch.arange(whole, device=start.device) + 0.5
    centre = torch.arange(size, device=start.device) + 0.5
    distance = (at - start - centre[:, None] * scale).abs() / scale.clamp(min=1)
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    weights = weights * ((at > start) & (at < start + extent))
    return weights / weights.sum(-1, keepdim=True)


_POINTWISE: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda images: images,
    image_functional.autocontrast,
    image_functional.equalize,
    partial(image_functional.adjust_brightness, brightness_factor=_ENHANCEMENT),
    partial(image_functional.adjust_sharpness, sharpness_factor=_ENHANCEMENT),
)
"""The first operations, which take the images of a batch together; the others are those of `_warp`."""
_WARPS = 5


def _warp(images: Tensor, numbers: np.ndarray, signs: np.ndarray) -> Tensor:
    """Warp images around their middle; bilinear, and grey where they were not.

    Args:
        images: [n, 3, H, W] uint8.
        numbers: [n] of warps: sheared along a row or a column, shifted along a row or a column, turned.
        signs: [n] directions.
    """
    height, width = images.shape[-2:]
    strengths = signs * _LEVEL
    slopes = strengths * _SHEAR
    turns = np.radians(strengths * _ROTATION) * (numbers == 4)
    warps = np.zeros((len(numbers), 2, 3), dtype=np.float32)  # from the place of a pixel to where it comes from
    warps[:, 0, 0] = np.cos(turns)
    warps[:, 1, 1] = np.cos(turns)
    warps[:, 0, 1] = slopes * (numbers == 0) + np.sin(turns)
    warps[:, 1, 0] = slopes * (numbers == 1) - np.sin(turns)
    warps[:, 0, 2] = -np.rint(strengths * _SHIFT * width) * (numbers == 2)
    warps[:, 1, 2] = -np.rint(strengths * _SHIFT * height) * (numbers == 3)
    half = torch.tensor([width / 2, height / 2, 1.0], device=images.device)
    # Torch counts places from -1 to 1 along each side.
    grid = F.affine_grid(
        torch.from_numpy(warps).to(images.device) * half / half[:2, None], list(images.shape), align_corners=False
    )
    moved = F.grid_sample(images.float() - _FILL, grid, align_corners=False)
    return (moved + _FILL).round_().to(torch.uint8)
