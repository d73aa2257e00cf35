"""The contract of an extractor."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from itrpipe.features.store import FeatureSpec

Images = Tensor | Sequence[Tensor]
"""Images [B, 3, H, W], or where their sizes differ B images [3, H, W]; RGB, uint8 or what a transform makes of it."""


Transform = Callable[[np.ndarray], np.ndarray]
"""The part of an extractor that runs in decoding threads: a decoded image [H, W, 3] uint8 RGB becomes the array
[3, h, w], contiguous, that the extractor takes; uint8 where bytes lose nothing, since they are the least to move."""


class Extractor(Protocol):
    """Turns batches of images into feature rows; a base of classes, with what most of them have in common.

    A module of this folder has `build(settings, device) -> Extractor`.

    Attributes:
        spec: which datasets it fills.
        transform: prepares one decoded image.
        notes: what a user should know of it, such as random weights; shown as warnings and kept in the manifest.
        batch: images per batch that suit it, where the user does not say.
    """

    spec: FeatureSpec
    transform: Transform
    notes: tuple[str, ...] = ()
    batch: int = 64

    def group(self, height: int, width: int) -> tuple[int, int]:
        """Return the group of an image; images of one group may share a batch.

        Their features are then the same as alone, up to rounding.

        By default all do, because they have one size after the transform.

        Args:
            height, width: of the image file in pixels, after EXIF rotation.
        """
        return 0, 0

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Extract the features of a batch.

        Args:
            images: results of `transform`, of one group.
            sizes: [B, 2] int64 height and width of the image files.

        Returns:
            Every dataset of `spec` as an array of any numeric type, [B, ...] each; `itrpipe.features.store.stored_rows`
            checks them. Rows beyond `count` are zero. A `count` of 0 says that nothing was found in an image.
        """
        ...


def channels_first(image: np.ndarray) -> np.ndarray:
    """Put the channels first, [H, W, 3] to [3, H, W]; the transform of extractors that do the rest on the device."""
    return np.ascontiguousarray(image.transpose(2, 0, 1))
