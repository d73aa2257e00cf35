"""What a perfect ranking would reach under the usual protocol, where only the own image or caption counts as right.

Where a caption is true of other images too, nothing tells its own one from them, and recall cannot be 100 percent.
"""

from __future__ import annotations

import numpy as np

from itrpipe.errors import DataError
from itrpipe.evaluation.rsum import CUTOFFS


def ceiling(caption_image: np.ndarray, offsets: np.ndarray, match_images: np.ndarray) -> dict[str, float]:
    """Expected recalls, and their sum `rsum`, of a ranking that puts all true matches first, in random order.

    A caption with m true images finds its own among the first K with probability min(K, m) / m. An image with M true
    captions, c of them its own, finds one of these with

        1 - prod over i < K of (M - c - i) / (M - i)

    Args:
        caption_image: [T] row of each caption's own image; every image has a caption.
        offsets: [T + 1] ascending from 0 to M; the matches of caption t are `match_images[offsets[t]:offsets[t + 1]]`.
        match_images: [M] rows of the images each caption is true of, its own among them, none twice.

    Raises:
        DataError: the own image of a caption is not among its matches.
    """
    images = int(caption_image.max()) + 1
    captions = np.repeat(np.arange(len(caption_image)), np.diff(offsets))
    if np.count_nonzero(match_images == caption_image[captions]) != len(caption_image):
        raise DataError("the true matches of some captions lack their own image; run `itrpipe prepare` again")
    matched = np.diff(offsets).astype(np.float64)  # m
    known = np.bincount(match_images, minlength=images).astype(np.float64)  # M
    own = np.bincount(caption_image, minlength=images)  # c
    found: dict[str, float] = {}
    for k in CUTOFFS:
        steps = np.arange(k)
        missed = np.clip(known[:, None] - own[:, None] - steps, 0, None) / np.clip(known[:, None] - steps, 1, None)
        found[f"i2t_r{k}"] = 100 * float(np.mean(1 - missed.prod(axis=1)))
        found[f"t2i_r{k}"] = 100 * float(np.mean(np.minimum(k, matched) / matched))
    return {**found, "rsum": sum(found.values())}
