"""The contract of a method, and what the triplet-like methods share.

A method draws the rows of a batch (in a background thread, numpy only) and turns the batch into a
loss with a model. It never opens a file: the data it needs is given to it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from itrpipe.learning.mined import Lists
from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods.declaration import MethodSettings
from itrpipe.models.base import AnyMatcher, ImageBatch, Tensors, TextBatch
from itrpipe.storage.arrays import Ragged

Pairs = tuple[ImageBatch, TextBatch]
Chosen = TypeVar("Chosen", bound=MethodSettings)


class TrainingSet(Protocol):
    """The pairs that a method draws its batches from, as the training reads them.

    Attributes:
        caption_image: [T] row of the image that each caption describes.
    """

    caption_image: np.ndarray

    def pairs(
        self,
        images: np.ndarray,
        captions: np.ndarray,
        rng: np.random.Generator | None = None,
    ) -> Pairs:
        """Return batches of image rows and caption rows, [B] each; with `rng` images may be changed at random."""
        ...

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Return the features of image rows [B]."""
        ...

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Return the tokens of caption rows [T]."""
        ...


class TokenLimits(NamedTuple):
    """Tokens around the words of captions, and the longest caption.

    Attributes:
        before, behind: how many tokens stand before the words of every caption and how many behind; SigLIP's have no
            start.
        longest: tokens of the longest caption that the model reads.
    """

    before: int
    behind: int
    longest: int


@dataclass(frozen=True)
class OwnedTexts(Tensors):
    """n negative sentences of the captions of a batch.

    Attributes:
        texts: the sentences.
        owners: int64 [n], number of the pair whose image each is a negative of; those of a pair together, rising.
        places: int64 [n], which of the sentences of its caption each is.
        masked: bool [n, W], tokens that were written anew; None where that is not known.
    """

    texts: TextBatch
    owners: Tensor
    places: Tensor
    masked: Tensor | None = None


@dataclass(eq=False)
class Batch(Tensors):
    """One training batch: the positives, named further pairs, and the rows of every positive.

    Attributes:
        pairs: name -> image and text batch; `positive` is there unless a method pairs by rows.
        images: [B] image row of each positive pair.
        statistics: counts that the method wants averaged into the history; `losses` may add some, as tensors that stay
            on the device.
        captions: [B] caption row of each positive pair, on the CPU, for methods that look it up again.
        sentences: further negatives of the images, where a method sets them.
        generated: [B] further captions of the pairs, made of those that there are, where a method sets them.
        twins: n images with captions, and behind them their n twins, where a method sets them.
    """

    pairs: Mapping[str, Pairs]
    images: Tensor
    statistics: dict[str, float | Tensor] = field(default_factory=dict)
    captions: np.ndarray | None = None
    sentences: OwnedTexts | None = None
    generated: TextBatch | None = None
    twins: Pairs | None = None

    def __post_init__(self) -> None:
        pairs = {}
        for name, (images, texts) in self.pairs.items():
            pairs[name] = (images, in_training(texts))
        self.pairs = pairs


def in_training(texts: TextBatch) -> TextBatch:
    """Return captions marked as those that a training step reads; see `TextBatch`."""
    return replace(texts, in_training=True)


class Method(Generic[Chosen]):
    """A training method: the base class of all, which reads the captions of a batch with their images.

    A method defines `losses`, and the others of these where it needs more than what stands here. One that reads more
    than pairs names it in an `__init__` of its own, see `itrpipe.methods.declaration.INPUTS`.

    Args:
        settings: what the method declares.
        data: the training set.

    Attributes:
        settings, data: as given.
        means: whether its losses are means over the batch; the others are sums.
    """

    means = True

    def __init__(self, settings: Chosen, data: TrainingSet) -> None:
        self.settings = settings
        self.data = data

    @cached_property
    def captions_of(self) -> Ragged:
        """Rows of the captions of each image."""
        images = self.data.caption_image
        return Ragged.of_owners(images, int(images.max()) + 1)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """Build the batch of the given caption rows [B]: these captions and their images."""
        images = self.data.caption_image[captions]
        pairs = {"positive": self.data.pairs(images, captions, rng)}
        return Batch(pairs, torch.from_numpy(images), captions=captions)

    def losses(self, model: Any, batch: Any, epoch: int) -> dict[str, Tensor]:
        """Return the named loss terms of a batch of an epoch (0-based); training minimises their sum.

        The model has all that the backbone has, and is no instance of its class: see `SharedModel` in
        `itrpipe.training.distributed`.
        """
        raise NotImplementedError

    def attach(self, model: Any) -> nn.Module:
        """Make tensors that it keeps between steps, once and before the first one; checkpoints hold them.

        Parameters among them that ask for a gradient are trained with the model, and every `MomentumTwin` among them
        follows it after each update. The model is on its device and has the weights that training starts from.
        """
        return nn.Module()

    def start_epoch(self, epoch: int) -> None:
        """Prepare an epoch (0-based), before its first step, and not where training goes on inside one."""

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Return every caption row [T] once, in the order of an epoch (0-based); None for a random order.

        Only `seed`, `epoch` and the lists of that epoch may determine it.
        """
        return None

    def refresh(self, lists: Lists) -> None:
        """Take other mined lists in the place of those that it was built with, before an epoch."""


class MomentumTwin(nn.Module):
    """A copy of a model whose weights follow the model's: theta_m <- m theta_m + (1 - m) theta .

    Buffers, such as the running statistics of BatchNorm, are copied as they are: they are averages already. Weights
    that are not trained, as of a frozen encoder, are the model's own. The copy keeps whatever mode it is put in; in
    evaluation mode, the default, dropout is off and BatchNorm uses these statistics.

    Args:
        model: to follow, with its first weights; any module, an `EmbeddingModel` for `encode`.
        momentum: m, 0..1.
        evaluate: whether the copy runs in evaluation mode, else in training mode.

    Source: FNE (Li et al., ACM MM 2023), Eq. 14, after MoCo (He et al., CVPR 2020).
    """

    def __init__(
        self,
        model: nn.Module,
        momentum: float,
        evaluate: bool = True,
    ) -> None:
        super().__init__()
        shared: dict[int, Any] = {}
        trained = {}
        for name, weights in model.named_parameters():
            if weights.requires_grad:
                trained[name] = weights
            else:
                shared[id(weights)] = weights
        copied = copy.deepcopy(model, shared).requires_grad_(False)
        self.model: Any = copied.train(not evaluate)
        self._average = get_ema_multi_avg_fn(momentum)
        # In tuples, so that the followed model is no part of this one and of its state.
        copies = tuple(self.model.get_parameter(name) for name in trained)
        self._parameter_lists = (copies, tuple(trained.values()))
        self._buffer_lists = (list(self.model.buffers()), list(model.buffers()))

    @torch.no_grad()
    def follow(self) -> None:
        """Move the weights one step; a few launches for all of them."""
        copies, followed_weights = self._parameter_lists
        self._average(copies, tuple(weights.detach() for weights in followed_weights), 0)
        for buffer, followed in zip(*self._buffer_lists, strict=True):
            buffer.copy_(followed)

    @torch.no_grad()
    def encode(self, images: ImageBatch, texts: TextBatch) -> tuple[Tensor, Tensor]:
        """Return embeddings of images and captions, [B, D] each, without gradient."""
        image, text = encode_pairs(self.model, (images, texts))
        return image.embedding, text.embedding


@contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and back into its mode at the end; draw nothing at random."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        # Autocast keeps the weights it has cast; with some versions of torch those cast here know of no gradient.
        torch.clear_autocast_cache()


def same_image_mask(batch: Batch, wanted: bool) -> Tensor | None:
    """Return [B, B], True where two pairs of the batch share an image; None when these count as negatives."""
    if not wanted:
        return None
    return batch.images[:, None] == batch.images[None, :]


def draw_sentences(
    sentences: SentenceBank | None,
    captions: np.ndarray,
    most: int,
    rng: np.random.Generator,
) -> OwnedTexts | None:
    """Draw synthetic sentences of captions [B], so many of each at most, as further negatives; None without any."""
    assert sentences is not None, "these settings read sentences; give build() a SentenceBank"
    texts, owners, places = sentences.take(captions, most, rng)
    if not len(texts.lengths):
        return None
    return OwnedTexts(in_training(texts), owners, places)


def draw_twins(
    data: TrainingSet,
    sentences: SentenceBank | None,
    share: float,
    pairs: int,
    rng: np.random.Generator,
) -> Pairs:
    """Draw images with what is true of them alone, and behind them the twins of both, [2 n] each.

    Args:
        data: the training set.
        sentences: that have twins.
        share: quadruples for each pair of the batch.
        pairs: in the batch.
        rng: source of randomness.
    """
    assert sentences is not None, "these settings draw twins; give build() a SentenceBank"
    count = math.ceil(share * pairs)
    rows = sentences.draw_twins(count, rng)
    captions = sentences.owners(rows)
    originals = data.caption_image[captions]
    twins = sentences.twins[rows]
    is_mirrored = np.concatenate([np.zeros(count, dtype=bool), twins == originals])
    # Pairs are what data change at random and share among processes; here with any captions.
    image_rows = np.concatenate([originals, twins])
    images, _ = data.pairs(image_rows, np.tile(captions, 2), rng)
    images = images.mirrored(torch.from_numpy(is_mirrored))
    return images, in_training(sentences.details_of(rows))


def twin_scores(model: AnyMatcher, batch: Batch) -> Tensor:
    """Return scores [n, 2, 2] of the two images of each quadruple, in rows, with its captions; matches diagonal."""
    assert batch.twins is not None
    images, texts = encode_pairs(model, batch.twins)
    _, captions = batch.twins
    members = torch.arange(len(captions.lengths), device=captions.lengths.device).view(2, 1, -1)
    image_rows = members.expand(2, 2, -1).flatten()
    text_rows = members.transpose(0, 1).expand(2, 2, -1).flatten()
    scores = model.score_at(images, texts, image_rows, text_rows).float()
    return scores.view(2, 2, -1).permute(2, 0, 1)


def encode_pairs(model: AnyMatcher, pairs: Pairs) -> tuple[Any, Any]:
    """Return images and captions as a model encodes them, in this order."""
    images, texts = pairs
    return model.encode_images(images), model.encode_texts(texts)


def mean_of_chosen(values: Tensor, chosen: Tensor) -> Tensor:
    """Average the chosen values of each row of [N, M]: [N], 0 where none is chosen."""
    sums = torch.where(chosen, values, 0.0).sum(dim=1)
    counts = chosen.sum(dim=1).clamp(min=1)
    return sums / counts


def auxiliary_terms(
    model: AnyMatcher,
    images: Any,
    batch: Batch,
    weight: float,
) -> dict[str, Tensor]:
    """Return the backbone's own loss of the positives under the name `auxiliary`; nothing if it has or weighs none.

    It is a mean over the batch, which published methods add to a sum of B ranking losses. A method whose losses are
    means divides the weight by B, so that both count as they do there. `images` are encoded.
    """
    if not weight:
        return {}
    _, texts = batch.pairs["positive"]
    loss = model.auxiliary_loss(images, texts)
    if loss is None:
        return {}
    return {"auxiliary": weight * loss}
