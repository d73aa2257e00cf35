"""What methods that mask captions share: a training set that knows how, and the masked copies of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from itrpipe.methods.itm.method import PoolSource
from itrpipe.models.base import TextBatch
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.negatives.caption_masks import CaptionMasks
from itrpipe.negatives.masking import UNLABELLED


class MaskingSource(PoolSource, Protocol):
    """A training set whose captions can be masked.

    Attributes:
        masks: how.
    """

    masks: CaptionMasks


@dataclass(frozen=True)
class MaskedTexts:
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
        """bool [B K, W]."""
        return self.labels != UNLABELLED

    def to(self, device: torch.device | str) -> MaskedTexts:
        """The same on a device."""
        captions = self.captions.to(device)
        return MaskedTexts(captions, self.copies.to(device), self.labels.to(device))


def masked_texts(
    data: MaskingSource, captions: np.ndarray, copies: int, noise: bool, rng: np.random.Generator
) -> MaskedTexts:
    """Masked copies of the captions of the given rows [B]; see `CaptionMasks.draw`."""
    texts = data.texts(captions)
    width = texts.tokens.shape[1]
    drawn = data.masks.draw(captions, width, copies, noise, rng)
    flat = (torch.from_numpy(each.reshape(-1, width)) for each in (drawn.tokens, drawn.labels))
    return MaskedTexts(texts, *flat)


def masked_word_logits(model: UniterEncoder, images: Any, texts: MaskedTexts) -> Tensor:
    """What stands at the M masked positions, copy by copy and from left to right.

    Args:
        model: UNITER.
        images: of the B captions, as the model encodes them.
        texts: B captions.

    Returns:
        [M, V].
    """
    count = len(texts.copies) // len(texts.captions.tokens)
    lengths = texts.captions.lengths.repeat_interleave(count)
    encoded = model.encode_texts(TextBatch(texts.copies, lengths))
    rows = torch.arange(len(texts.copies))
    states = model.read_at(images, encoded, rows // count, rows, texts.copies.shape[1], lambda each: each)
    return model.masked_word_logits(states[texts.labelled])


def masked_word_owners(texts: MaskedTexts) -> Tensor:
    """Number of the caption that each of the M masked positions is of, int64 [M]."""
    count = len(texts.copies) // len(texts.captions.tokens)
    return texts.labelled.nonzero()[:, 0] // count
