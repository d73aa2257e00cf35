"""Random changes of training images, each image by draws of its own: crops, flips and RandAugment, on bytes.

All draws come from numpy generators that are given, so that a resumed run sees the images of an uninterrupted one.

Source: RandAugment (Cubuk et al., 2020); which operations and how strong they are as in FNE's released code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as image_functional

SMALLEST_AREA = 0.5
RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10

_LEVEL = 0.7  # level 7 of 10
_OPERATIONS_PER_IMAGE = 2
_PROBABILITY = 0.5
_FILL = [128.0]
# Full strength of each kind; a shift is of the side, 10 pixels of 384.
_ROTATION, _SHEAR, _SHIFT = 30.0, 0.3, 10 / 384
_ENHANCEMENT = 0.1 + 1.8 * _LEVEL

Operation = Callable[[Tensor, float], Tensor]


def augment(
    images: Tensor, frame: tuple[int, int], kind: str, rng: np.random.Generator, pool: ThreadPoolExecutor | None = None
) -> Tensor:
    """Changes every image of a batch by draws of its own.

    Args:
        images: [B, 3, H, W] uint8.
        frame: height and width of the results.
        kind: `crop` crops and resizes, `flip` also mirrors every other image, `full` also applies RandAugment.
        rng: gives each image a generator of its own.
        pool: threads that share the work, which changes nothing about the result.

    Returns:
        [B, 3, h, w] uint8.
    """
    seeds = rng.integers(2**63, size=len(images), dtype=np.uint64)
    changed = torch.empty(len(images), 3, *frame, dtype=torch.uint8)

    def change(row: int) -> None:
        draws = np.random.default_rng(seeds[row])
        image = _cropped(images[row], frame, draws)
        if kind in ("flip", "full") and draws.random() < 0.5:
            image = image.flip(-1)
        changed[row] = _randomly_changed(image, draws) if kind == "full" else image

    for _ in map(change, range(len(images))) if pool is None else pool.map(change, range(len(images))):
        pass
    return changed


def resize(images: Tensor, frame: tuple[int, int]) -> Tensor:
    """Images [B, 3, H, W] uint8 as [B, 3, h, w], by bicubic interpolation with antialiasing."""
    if images.shape[-2:] == frame:
        return images
    return image_functional.resize(images, list(frame), InterpolationMode.BICUBIC, antialias=True)


def crop_box(height: int, width: int, draws: np.random.Generator) -> tuple[int, int, int, int]:
    """A random part of an image: top, left, height and width in pixels.

    Its share of the area is uniform in 0.5..1, its shape against the image's log-uniform in 3:4 to 4:3; where ten
    draws do not fit it is the whole image.
    """
    for _ in range(_ATTEMPTS):
        area = draws.uniform(SMALLEST_AREA, 1.0) * height * width
        ratio = math.exp(draws.uniform(math.log(RATIO[0]), math.log(RATIO[1]))) * width / height
        part_width, part_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < part_width <= width and 0 < part_height <= height:
            top = int(draws.integers(height - part_height + 1))
            left = int(draws.integers(width - part_width + 1))
            return top, left, part_height, part_width
    return 0, 0, height, width


def _cropped(image: Tensor, frame: tuple[int, int], draws: np.random.Generator) -> Tensor:
    top, left, height, width = crop_box(image.shape[-2], image.shape[-1], draws)
    return resize(image[:, top : top + height, left : left + width], frame)


def _randomly_changed(image: Tensor, draws: np.random.Generator) -> Tensor:
    """Two operations at random, with replacement, each applied every other time."""
    for number in draws.integers(len(_OPERATIONS), size=_OPERATIONS_PER_IMAGE):
        applied, sign = draws.random() < _PROBABILITY, 1.0 if draws.random() < 0.5 else -1.0
        if applied:
            image = _OPERATIONS[number](image, sign)
    return image


def _warped(
    image: Tensor, *, angle: float = 0.0, shift: tuple[float, float] = (0, 0), shear: tuple[float, float] = (0, 0)
) -> Tensor:
    return image_functional.affine(
        image,
        angle=angle,
        translate=[round(shift[0] * image.shape[-1]), round(shift[1] * image.shape[-2])],
        scale=1.0,
        shear=[math.degrees(math.atan(value)) for value in shear],
        interpolation=InterpolationMode.BILINEAR,
        fill=_FILL * 3,
    )


_OPERATIONS: tuple[Operation, ...] = (
    lambda image, sign: image,
    lambda image, sign: image_functional.autocontrast(image),
    lambda image, sign: image_functional.equalize(image),
    lambda image, sign: image_functional.adjust_brightness(image, _ENHANCEMENT),
    lambda image, sign: image_functional.adjust_sharpness(image, _ENHANCEMENT),
    lambda image, sign: _warped(image, shear=(sign * _LEVEL * _SHEAR, 0)),
    lambda image, sign: _warped(image, shear=(0, sign * _LEVEL * _SHEAR)),
    lambda image, sign: _warped(image, shift=(sign * _LEVEL * _SHIFT, 0)),
    lambda image, sign: _warped(image, shift=(0, sign * _LEVEL * _SHIFT)),
    lambda image, sign: _warped(image, angle=sign * _LEVEL * _ROTATION),
)
