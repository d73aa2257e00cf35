"""Pretraining of UNITER: which words are masked, and whether an image and a caption belong together.

A model that starts from random weights needs it before hard negatives teach it anything, and any model before it can
write sentences. The rank head, which the paper starts from the matching head afterwards, is trained along, to score the
match of a caption above its other images, so that the best epoch can be chosen by retrieval.

Source: UNITER (Chen et al., ECCV 2020), section 3.2. Its losses on regions and its word-region alignment are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.learning.sentences import UNLABELLED, CaptionMasks
from itrpipe.methods.base import Batch, Method, TrainingSet
from itrpipe.methods.itm.method import draw_others
from itrpipe.methods.pretrain.declaration import Pretrain
from itrpipe.models.base import RegionEncoding, Tensors, TextBatch
from itrpipe.models.uniter.network import UniterEncoder


@dataclass(frozen=True)
class MaskedTexts(Tensors):
    """B captions with K masked copies of each.

    Attributes:
        captions: as they are, [B, W].
        copies: int64 [B K, W], those of a caption together.
        labels: int64 [B K, W], the caption's own token where one is masked, `UNLABELLED` elsewhere.
    """

    captions: TextBatch
    copies: Tensor
    labels: Tensor

    @property
    def labelled(self) -> Tensor:
        """Places of masked tokens, bool [B K, W]."""
        return self.labels != UNLABELLED

    @property
    def count(self) -> int:
        """Copies of a caption, K."""
        return len(self.copies) // len(self.captions.tokens)

    def owners(self) -> Tensor:
        """Return the number of the caption that each of the M masked positions is of, int64 [M]."""
        return self.labelled.nonzero()[:, 0] // self.count


def masked_texts(
    data: TrainingSet,
    masks: CaptionMasks,
    captions: np.ndarray,
    copies: int,
    noise: bool,
    rng: np.random.Generator,
) -> MaskedTexts:
    """Draw masked copies of the captions of the given rows [B]; see `CaptionMasks.draw`."""
    texts = data.texts(captions)
    tokens, labels = masks.draw(captions, texts.tokens.shape[1], copies, noise, rng)
    return MaskedTexts(texts, torch.from_numpy(tokens), torch.from_numpy(labels))


def masked_word_logits(
    model: UniterEncoder,
    images: RegionEncoding,
    texts: MaskedTexts,
) -> Tensor:
    """Predict the words at the M masked positions, copy by copy and from left to right.

    Args:
        model: UNITER.
        images: of the B captions, as the model encodes them.
        texts: B captions.

    Returns:
        [M, V].
    """
    copies = texts.copies
    lengths = texts.captions.lengths.repeat_interleave(texts.count)
    encoded = model.encode_texts(TextBatch(copies, lengths))
    rows = torch.arange(len(copies))
    states = model.read_at(
        images,
        encoded,
        rows // texts.count,
        rows,
        copies.shape[1],
        lambda states: states,
    )
    return model.masked_word_logits(states[texts.labelled])


def word_loss(logits: Tensor, words: Tensor, owners: Tensor, count: int) -> Tensor:
    """Compute the cross-entropy of words at some positions of sentences, a mean over captions of the mean inside each.

    L_MLM (TAGS-DC, Eq. 1) is that of the words which stood at the masked positions of the copies:
    mean -log p(w | I, T^(k)), where the mean counts words, not sentences. A caption without such a position counts 0.

    Args:
        logits: [M, V].
        words: [M] int64, what should stand there.
        owners: [M] int64, caption of each.
        count: of the captions.
    """
    losses = F.cross_entropy(logits.float(), words, reduction="none")
    return mean_over_captions(losses, owners, count)


def mean_over_captions(losses: Tensor, owners: Tensor, count: int) -> Tensor:
    """Average over captions the mean of the losses [M] of each; a caption without a loss counts with 0.

    It is as if there were a step for each caption whose gradients are averaged (TAGS-DC, released code).
    """
    sums = losses.new_zeros(count).index_add_(0, owners, losses)
    ones = torch.ones_like(losses)
    counts = losses.new_zeros(count).index_add_(0, owners, ones)
    return (sums / counts.clamp(min=1)).mean()


@dataclass(eq=False, kw_only=True)
class PretrainBatch(Batch):
    """B captions with their own and with other images: the positive pairs are I different images and the captions.

    Attributes:
        texts: the captions, masked once.
        rows: int64 [B, 1 + N] image of each pair; the first column is the match; an array, which stays on the CPU.
    """

    texts: MaskedTexts
    rows: np.ndarray


class PretrainMethod(Method[Pretrain]):
    """Trains the heads of masked words, of matching and of ranking.

    Raises:
        UsageError: the training set is too small for so many negatives.
    """

    def __init__(
        self,
        settings: Pretrain,
        data: TrainingSet,
        masks: CaptionMasks,
    ) -> None:
        super().__init__(settings, data)
        self._masks = masks
        images = len(self.captions_of)
        if settings.negatives >= images:
            raise UsageError(
                f"loss.negatives = {settings.negatives}, but the training set has {images} images, the "
                "caption's own included; give fewer"
            )

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> PretrainBatch:
        """Build the batch of the captions, masked and as they are, with their own and with other images."""
        own_images = self.data.caption_image[captions]
        is_own = own_images[:, None] == np.arange(len(self.captions_of))
        other_images = draw_others(is_own, self.settings.negatives, rng)
        images, rows = np.unique(np.column_stack([own_images, other_images]), return_inverse=True)
        texts = masked_texts(
            self.data,
            self._masks,
            captions,
            1,
            self.settings.noise,
            rng,
        )
        pairs = {"positive": (self.data.images(images), texts.captions)}
        return PretrainBatch(
            pairs,
            torch.from_numpy(own_images),
            texts=texts,
            rows=rows.reshape(len(captions), -1),
        )

    def losses(
        self,
        model: UniterEncoder,
        batch: PretrainBatch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `matching`, of the heads of matching and ranking, and `words` (L_MLM), each with its weight."""
        settings = self.settings
        image_batch, _ = batch.pairs["positive"]
        images = model.encode_images(image_batch)
        texts = model.encode_texts(batch.texts.captions)
        pairs = torch.from_numpy(batch.rows)
        rows = torch.arange(len(pairs)).repeat_interleave(pairs.shape[1])
        states = model.read_at(
            images,
            texts,
            pairs.flatten(),
            rows,
            1,
            lambda states: states[:, 0],
        )
        matches = torch.zeros(pairs.shape, dtype=torch.int64, device=states.device)
        matches[:, 0] = 1
        scores = model.rank_score(states).view(pairs.shape)
        logits = model.pair_logits(states, model.match)
        matching = F.cross_entropy(logits, matches.flatten())
        ranking = F.cross_entropy(scores, torch.zeros_like(matches[:, 0]))

        # Masked words are read in captions with their own images.
        own_images = images[pairs[:, 0].to(states.device)]
        word_logits = masked_word_logits(model, own_images, batch.texts)
        labels = batch.texts.labels[batch.texts.labelled]
        words = word_loss(word_logits, labels, batch.texts.owners(), len(pairs))
        is_matched = logits.argmax(dim=1) == matches.flatten()
        is_first = scores.argmax(dim=1) == 0
        is_right_word = word_logits.argmax(dim=1) == labels
        batch.statistics |= {
            "matching_accuracy": is_matched.float().mean(),
            "ranking_accuracy": is_first.float().mean(),
            "masked_word_accuracy": is_right_word.float().mean(),
        }
        return {
            "matching": settings.weight_matching * (matching + ranking),
            "words": settings.weight_words * words,
        }


build = PretrainMethod
