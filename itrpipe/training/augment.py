"""Random changes of training images: crops, flips and RandAugment, on bytes. `draw_changes`, then `apply_changes`.

All draws come from a numpy generator that is given, so that a resumed run sees the images of an uninterrupted one. They
are drawn for whole batches. A part is cut out of the photograph itself, and resized once; all else is applied where the
frames are: on a GPU a batch at a time.

Source: RandAugment (Cubuk et al., 2020); which operations and how strong they are as in FNE's released code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as image_functional

from itrpipe.models.dual_encoder.declaration import Augment

RATIO = (3 / 4, 4 / 3)
"""Shape of a crop against that of the frame. Source: ALBEF and open_clip, `RandomResizedCrop`."""
_ATTEMPTS = 10

_LEVEL = 0.7  # level 7 of 10
_OPERATIONS_PER_IMAGE = 2
_PROBABILITY = 0.5
_FILL = 128.0
# A rotation and a shear in degrees; a shift as a share of the side, at full strength 10 pixels of 384.
_ROTATION = 30.0 * _LEVEL
_SHEAR = math.degrees(math.atan(0.3 * _LEVEL))
_SHIFT = 10 / 384 * _LEVEL
_ENHANCEMENT = 0.1 + 1.8 * _LEVEL


class Changes(NamedTuple):
    """The changes of the B images of a batch.

    Attributes:
        boxes: int64 [B, 4] top, left, height and width of the part that is kept, in pixels of the photograph; None
            where all of it is kept.
        flips: bool [B], which are mirrored then.
        operations: int64 [B, 2] numbers of two operations of RandAugment, one after the other.
        signs: int64 [B, 2] their directions, 1 or -1; 0 where one is left out.
    """

    boxes: np.ndarray | None
    flips: np.ndarray
    operations: np.ndarray
    signs: np.ndarray

    def of(self, rows: slice) -> Changes:
        """Return the changes of some of the images."""
        boxes = None if self.boxes is None else self.boxes[rows]
        return Changes(boxes, self.flips[rows], self.operations[rows], self.signs[rows])


def draw_changes(
    sizes: np.ndarray,
    may_flip: np.ndarray,
    frame: tuple[int, int],
    augment: Augment,
    rng: np.random.Generator,
) -> Changes:
    """Draw changes of a batch, each image's independent of the others'.

    Args:
        sizes: int64 [B, 2] height and width of the photographs.
        may_flip: bool [B], images whose captions stay true of them when they are mirrored.
        frame: height and width of the frames that the model sees.
        augment: settings, see `itrpipe.models.dual_encoder.declaration.Augment`.
        rng: of the batch.
    """
    count = len(sizes)
    boxes = None
    if augment.scale < 1:
        boxes = crop_boxes(sizes, frame, augment.scale, rng)
    flips = (rng.random(count) < 0.5) & may_flip & augment.flip
    operations = rng.integers(len(_OPERATIONS), size=(count, _OPERATIONS_PER_IMAGE))
    applied = (rng.random(operations.shape) < _PROBABILITY) & augment.randaugment
    signs = np.where(rng.random(operations.shape) < 0.5, 1, -1)
    return Changes(boxes, flips, operations, signs * applied)


def crop_boxes(sizes: np.ndarray, frame: tuple[int, int], scale: float, rng: np.random.Generator) -> np.ndarray:
    """Draw parts of images, int64 [B, 4]: top, left, height and width in pixels.

    The share of the area is uniform in `scale`..1, the shape against that of the frame log-uniform in 3:4 to 4:3. Where
    ten draws do not fit, it is the largest part in the middle with such a shape.

    Args:
        sizes: int64 [B, 2] height and width of the images.
        frame: height and width that the parts are resized to.
        scale: smallest share of the area.
        rng: of the batch.

    Source: `RandomResizedCrop` of torchvision.
    """
    shape = frame[1] / frame[0]
    height, width = sizes.T[:, :, None]
    areas = rng.uniform(scale, 1.0, (len(sizes), _ATTEMPTS)) * height * width
    narrowest, broadest = RATIO
    log_ratios = rng.uniform(math.log(narrowest), math.log(broadest), areas.shape)
    ratios = np.exp(log_ratios) * shape
    widths = np.rint(np.sqrt(areas * ratios)).astype(np.int64)
    heights = np.rint(np.sqrt(areas / ratios)).astype(np.int64)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    rows = np.arange(len(sizes))
    first_fit = fits.argmax(axis=1)
    drawn = np.stack([heights[rows, first_fit], widths[rows, first_fit]], axis=1)
    places = rng.random(drawn.shape)

    # Where no draw fits: the largest part in the middle.
    tallest = np.rint(sizes[:, 1] / (narrowest * shape)).astype(np.int64)
    widest = np.rint(sizes[:, 0] * (broadest * shape)).astype(np.int64)
    largest = np.stack([tallest, widest], axis=1)
    largest = np.minimum(sizes, largest).clip(min=1)
    is_drawn = fits.any(axis=1)[:, None]
    parts = np.where(is_drawn, drawn, largest)
    margins = sizes - parts
    drawn_starts = np.floor(places * (margins + 1))
    starts = np.where(is_drawn, drawn_starts, margins // 2).astype(np.int64)
    return np.concatenate([starts, parts], axis=1)


def apply_changes(frames: Tensor, changes: Changes) -> Tensor:
    """Mirror frames and apply RandAugment, where the frames are.

    Args:
        frames: [B, 3, h, w] uint8; of any type where RandAugment is left out of all.
        changes: of each image.

    Returns:
        [B, 3, h, w], on the device of the frames.
    """
    device = frames.device
    flips = torch.from_numpy(changes.flips).to(device)[:, None, None, None]
    changed = torch.where(flips, frames.flip(-1), frames)
    for numbers, signs in zip(changes.operations.T, changes.signs.T, strict=True):
        for number, operation in enumerate(_OPERATIONS):
            for sign in (1, -1):
                rows = np.flatnonzero((numbers == number) & (signs == sign))
                if len(rows):
                    chosen = torch.from_numpy(rows).to(device)
                    changed[chosen] = operation(changed[chosen], sign)
    return changed


def _warp(
    images: Tensor,
    angle: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
    shear: tuple[float, float] = (0.0, 0.0),
) -> Tensor:
    """Warp images [n, 3, H, W] uint8 around the middle; bilinear, and grey where they were not."""
    bilinear = image_functional.InterpolationMode.BILINEAR
    warped = image_functional.affine(images.float() - _FILL, angle, list(shift), 1.0, list(shear), bilinear)
    return (warped + _FILL).round_().to(torch.uint8)


_OPERATIONS: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda images, sign: images,
    lambda images, sign: image_functional.autocontrast(images),
    lambda images, sign: image_functional.equalize(images),
    lambda images, sign: image_functional.adjust_brightness(images, _ENHANCEMENT),
    lambda images, sign: image_functional.adjust_sharpness(images, _ENHANCEMENT),
    lambda images, sign: _warp(images, shear=(sign * _SHEAR, 0.0)),
    lambda images, sign: _warp(images, shear=(0.0, sign * _SHEAR)),
    lambda images, sign: _warp(images, shift=(sign * round(_SHIFT * images.shape[3]), 0.0)),
    lambda images, sign: _warp(images, shift=(0.0, sign * round(_SHIFT * images.shape[2]))),
    lambda images, sign: _warp(images, angle=sign * _ROTATION),
)
"""The operations of RandAugment, each on all images of one direction together."""
