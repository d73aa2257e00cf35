"""Checks of the vectors of images and texts that mining, judging and evaluation are given as arrays.

Each function takes what a user passed and returns it as arrays, or refuses it with one line that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from itrpipe.errors import DataError
from itrpipe.storage.arrays import Shape

_LARGEST_SCORE = 3.38e38
"""Largest number of bfloat16, and nearly of float32."""


def given_vectors(images: ArrayLike, texts: ArrayLike, owners: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of images [N, D] and texts [T, D] as float32, and owners [T] as int64.

    They may be lists, arrays or tensors of any floating-point type.

    Raises:
        DataError: an array has another number of axes, another kind of number, or nothing in it.
    """
    what = "vectors [rows, D] of real numbers"
    return (
        given_array("images", images, 2, "f", what, np.float32),
        given_array("texts", texts, 2, "f", what, np.float32),
        given_array("owners", owners, 1, "iu", "one row of an image for each text", np.int64),
    )


def given_array(name: str, values: Any, axes: int, kinds: str, what: str, dtype: DTypeLike) -> np.ndarray:
    """Return a list, array or tensor as an array.

    Args:
        name: for messages.
        values: list, array or tensor.
        axes: number of axes that it has to have.
        kinds: NumPy's letters of the types that are allowed.
        what: description of the array that is expected, for messages.
        dtype: of the array that is returned.

    Raises:
        DataError: it has another number of axes, another kind of number, or nothing in it.
    """
    if hasattr(values, "detach"):  # a tensor; nothing here imports torch
        tensor = values.detach().cpu()
        if tensor.is_floating_point():
            tensor = tensor.float()  # NumPy has no bfloat16
        values = tensor.numpy()
    array = np.asarray(values)
    if array.ndim != axes or array.dtype.kind not in kinds or not array.size:
        raise DataError(f"{name} are {array.dtype} {list(array.shape)} and not {what}")
    return array.astype(dtype, copy=False)


def check_captions(captions: Sequence[str], owners: np.ndarray) -> None:
    """Refuse captions that are no texts, or not as many as owners [T].

    Raises:
        DataError: they are not.
    """
    if len(captions) != len(owners):
        raise DataError(f"there are {len(captions):,} captions and {len(owners):,} owners; give one for each text")
    for row, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise DataError(f"caption {row} is {caption!r}; give a text for each, an empty one where there is none")


def check_fit(images: Shape, texts: Shape, owners: np.ndarray) -> None:
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
    longest_norms = []
    for name, blocks in (("image", images), ("caption", texts)):
        rows = 0
        bad = 0
        longest = 0.0
        for vectors in blocks:
            # In double precision no finite number overflows.
            norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
            rows += len(norms)
            bad += np.count_nonzero(~np.isfinite(norms))
            longest = max(longest, float(norms.max()))
        if bad:
            raise DataError(f"{bad} of {rows} {name} embeddings hold NaN or infinity: embed or train again")
        longest_norms.append(longest)
    image_norm, text_norm = longest_norms
    if not image_norm * text_norm < _LARGEST_SCORE:
        raise DataError(
            f"scores are NaN or infinite: the longest vectors have norms {image_norm:g} and {text_norm:g}; "
            "normalise the embeddings"
        )
