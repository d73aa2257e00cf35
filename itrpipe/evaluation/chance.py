"""The recall that scores reach by chance: what it would be if the captions belonged to images at random."""

from __future__ import annotations

import numpy as np

from itrpipe.evaluation.rsum import CUTOFFS


def random_recalls(images: int, captions: int) -> dict[str, float]:
    """Recalls in percent, and their sum, that a random order may expect where only the own image or caption is right.

    Args:
        images: N.
        captions: T, as many for every image: of T captions in random order, none of an image's own T / N is among the
            first K with the probability of drawing K others.
    """
    found = {f"{side}_r{k}": random_recall(side, images, captions, k) for side in ("i2t", "t2i") for k in CUTOFFS}
    return {**found, "rsum": sum(found.values())}


def random_recall(side: str, images: int, captions: int, k: int) -> float:
    """The same at any K, of one direction, `i2t` or `t2i`."""
    if side == "t2i":
        return 100 * min(k, images) / images
    places = np.arange(min(k, captions))
    missed = np.prod(np.maximum(captions - captions / images - places, 0) / (captions - places))
    return 100 * float(1 - missed)
