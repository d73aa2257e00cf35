"""Pretraining of UNITER: which words are masked, and whether an image and a caption belong together.

A model that starts from random weights needs it before hard negatives teach it anything, and any model before it can
write sentences. The rank head, which the paper starts from the matching head afterwards, is trained along, to score the
match of a caption above its other images, so that the best epoch can be chosen by retrieval.

Source: UNITER (Chen et al., ECCV 2020), section 3.2. Its losses on regions and its word-region alignment are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.losses.tags import masked_word_loss
from itrpipe.methods.base import Batch
from itrpipe.methods.itm.method import draw_others
from itrpipe.methods.masking import MaskedTexts, MaskingSource, masked_texts, masked_word_logits, masked_word_owners
from itrpipe.methods.pretrain.declaration import Pretrain
from itrpipe.models.base import ImageBatch
from itrpipe.models.uniter.network import UniterEncoder, UniterImages


class PretrainBatch(Batch):
    """B captions with their own and with other images.

    Args:
        images: I different ones.
        texts: the captions, masked once.
        rows: int64 [B, 1 + N] image of each pair; the first column is the match; kept on the CPU.
        anchors: [B] row of the match in the training set.
    """

    def __init__(self, images: ImageBatch, texts: MaskedTexts, rows: Tensor, anchors: Tensor) -> None:
        super().__init__({"positive": (images, texts.captions)}, anchors)
        self.texts, self.rows = texts, rows

    def to(self, device: torch.device | str) -> PretrainBatch:
        """The same batch on a device."""
        images = self.pairs["positive"][0].to(device)
        return PretrainBatch(images, self.texts.to(device), self.rows, self.images.to(device, non_blocking=True))


class PretrainMethod:
    """Trains the heads of masked words, of matching and of ranking.

    Args:
        settings: weights, and what is masked.
        data: the training set.

    Raises:
        UsageError: the training set is too small for so many negatives.
    """

    means = True

    def __init__(self, settings: Pretrain, data: MaskingSource) -> None:
        self._settings, self._data = settings, data
        self._num_images = int(data.caption_image.max()) + 1
        if settings.negatives >= self._num_images:
            raise UsageError(
                f"loss.negatives = {settings.negatives}, but the training set has {self._num_images} images, the "
                "caption's own included; give fewer"
            )

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> PretrainBatch:
        """The captions, masked and as they are, with their own and with other images."""
        own = self._data.caption_image[captions]
        others = draw_others(own[:, None] == np.arange(self._num_images), self._settings.negatives, rng)
        images, rows = np.unique(np.concatenate([own[:, None], others], axis=1), return_inverse=True)
        texts = masked_texts(self._data, captions, 1, self._settings.noise, rng)
        places = torch.from_numpy(rows.reshape(len(captions), -1))
        return PretrainBatch(self._data.images(images), texts, places, torch.from_numpy(own))

    def losses(self, model: UniterEncoder, batch: PretrainBatch, epoch: int) -> dict[str, Tensor]:
        """`matching`, of the heads of matching and ranking, and `words`, each with its weight."""
        images = model.encode_images(batch.pairs["positive"][0])
        return {
            "matching": self._settings.weight_matching * self._matching(model, images, batch),
            "words": self._settings.weight_words * _words(model, images, batch),
        }

    def _matching(self, model: UniterEncoder, images: UniterImages, batch: PretrainBatch) -> Tensor:
        texts = model.encode_texts(batch.texts.captions)
        rows = torch.arange(len(batch.rows)).repeat_interleave(batch.rows.shape[1])
        states = model.read_at(images, texts, batch.rows.flatten(), rows, 1, lambda each: each[:, 0])
        matches = torch.zeros(batch.rows.shape, dtype=torch.int64, device=states.device)
        matches[:, 0] = 1
        scores = model.rank_score(states).view(batch.rows.shape)
        ranked = F.cross_entropy(scores, torch.zeros_like(matches[:, 0]))
        logits = model.match_logits(states)
        batch.statistics["matching_accuracy"] = (logits.argmax(dim=1) == matches.flatten()).float().mean()
        batch.statistics["ranking_accuracy"] = (scores.argmax(dim=1) == 0).float().mean()
        return F.cross_entropy(logits, matches.flatten()) + ranked


def _words(model: UniterEncoder, images: UniterImages, batch: PretrainBatch) -> Tensor:
    """Loss of masked words, in captions with their own images."""
    texts = batch.texts
    own = batch.rows[:, 0].to(images.count.device)
    logits = masked_word_logits(model, UniterImages(images.regions[own], images.count[own]), texts)
    labels = texts.labels[texts.labelled]
    batch.statistics["masked_word_accuracy"] = (logits.argmax(dim=1) == labels).float().mean()
    return masked_word_loss(logits, labels, masked_word_owners(texts), len(batch.rows))


def build(settings: Pretrain, data: MaskingSource, lists: Mapping[str, np.ndarray]) -> PretrainMethod:
    """Makes the method; it reads no mined lists.

    Raises:
        UsageError: the training set is too small for so many negatives.
    """
    return PretrainMethod(settings, data)
