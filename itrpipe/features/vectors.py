"""Vectors of images and texts that are given as arrays, and the checks that mining and evaluation have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from itrpipe.errors import DataError

_LARGEST_SCORE = 3.38e38
"""Of bfloat16 and float32."""


def given_vectors(images: ArrayLike, texts: ArrayLike, owners: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of any floating-point type as float32, [N, D] and [T, D], and owners [T] as int64.

    Raises:
        DataError: an array has another number of axes, another kind of number, or nothing in it.
    """
    what = "vectors [rows, D] of real numbers"
    return (
        _array("images", images, 2, "f", what, np.float32),
        _array("texts", texts, 2, "f", what, np.float32),
        _array("owners", owners, 1, "iu", "one row of an image for each text", np.int64),
    )


def _array(name: str, given: Any, axes: int, kinds: str, what: str, dtype: DTypeLike) -> np.ndarray:
    if hasattr(given, "detach"):  # a tensor; nothing here imports torch
        kept = given.detach().cpu()
        given = (kept.float() if kept.is_floating_point() else kept).numpy()
    array = np.asarray(given)
    if array.ndim != axes or array.dtype.kind not in kinds or not array.size:
        raise DataError(f"{name} are {array.dtype} {list(array.shape)} and not {what}")
    return array.astype(dtype, copy=False)


def check_fit(images: tuple[int, ...], texts: tuple[int, ...], owners: np.ndarray) -> None:
    """Refuse vectors of two widths, and owners [T] that are not as many as texts, or are no rows of images.

    Args:
        images, texts: shapes of both sides, [N, D] and [T, D].
        owners: row of the image of each text, -1 for none.

    Raises:
        DataError: they do not fit each other.
    """
    if images[1] != texts[1] or len(owners) != texts[0]:
        raise DataError(
            f"embeddings of images {images}, of captions {texts} and {len(owners)} caption rows do not "
            "fit each other: embed both sides with one model, each caption with its row"
        )
    if owners.min() < -1 or owners.max() >= images[0]:
        raise DataError(
            f"captions name image rows {owners.min()}..{owners.max()}, but {images[0]} images are embedded: "
            "encode the whole split"
        )


def check_numbers(images: Iterable[np.ndarray], texts: Iterable[np.ndarray]) -> None:
    """Refuse vectors, read in blocks [b, D], whose inner products are not all finite.

    Raises:
        DataError: a vector holds NaN or infinity, or vectors are so long that a score can leave the range of float32.
    """
    lengths = []
    for name, blocks in (("image", images), ("caption", texts)):
        rows, bad, longest = 0, 0, 0.0
        for vectors in blocks:
            # In double precision no finite number overflows.
            norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
            rows += len(norms)
            bad += np.count_nonzero(~np.isfinite(norms))
            longest = max(longest, float(norms.max()))
        if bad:
            raise DataError(f"{bad} of {rows} {name} embeddings hold NaN or infinity: embed or train again")
        lengths.append(longest)
    if not lengths[0] * lengths[1] < _LARGEST_SCORE:
        raise DataError(
            f"scores are NaN or infinite: the longest vectors have norms {lengths[0]:g} and {lengths[1]:g}; "
            "normalise the embeddings"
        )
