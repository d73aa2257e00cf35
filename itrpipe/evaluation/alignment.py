"""Alignment and uniformity of embeddings: how close matches lie, and how far apart everything else is.

Both are Euclidean distances of embeddings of length one, 0..2; that of two random directions is close to sqrt(2).

Source: T. Wang and P. Isola, ICML 2020, for the two notions; AsCL (Gong et al.), Fig. 4, for the distances.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from itrpipe.errors import DataError

_BLOCK_VALUES = 1 << 22
"""Values held at a time."""


def alignment_and_uniformity(
    images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray
) -> dict[str, dict[str, float | int | None]]:
    """Distances of pairs that belong together, and of pairs that do not.

    Captions of different images are told apart by the first caption of each image: all pairs of all captions would be
    625 million for COCO's test split, and say the same.

    Args:
        images: [N, D] embeddings of any length above zero.
        texts: [T, D] likewise.
        caption_image: [T] row of the image each caption belongs to.

    Returns:
        `image_text`: captions with their image; `text_text`: two captions of one image; `images`: two images; `texts`:
        the first captions of two images. Of each `mean` and `variance` of the distance over its `pairs`; None where
        there are no pairs.

    Raises:
        DataError: an embedding is zero, or holds NaN.
    """
    images, texts = _unit(images, "image"), _unit(texts, "caption")
    _, first = np.unique(caption_image, return_index=True)
    return {
        "image_text": _figures(_row_distances(texts, np.arange(len(texts)), images, caption_image)),
        "text_text": _figures(_within_images(texts, caption_image)),
        "images": _figures(_all_distances(images)),
        "texts": _figures(_all_distances(texts[first])),
    }


def _unit(embeddings: np.ndarray, what: str) -> np.ndarray:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    if bad := int(np.count_nonzero(~(np.isfinite(lengths) & (lengths > 0)))):
        raise DataError(f"{bad} of {len(embeddings)} {what} embeddings have no direction: train the model again")
    return embeddings / lengths


def _within_images(texts: np.ndarray, caption_image: np.ndarray) -> Iterator[np.ndarray]:
    """Distances of all pairs of captions of one image."""
    order = np.argsort(caption_image, kind="stable")
    grouped = caption_image[order]
    for shift in range(1, int(np.bincount(caption_image).max())):
        start = np.flatnonzero(grouped[shift:] == grouped[:-shift])
        yield from _row_distances(texts, order[start], texts, order[start + shift])


def _row_distances(
    first: np.ndarray, first_rows: np.ndarray, second: np.ndarray, second_rows: np.ndarray
) -> Iterator[np.ndarray]:
    height = max(1, _BLOCK_VALUES // first.shape[1])
    for start in range(0, len(first_rows), height):
        rows = slice(start, start + height)
        yield np.linalg.norm(first[first_rows[rows]] - second[second_rows[rows]], axis=1)


def _all_distances(embeddings: np.ndarray) -> Iterator[np.ndarray]:
    """Distances of all pairs of rows, each pair once."""
    count = len(embeddings)
    height = max(1, _BLOCK_VALUES // count)
    for start in range(0, count, height):
        rows = np.arange(start, min(start + height, count))
        cosines = embeddings[rows] @ embeddings[start:].T
        later = np.arange(start, count)[None, :] > rows[:, None]
        yield np.sqrt(np.maximum(0.0, 2.0 - 2.0 * cosines[later]))


def _figures(parts: Iterator[np.ndarray]) -> dict[str, float | int | None]:
    pairs, total, squares = 0, 0.0, 0.0
    for part in parts:
        distances = part.astype(np.float64)
        pairs, total, squares = pairs + len(part), total + distances.sum(), squares + (distances**2).sum()
    if not pairs:
        return {"pairs": 0, "mean": None, "variance": None}
    mean = float(total / pairs)
    return {"pairs": pairs, "mean": mean, "variance": max(0.0, float(squares / pairs) - mean**2)}
