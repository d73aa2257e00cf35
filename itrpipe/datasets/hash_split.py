"""A split for datasets that come without one: fixed by the image ids alone, on every machine."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from itrpipe.datasets.records import SPLITS
from itrpipe.errors import UsageError

Fractions = tuple[float, float, float]
DEFAULT_FRACTIONS: Fractions = (0.8, 0.1, 0.1)


def hash_split(image_ids: Iterable[str], fractions: Fractions, seed: int) -> dict[str, str]:
    """Assign every image to a split by a hash of its id.

    An image keeps its split when others are added or removed, which a shuffle would not give. The
    shares are met in expectation only.

    Args:
        image_ids: the images.
        fractions: shares of train, val and test, each in 0..1, summing to 1.
        seed: another seed is another split.

    Returns:
        Split name by image id.

    Raises:
        UsageError: the fractions are not shares of one whole, or train gets nothing.
    """
    _check_fractions(fractions)
    return {image_id: _split_of(image_id, fractions, seed) for image_id in image_ids}


def describe(splits: dict[str, str], fractions: Fractions, seed: int, source: Path) -> str:
    """Return the note that tells the user which images went where and by what rule."""
    counts = Counter(splits.values())
    shares = ", ".join(f"{name} {share:g}" for name, share in zip(SPLITS, fractions, strict=True))
    images = " / ".join(f"{counts[name]:,}" for name in SPLITS)
    note = f"{source}: names no splits; images split by hash of their id ({shares}, seed {seed}): {images} images"
    empty = [name for name, share in zip(SPLITS, fractions, strict=True) if share and not counts[name]]
    if not empty:
        return note
    return f"{note}. No image is left for {' and '.join(empty)}; add photographs, or give a column split"


def _check_fractions(fractions: Fractions) -> None:
    valid = len(fractions) == len(SPLITS) and all(0 <= share <= 1 for share in fractions)
    if not valid or not math.isclose(sum(fractions), 1, abs_tol=1e-6) or fractions[0] == 0:
        raise UsageError(
            f"split fractions {list(fractions)}: expected shares of train, val and test that sum to 1, train above 0"
        )


def _split_of(image_id: str, fractions: Fractions, seed: int) -> str:
    digest = hashlib.sha256(f"{seed}:{image_id}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < fractions[0]:
        return "train"
    # Compared against 1 - test so that test = 0 leaves nothing to rounding in train + val.
    return "val" if position < 1 - fractions[2] else "test"
