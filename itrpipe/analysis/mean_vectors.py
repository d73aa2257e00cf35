"""Vectors of single images and captions by a model whose scores belong to pairs, for analyses and for nothing else.

AsCL compares fused pairs and so has no embedding to search. What its fusion starts from are regions and words, each
side on its own: their means, scaled to unit length, tell how a trained model has laid out images and captions. They do
not rank as the model does, which is why no embeddings file holds them, and mining and search never see them.

Source: AsCL (Gong et al.), Fig. 4, compares embeddings without saying which; this reading is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.training.data import SplitData, blocks

VECTORS = "mean regions and mean words after their projection"
"""What these vectors are, as files say it."""


@torch.inference_mode()
def mean_vectors(
    model: AsclEncoder, data: SplitData, device: torch.device, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [N, D] of all images and [T, D] of all captions of a split, float32.

    Args:
        model: in evaluation mode, on `device`.
        data: the split.
        device: where to compute.
        block: images or captions per forward pass.
    """

    def rows(count: int, read: Callable[[np.ndarray], Any], embed: Callable[[Any], Tensor]) -> np.ndarray:
        return np.concatenate([embed(read(part).to(device)).float().cpu().numpy() for part in blocks(count, block)])

    def of_images(batch: ImageBatch) -> Tensor:
        return model.embed_images(model.encode_images(batch))

    def of_texts(batch: TextBatch) -> Tensor:
        return model.embed_texts(model.encode_texts(batch))

    return rows(data.num_images, data.images, of_images), rows(data.num_captions, data.texts, of_texts)
