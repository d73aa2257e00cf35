"""Runs a trained model over a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from itrpipe.models.base import DualEncoder, ImageBatch, Matcher, TextBatch
from itrpipe.training.data import blocks

AnyMatcher = Matcher[Any, Any]


class ImageRows(Protocol):
    """Images that a model may see, by their rows."""

    @property
    def num_images(self) -> int:
        """N."""
        ...

    def images(self, rows: np.ndarray) -> ImageBatch:
        """The given image rows [B]."""
        ...


class TextRows(Protocol):
    """Captions that a model may see, by their rows."""

    @property
    def num_captions(self) -> int:
        """T."""
        ...

    def texts(self, rows: np.ndarray) -> TextBatch:
        """The given caption rows [T]."""
        ...


class Rows(ImageRows, TextRows, Protocol):
    """What a model may see of a split: images and captions, and nothing of which belong together."""


@torch.inference_mode()
def score_split(
    model: AnyMatcher,
    data: Rows,
    device: torch.device,
    block: int,
    images: int,
    captions: np.ndarray,
    precision: str = "fp32",
    advance: Callable[[int], object] = lambda pairs: None,
) -> np.ndarray:
    """Scores the first images of a split with some of its captions.

    Args:
        model: in evaluation mode, on `device`.
        data: the split.
        device: where to compute.
        block: images or captions per forward pass.
        images: N, how many images.
        captions: [T] rows of captions.
        precision: `bf16` computes the scores of pairs in bfloat16; encodings stay in single precision.
        advance: called with the number of pairs done after each block.

    Returns:
        Scores [N, T] float32. The encodings of all N images are kept meanwhile.
    """
    encoded = encoded_blocks(model, data, device, block, images)
    columns = []
    for part in blocks(len(captions), block):
        scores = []
        for each in score_block(model, encoded, data.texts(captions[part]).to(device), precision):
            scores.append(each)
            advance(each.numel())
        columns.append(torch.cat(scores).cpu().numpy())
    return np.concatenate(columns, axis=1)


@torch.inference_mode()
def encoded_blocks(
    model: AnyMatcher, data: ImageRows, device: torch.device, block: int, images: int | None = None
) -> list[Any]:
    """Encodings of the first images of a split, or of all, `block` at a time."""
    count = data.num_images if images is None else images
    return [model.encode_images(data.images(rows).to(device)) for rows in blocks(count, block)]


@torch.inference_mode()
def score_block(model: AnyMatcher, encoded: Sequence[Any], texts: TextBatch, precision: str) -> Iterator[Tensor]:
    """Yields scores [b, t] float32 of each block of encoded images with captions [t]; see `score_split`."""
    encodings = model.encode_texts(texts)
    for each in encoded:
        with torch.autocast(texts.tokens.device.type, torch.bfloat16, enabled=precision == "bf16"):
            scores = model.score_matrix(each, encodings).float()
        yield scores


@torch.inference_mode()
def encode_images(
    model: DualEncoder, data: ImageRows, device: torch.device, block: int, rows: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yields image embeddings [<=block, D] float32, of all images or of the given rows in their order."""
    chosen = np.arange(data.num_images) if rows is None else rows
    for part in blocks(len(chosen), block):
        yield model.encode_images(data.images(chosen[part]).to(device)).embedding.float().cpu().numpy()


@torch.inference_mode()
def encode_texts(
    model: DualEncoder, data: TextRows, device: torch.device, block: int, rows: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yields caption embeddings [<=block, D] float32, of all captions or of the given rows in their order."""
    chosen = np.arange(data.num_captions) if rows is None else rows
    for part in blocks(len(chosen), block):
        yield model.encode_texts(data.texts(chosen[part]).to(device)).embedding.float().cpu().numpy()
