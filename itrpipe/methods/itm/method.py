"""Matching fine-tuned with hard negatives: for every anchor the hardest of some hundred candidates.

A batch of B captions has 2 B anchors: each caption, which meets images, and as many images, drawn on their own, each
with one of its captions, which meet captions. A step

1. scores every anchor's match and candidates without gradient and without dropout,
2. takes the candidates with the highest scores,
3. scores these again with dropout and trains  mean_j max(0, margin + sigmoid(s_j) - sigmoid(s_0))  of every anchor.

Source: UNITER (Chen et al., ECCV 2020), fine-tuning for retrieval with hard negatives; used by TAGS-DC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from itrpipe.errors import UsageError
from itrpipe.losses.itm import ranking_hinges
from itrpipe.methods.base import Batch
from itrpipe.methods.itm.declaration import Itm
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.network import UniterEncoder


class PoolSource(Protocol):
    """A training set that gives images and captions apart."""

    caption_image: np.ndarray

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Features of image rows [B]."""
        ...

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Tokens of caption rows [T]."""
        ...


@dataclass(frozen=True)
class PairRows:
    """Pairs of 2 B anchors, the captions first, as rows of the images and captions of a batch; kept on the CPU.

    Attributes:
        images, captions: int64 [2 B, 1 + M]; the first column is the match.
    """

    images: Tensor
    captions: Tensor

    def at(self, columns: Tensor) -> PairRows:
        """The match and those of its negatives [2 B, m] that are named by number, from 0."""
        columns = torch.cat([torch.zeros_like(columns[:, :1]), columns + 1], dim=1)
        return PairRows(self.images.gather(1, columns), self.captions.gather(1, columns))


class ItmBatch(Batch):
    """All images and captions of a batch under the name `pool`, each once, and the pairs that they make.

    Args:
        images, texts: the pool.
        rows: its pairs.
        anchors: [B] image row of the match of each caption.
    """

    def __init__(self, images: ImageBatch, texts: TextBatch, rows: PairRows, anchors: Tensor) -> None:
        super().__init__({"pool": (images, texts)}, anchors)
        self.rows = rows

    def to(self, device: torch.device | str) -> ItmBatch:
        """The same batch on a device."""
        images, texts = self.pairs["pool"]
        return ItmBatch(images.to(device), texts.to(device), self.rows, self.images.to(device, non_blocking=True))


class ItmMethod:
    """Trains with the hardest of sampled negatives.

    Args:
        settings: margin and numbers of negatives.
        data: the training set.

    Raises:
        UsageError: the training set is too small for so many negatives.

    Attributes:
        settings, data: as given.
    """

    means = True

    def __init__(self, settings: Itm, data: PoolSource) -> None:
        self.settings, self.data = settings, data
        self._captions_of = _rows_by_image(data.caption_image)
        most_own = max(map(len, self._captions_of))
        spare = min(len(self._captions_of) - 1, len(data.caption_image) - most_own)
        if settings.sampled_negatives > spare:
            raise UsageError(
                f"loss.sampled_negatives = {settings.sampled_negatives}, but the training set has no more than {spare} "
                f"negatives for every anchor; give --set loss.sampled_negatives={spare} or less"
            )

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> ItmBatch:
        """The captions with candidate images, and as many images with candidate captions."""
        own = self.data.caption_image
        with_images, with_captions = self._text_anchored(captions, rng), self._image_anchored(len(captions), rng)
        image_rows, caption_rows = (
            np.concatenate(sides) for sides in zip(with_images, with_captions, strict=True)
        )  # [2 B, 1 + N]
        images, image_at = np.unique(image_rows, return_inverse=True)
        texts, caption_at = np.unique(caption_rows, return_inverse=True)
        places = (torch.from_numpy(at.reshape(image_rows.shape)) for at in (image_at, caption_at))
        pool = self.data.images(images), self.data.texts(texts)
        return ItmBatch(*pool, PairRows(*places), torch.from_numpy(own[captions]))

    def losses(self, model: UniterEncoder, batch: ItmBatch, epoch: int) -> dict[str, Tensor]:
        """`text_anchored` and `image_anchored`, means over anchors and negatives."""
        return self.ranking_terms(self.hard_scores(model, batch, epoch), batch)

    def hard_scores(self, model: UniterEncoder, batch: ItmBatch, epoch: int) -> Tensor:
        """Scores [2 B, 1 + M] of the pairs that are trained, those of each anchor with its match first."""
        rows = self.hard_rows(model, batch, epoch)
        images, image_rows = _used(rows.images)
        texts, text_rows = _used(rows.captions)
        image_batch, text_batch = batch.pairs["pool"]
        encoded = model.encode_images(images_at(image_batch, images)), model.encode_texts(texts_at(text_batch, texts))
        return model.score_at(*encoded, image_rows.flatten(), text_rows.flatten()).view(rows.images.shape)

    def ranking_terms(self, scores: Tensor, batch: ItmBatch) -> dict[str, Tensor]:
        """`text_anchored` and `image_anchored` of the scores that `hard_scores` gave."""
        hinges = ranking_hinges(scores, self.settings.margin)
        batch.statistics["active_negatives"] = (hinges.detach() > 0).float().mean()
        with_images, with_captions = hinges.chunk(2)
        return {"text_anchored": with_images.mean(), "image_anchored": with_captions.mean()}

    def hard_rows(self, model: UniterEncoder, batch: ItmBatch, epoch: int) -> PairRows:
        """The pairs that are trained: matches and hard negatives, or the first negatives in the first epochs.

        The model scores in evaluation mode and is put back into the mode it had; that draws no random numbers.
        """
        hard = self.settings.hard_negatives
        if epoch < self.settings.sum_epochs:
            return batch.rows.at(torch.arange(hard).expand(len(batch.rows.images), -1))
        images, texts = batch.pairs["pool"]
        with scoring(model):
            encoded = model.encode_images(images), model.encode_texts(texts)
            negatives = PairRows(batch.rows.images[:, 1:], batch.rows.captions[:, 1:])
            scores = model.score_at(*encoded, negatives.images.flatten(), negatives.captions.flatten())
        return batch.rows.at(scores.view(negatives.images.shape).topk(hard, dim=1).indices.cpu())

    def _text_anchored(self, captions: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Image and caption rows [B, 1 + N] of captions with images that are not theirs."""
        own = self.data.caption_image[captions, None]
        excluded = own == np.arange(len(self._captions_of))
        images = np.concatenate([own, draw_others(excluded, self.settings.sampled_negatives, rng)], axis=1)
        return images, np.broadcast_to(captions[:, None], images.shape)

    def _image_anchored(self, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Likewise of `size` images with captions that are not theirs."""
        images = rng.choice(len(self._captions_of), size, replace=size > len(self._captions_of))[:, None]
        matching = np.array([[rng.choice(self._captions_of[image])] for image in images[:, 0]])
        excluded = images == self.data.caption_image
        captions = np.concatenate([matching, draw_others(excluded, self.settings.sampled_negatives, rng)], axis=1)
        return np.broadcast_to(images, captions.shape), captions


@contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; then the model is put back into the mode it had. Draws no random numbers."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        # Autocast keeps the weights it has cast; with some versions of torch those cast here know of no gradient.
        torch.clear_autocast_cache()


def draw_others(excluded: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Rows [B, count] drawn uniformly and without repetition from those not `excluded` bool [B, M], in random order."""
    keys = rng.random(excluded.shape, dtype=np.float32)
    keys[excluded] = 2.0
    first = np.argpartition(keys, count - 1, axis=1)[:, :count]
    # The partition has no order that chance has made; of equal sets, the keys give a random one.
    return np.take_along_axis(first, np.take_along_axis(keys, first, axis=1).argsort(axis=1), axis=1)


def _rows_by_image(caption_image: np.ndarray) -> list[np.ndarray]:
    """Caption rows of every image."""
    order = np.argsort(caption_image, kind="stable")
    return np.split(order, np.searchsorted(caption_image[order], np.arange(1, caption_image.max() + 1)))


def _used(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that occur, and where each is among them."""
    return torch.unique(rows, return_inverse=True)


def images_at(images: ImageBatch, rows: Tensor) -> ImageBatch:
    """The images of the given rows."""
    rows = rows.to(images.regions.device)
    count = None if images.count is None else images.count[rows]
    return ImageBatch(images.regions[rows], count, boxes=None if images.boxes is None else images.boxes[rows])


def texts_at(texts: TextBatch, rows: Tensor) -> TextBatch:
    """The captions of the given rows."""
    rows = rows.to(texts.tokens.device)
    return TextBatch(texts.tokens[rows], texts.lengths[rows])


def build(settings: Itm, data: PoolSource, lists: Mapping[str, np.ndarray]) -> ItmMethod:
    """Makes the method; it reads no mined lists.

    Raises:
        UsageError: the training set is too small for so many negatives.
    """
    return ItmMethod(settings, data)
