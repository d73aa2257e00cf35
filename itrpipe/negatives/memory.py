"""Momentum memory: a slowly following copy of the model, and queues of what it made of the last batches.

Shapes: B pairs in a batch, Q entries of a queue, D embedding width.

Source: FNE (Li et al., ACM MM 2023), section 3.3, after MoCo (He et al., CVPR 2020).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from itrpipe.models.base import ImageBatch, TextBatch

NO_IMAGE = -1
"""Image row of an entry that nothing was written to."""


class MomentumTwin(nn.Module):
    """A copy of a model whose weights follow the model's: theta_m <- m theta_m + (1 - m) theta (FNE Eq. 14).

    Buffers, such as the running statistics of BatchNorm, are copied as they are: they are averages already. The copy
    keeps whatever mode it is put in; in evaluation mode, the default, dropout is off and BatchNorm uses these
    statistics.

    Args:
        model: to follow, with its first weights; any module, a `DualEncoder` for `encode`.
        momentum: m, 0..1.
        evaluate: whether the copy runs in evaluation mode, else in training mode.
    """

    def __init__(self, model: nn.Module, momentum: float, evaluate: bool = True) -> None:
        super().__init__()
        self.model: Any = copy.deepcopy(model).requires_grad_(False).train(not evaluate)
        self._average = get_ema_multi_avg_fn(momentum)
        # In tuples, so that the followed model is no part of this one and of its state.
        self._parameter_lists = (tuple(self.model.parameters()), tuple(model.parameters()))
        self._buffer_lists = (list(self.model.buffers()), list(model.buffers()))

    @torch.no_grad()
    def follow(self) -> None:
        """Moves the weights one step; a few launches for all of them."""
        ours, theirs = self._parameter_lists
        self._average(ours, tuple(weights.detach() for weights in theirs), 0)
        for buffer, followed in zip(*self._buffer_lists, strict=True):
            buffer.copy_(followed)

    @torch.no_grad()
    def encode(self, images: ImageBatch, texts: TextBatch) -> tuple[Tensor, Tensor]:
        """Embeddings of images and captions, [B, D] each, in single precision and without gradient."""
        image, text = self.model.encode_images(images), self.model.encode_texts(texts)
        return image.embedding.float(), text.embedding.float()


class FeatureQueues(nn.Module):
    """The embeddings of the last Q pairs with the rows of their images; the oldest are overwritten first.

    Args:
        size: Q, 1 or more.
        width: D.
        random: fill the queues with random directions that count as candidates until they are overwritten, as the
            released code does; else with zeros that `filled` tells.
    """

    images: Tensor
    texts: Tensor
    image_rows: Tensor
    place: Tensor

    def __init__(self, size: int, width: int, random: bool = False) -> None:
        super().__init__()
        self.random = random
        for name in ("images", "texts"):
            rows = nn.functional.normalize(torch.randn(size, width), dim=1) if random else torch.zeros(size, width)
            self.register_buffer(name, rows)
        self.register_buffer("image_rows", torch.full((size,), NO_IMAGE))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    @property
    def filled(self) -> Tensor:
        """bool [Q], entries that may be candidates."""
        return torch.ones_like(self.image_rows, dtype=torch.bool) if self.random else self.image_rows != NO_IMAGE

    @torch.no_grad()
    def write(self, images: Tensor, texts: Tensor, image_rows: Tensor) -> None:
        """Takes in a batch; of one longer than the queues, its end.

        Args:
            images, texts: [B, D] embeddings.
            image_rows: [B] int64, the image of each pair, 0 or more.
        """
        size = len(self.image_rows)
        images, texts, image_rows = (each[-size:] for each in (images, texts, image_rows))
        rows = (self.place + torch.arange(len(image_rows), device=self.place.device)) % size
        self.images.index_copy_(0, rows, images)
        self.texts.index_copy_(0, rows, texts)
        self.image_rows.index_copy_(0, rows, image_rows)
        self.place.add_(len(image_rows)).remainder_(size)


def same_image_columns(image_rows: Tensor, queues: FeatureQueues | None) -> Tensor:
    """bool [B, B + Q], candidates of each anchor that are no negatives.

    These are its own pair, other captions of its image in the batch and in the queue, and entries of the queue that
    nothing was written to.

    Args:
        image_rows: [B] the image of each pair of the batch.
        queues: whose entries follow the pairs of the batch; None for the batch alone.
    """
    within = image_rows[:, None] == image_rows[None, :]
    if queues is None:
        return within
    stored = image_rows[:, None] == queues.image_rows[None, :]
    return torch.cat([within, stored | ~queues.filled[None, :]], dim=1)
