"""The contract of a method, and what the triplet-like methods share.

A method draws the rows of a batch (in a background thread, numpy only) and turns the batch into a
loss with a model. It never opens a file: the data it needs is given to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from itrpipe.models.base import ImageBatch, Matcher, TextBatch

Pairs = tuple[ImageBatch, TextBatch]


class PairSource(Protocol):
    """Gives image and text batches for rows of the training set."""

    caption_image: np.ndarray

    def pairs(self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None) -> Pairs:
        """Batches of the given image rows and caption rows, [B] each; with `rng` images may be changed at random."""
        ...


@dataclass(frozen=True)
class OwnedTexts:
    """n negative sentences of the captions of a batch.

    Attributes:
        texts: the sentences.
        owners: int64 [n], number of the pair whose image each is a negative of; those of a pair together, rising.
    """

    texts: TextBatch
    owners: Tensor

    def to(self, device: torch.device | str) -> OwnedTexts:
        """The same on a device."""
        return OwnedTexts(self.texts.to(device), self.owners.to(device, non_blocking=True))


class Batch:
    """One training batch: the positives, named further pairs, and the rows of every positive.

    Args:
        pairs: name -> image and text batch; `positive` is always there.
        images: [B] image row of each positive pair.
        statistics: counts that the method wants averaged into the history; `losses` may add some, as tensors that stay
            on the device.
        captions: [B] caption row of each positive pair, on the CPU, for methods that look it up again.
        sentences: further negatives of the images.
        generated: [B] further captions of the pairs, made of those that there are.
    """

    def __init__(
        self,
        pairs: Mapping[str, Pairs],
        images: Tensor,
        statistics: Mapping[str, float | Tensor] | None = None,
        captions: np.ndarray | None = None,
        sentences: OwnedTexts | None = None,
        generated: TextBatch | None = None,
    ) -> None:
        self.pairs = {name: (image_batch, _trained(texts)) for name, (image_batch, texts) in pairs.items()}
        self.images = images
        self.statistics = dict(statistics or {})
        self.captions = captions
        self.sentences = None if sentences is None else replace(sentences, texts=_trained(sentences.texts))
        self.generated = None if generated is None else _trained(generated)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        pairs = {name: (images.to(device), texts.to(device)) for name, (images, texts) in self.pairs.items()}
        sentences = None if self.sentences is None else self.sentences.to(device)
        generated = None if self.generated is None else self.generated.to(device)
        rows = self.images.to(device, non_blocking=True)
        return Batch(pairs, rows, self.statistics, self.captions, sentences, generated)


def _trained(texts: TextBatch) -> TextBatch:
    return replace(texts, in_training=True)


class Method(Protocol):
    """A training method.

    Attributes:
        means: whether its losses are means over the batch; the others are sums.
    """

    means: bool

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """Builds the batch of the given caption rows [B]."""
        ...

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """Named loss terms of a batch of an epoch (0-based); training minimises their sum."""
        ...


@runtime_checkable
class StatefulMethod(Method, Protocol):
    """A method that keeps tensors between steps."""

    def attach(self, model: Any) -> nn.Module:
        """Makes these tensors for a model, once and before the first step, and returns them for checkpoints to hold.

        Parameters among them that ask for a gradient are trained with the model, and every `MomentumTwin` among them
        follows it after each update. The model is on its device and has the weights that training starts from.
        """
        ...

    def start_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch (0-based), and not where training goes on inside one."""
        ...


@runtime_checkable
class OrderingMethod(Method, Protocol):
    """A method that says in which order an epoch goes over the captions."""

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Every caption row [T] once; None for a random order. Only `seed` and `epoch` (0-based) may determine it."""
        ...


@runtime_checkable
class RefreshedMethod(Method, Protocol):
    """A method that goes on with other mined lists."""

    def refresh(self, lists: Mapping[str, np.ndarray]) -> None:
        """Takes lists in the place of those that it was built with, before an epoch."""
        ...


def same_image_mask(batch: Batch, wanted: bool) -> Tensor | None:
    """[B, B] True where two pairs of the batch share an image, or None when these count as negatives."""
    return batch.images[:, None] == batch.images[None, :] if wanted else None


def positive_pairs(data: PairSource, captions: np.ndarray, rng: np.random.Generator) -> Batch:
    """The captions of these rows [B] with their images, which is all that many methods need of a batch."""
    images = data.caption_image[captions]
    return Batch({"positive": data.pairs(images, captions, rng)}, torch.from_numpy(images))


def auxiliary_terms(model: Matcher[Any, Any], images: Any, texts: TextBatch, weight: float) -> dict[str, Tensor]:
    """The backbone's own loss under the name `auxiliary`, or nothing when it has none or weighs nothing.

    It is a mean over the batch, which published methods add to a sum of B ranking losses. A method whose losses are
    means divides the weight by B, so that both count as they do there.
    """
    loss = model.auxiliary_loss(images, texts) if weight else None
    return {} if loss is None else {"auxiliary": weight * loss}
