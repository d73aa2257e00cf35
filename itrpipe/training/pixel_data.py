"""A split for models that read the images themselves, or one vector per image, instead of regions."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from itrpipe.datasets.prepared import Split
from itrpipe.errors import DataError
from itrpipe.features.store import FeatureFile
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.training.augment import augment, draw_changes, resize
from itrpipe.training.captions import CaptionTokens
from itrpipe.training.data import SplitData
from itrpipe.training.spread import OwnImages
from itrpipe.training.world import ALONE, World

_COLOURS = 3
# At 384 pixels an image takes 5 ms, more than a GPU needs to train on it.
_THREADS = 8


class PixelSplitData(SplitData):
    """Batches of one split with the images themselves.

    Args:
        split: images and captions.
        features: file that holds the pixels of all its images.
        tokens: turns captions into ids; None where only images are read.
        frame: height and width of the images of a batch.
        changes: what `augment` does to training images, or `none`.

    Raises:
        DataError: the features have no pixels.
    """

    def __init__(
        self, split: Split, features: FeatureFile, tokens: CaptionTokens | None, frame: tuple[int, int], changes: str
    ) -> None:
        self._frame, self._changes = frame, changes
        self._world, self._device, self._own = ALONE, torch.device("cpu"), threading.local()
        self._pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="augment")
        super().__init__(split, features, tokens)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """The images of the given rows [B] as they are, in the size of the frame."""
        return _batch(resize(self._stored(rows), self._frame))

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Aligned batches of image rows and caption rows, [B] each; images are changed where `rng` is given.

        Of several processes each reads the images that it encodes.
        """
        count = len(images)
        divided = self._world.size > 1 and count >= self._world.size
        own = self._world.own(count) if divided else slice(count)
        stored = self._placed(images[own])
        if rng is None or self._changes == "none":
            pixels = resize(stored, self._frame)
        else:
            changes = draw_changes(count, (stored.shape[2], stored.shape[3]), self._changes, rng).of(own)
            pixels = augment(stored, self._frame, changes, self._pool)
        found = OwnImages(_no_regions(pixels), pixels=pixels, rows=count) if divided else _batch(pixels)
        return found, self.texts(captions)

    def train_on(self, world: World, device: torch.device) -> None:
        """Reads for this process from now on, and changes images on its device."""
        self._world, self._device = world, device

    def _open_images(self, features: FeatureFile) -> int:
        if "pixels" not in features.arrays:
            raise DataError(
                f"{features.path} holds no pixels, which this model is trained on; give --features pixels, or train on "
                "frozen features with --set model.images=regions"
            )
        self._pixels, self._count = features.arrays["pixels"], np.ones(len(features), dtype=np.int16)
        return _COLOURS

    def _placed(self, rows: np.ndarray) -> Tensor:
        """The stored images on the device, through memory of the thread that is used again: new pages cost as much."""
        if self._device.type == "cpu":
            return self._stored(rows)
        held = getattr(self._own, "buffer", None)
        if held is None or len(held) < len(rows):
            shape, pinned = (len(rows), *self._pixels.shape[1:]), self._device.type == "cuda"
            held = self._own.buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        read = held[: len(rows)]
        np.take(self._pixels, self._rows[rows], axis=0, out=read.numpy(), mode="clip")  # the other mode copies twice
        return read.to(self._device).permute(0, 3, 1, 2)

    def _stored(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(self._pixels[self._rows[rows]]).permute(0, 3, 1, 2)


class GlobalSplitData(SplitData):
    """Batches of one split with one frozen vector per image.

    Raises:
        DataError: the features have no global vectors.
    """

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Global vectors of the given image rows [B]."""
        vectors = torch.from_numpy(self._vectors[self._rows[rows]])
        return ImageBatch(torch.empty(len(vectors), 0, 0), global_=vectors)

    def _open_images(self, features: FeatureFile) -> int:
        if "global" not in features.arrays:
            raise DataError(
                f"{features.path} holds no global vectors; name features that have some with --features, or give "
                "--set model.images=regions"
            )
        self._vectors, self._count = features.arrays["global"], np.ones(len(features), dtype=np.int16)
        return self._vectors.shape[1]


def _batch(pixels: Tensor) -> ImageBatch:
    return ImageBatch(_no_regions(pixels), pixels=pixels)


def _no_regions(pixels: Tensor) -> Tensor:
    return torch.empty(len(pixels), 0, 0)
