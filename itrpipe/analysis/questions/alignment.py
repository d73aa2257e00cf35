"""Alignment and uniformity of embeddings: how close matches lie, and how far apart everything else is.

Both are Euclidean distances of embeddings of length one, 0..2; that of two random directions is close to sqrt(2).

AsCL compares fused pairs and so has no embedding to search. What its fusion starts from are regions and words, each
side on its own: their means, scaled to unit length, tell how a trained model has laid out images and captions. They do
not rank as the model does, which is why no embeddings file holds them, and mining and search never see them.

Source: T. Wang and P. Isola, ICML 2020, for the two notions; AsCL (Gong et al.), Fig. 4, for the distances, which it
compares without saying of which embeddings; the means of regions and words are our reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.evaluation.tables import Cells, Content, Measured, Number
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, SplitScores, read_embeddings
from itrpipe.storage.artifact import ALIGNMENT

if TYPE_CHECKING:
    from itrpipe.training.data import SplitData
    from itrpipe.training.encoding import SplitEncoder

VECTORS = "mean regions and mean words after their projection"
"""Name of the vectors of AsCL in files."""
_BLOCK_VALUES = 1 << 22
"""Values held at a time."""
_TINY = 1e-12
Distances = dict[str, float | int | None]
"""`mean` and `variance` of the distances of so many `pairs`; None where there are no pairs."""
_DISTANCES = {
    ("Alignment", "own pair"): "image_text",
    ("Alignment", "same image"): "text_text",
    ("Uniformity", "images"): "images",
    ("Uniformity", "captions"): "texts",
}


def _cells(content: Content) -> Cells:
    cells = {}
    for key, name in _DISTANCES.items():
        cells[key] = Number.of(content[name]["mean"], digits=3)
    return cells


SHOWN = (
    Measured(
        "Alignment and uniformity",
        ALIGNMENT,
        _cells,
        "Mean distance of embeddings of length one, 0 to 2. Alignment, the lower the closer: a caption with its own "
        "image, two captions of one image. Uniformity, the higher the further apart: two images, and the first "
        "captions of two images; random directions are 1.41 apart.",
        usual=True,
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure a single model that embeds, or whose backbone has vectors to take instead.

    Mean vectors are named in the figures: they say nothing of how the model ranks.

    Raises:
        MissingInputError: what a model without embeddings was trained on was removed since.
    """
    if not evaluation.is_single:
        return None
    if evaluation.backbone.embeds:
        embeddings = read_embeddings(evaluation.trained / EMBEDDINGS, evaluation.settings.split)
        if embeddings.measure != INNER_PRODUCT:
            return None
        return alignment_and_uniformity(embeddings.images, embeddings.texts, embeddings.caption_image)
    if "mean-vectors" not in evaluation.backbone.answers:
        return None
    import torch

    from itrpipe.training.encoding import SplitEncoder

    data = evaluation.data()
    device = torch.device(evaluation.place)
    encoder = SplitEncoder(evaluation.saved.model, device, evaluation.block)
    images, texts = mean_vectors(encoder, data)
    figures = alignment_and_uniformity(images, texts, data.caption_image)
    return {"vectors": VECTORS, **figures}


def mean_vectors(encoder: SplitEncoder, data: SplitData) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors [N, D] of all images and [T, D] of all captions of a split, float32.

    Args:
        encoder: with an `AsclEncoder` as its model.
        data: the split.
    """
    import torch

    model = encoder.model
    with torch.inference_mode():
        images = []
        for block in encoder.images(data, np.arange(data.num_images)):
            images.append(model.embed_images(block))
        texts = []
        for block in encoder.texts(data, np.arange(data.num_captions)):
            texts.append(model.embed_texts(block))
        image_vectors = torch.cat(images).float().cpu().numpy()
        text_vectors = torch.cat(texts).float().cpu().numpy()
    return image_vectors, text_vectors


def alignment_and_uniformity(
    images: np.ndarray,
    texts: np.ndarray,
    caption_image: np.ndarray,
) -> dict[str, Distances]:
    """Measure the distances of pairs that belong together, and of pairs that do not.

    Captions of different images are told apart by the first caption of each image: all pairs of all captions would be
    625 million for COCO's test split, and say the same.

    Args:
        images: [N, D] embeddings of any length.
        texts: [T, D] embeddings of any length.
        caption_image: [T] row of the image each caption belongs to.

    Returns:
        `image_text`: captions with their image; `text_text`: two captions of one image; `images`: two images; `texts`:
        the first captions of two images. Of each `mean` and `variance` of the distance over its `pairs`; None where
        there are no pairs.
    """
    images = _normalised(images)
    texts = _normalised(texts)
    _, first = np.unique(caption_image, return_index=True)
    own_pairs = _distances(texts, np.arange(len(texts)), images, caption_image)
    return {
        "image_text": _figures(own_pairs),
        "text_text": _figures(_distances_within(texts, caption_image)),
        "images": _figures(_all_distances(images)),
        "texts": _figures(_all_distances(texts[first])),
    }


def _normalised(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, _TINY)


def _distances_within(
    texts: np.ndarray,
    caption_image: np.ndarray,
) -> Iterator[np.ndarray]:
    """Yield the distances of all pairs of captions of one image, each pair once."""
    order = np.argsort(caption_image, kind="stable")
    owners = caption_image[order]
    captions_of_image = np.bincount(caption_image)
    for shift in range(1, captions_of_image.max()):
        first = np.flatnonzero(owners[shift:] == owners[:-shift])
        yield from _distances(texts, order[first], texts, order[first + shift])


def _distances(
    first: np.ndarray,
    first_rows: np.ndarray,
    second: np.ndarray,
    second_rows: np.ndarray,
) -> Iterator[np.ndarray]:
    """Yield the distances of pairs of rows, some at a time."""
    height = max(1, _BLOCK_VALUES // first.shape[1])
    for start in range(0, len(first_rows), height):
        rows = slice(start, start + height)
        differences = first[first_rows[rows]] - second[second_rows[rows]]
        yield np.linalg.norm(differences, axis=1)


def _all_distances(embeddings: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the distances of all pairs of rows, each pair once."""
    count = len(embeddings)
    height = max(1, _BLOCK_VALUES // count)
    for start in range(0, count, height):
        rows = np.arange(start, min(start + height, count))
        cosines = embeddings[rows] @ embeddings[start:].T
        is_later = np.arange(start, count) > rows[:, None]
        squares = 2.0 - 2.0 * cosines[is_later]
        yield np.sqrt(np.maximum(0.0, squares))


def _figures(parts: Iterator[np.ndarray]) -> Distances:
    pairs = 0
    total = 0.0
    squares = 0.0
    for part in parts:
        distances = part.astype(np.float64)
        pairs += len(part)
        total += distances.sum()
        squares += (distances**2).sum()
    if not pairs:
        return {"pairs": 0, "mean": None, "variance": None}
    mean = float(total / pairs)
    variance = float(squares / pairs) - mean**2
    return {"pairs": pairs, "mean": mean, "variance": max(0.0, variance)}
