"""Round one: the triplet loss with the negatives of the batch.

Source: VSE++ (Faghri et al., BMVC 2018); AOQ (Chen et al., ECCV 2020), Eq. 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.triplet import hardest_sentence_loss, triplet_loss
from itrpipe.methods.base import Batch, OwnedTexts, PairSource, auxiliary_terms, same_image_mask
from itrpipe.methods.settings import Triplet
from itrpipe.models.base import Matcher, rows_of
from itrpipe.negatives.sentence_bank import SentenceBank


class TripletMethod:
    """Scores every image of the batch with every caption of it.

    Args:
        settings: margin and choice of negatives.
        data: the training set.
        sentences: its synthetic sentences, where the settings want some.
    """

    means = False

    def __init__(self, settings: Triplet, data: PairSource, sentences: SentenceBank | None = None) -> None:
        self._settings, self._data, self._sentences = settings, data, sentences

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """The captions and their images, and some synthetic sentences of each where they are wanted."""
        images = self._data.caption_image[captions]
        pairs = {"positive": self._data.pairs(images, captions, rng)}
        sentences = None
        if self._sentences is not None:
            texts, owners, _ = self._sentences.drawn(captions, self._settings.synthetic_sentences, rng)
            sentences = OwnedTexts(texts, owners) if len(owners) else None
        return Batch(pairs, torch.from_numpy(images), sentences=sentences)

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """`triplet` (Eq. 1 or 2), `synthetic` of sentences and the backbone's `auxiliary` loss, sums over the batch."""
        settings = self._settings
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        scores = model.score_matrix(images, texts).float()  # [B, B]
        matching = triplet_loss(
            scores,
            margin=settings.margin,
            max_violation=settings.max_violation and epoch >= settings.sum_epochs,
            not_negative=same_image_mask(batch, settings.mask_same_image),
        )
        terms = {"triplet": matching, **auxiliary_terms(model, images, text_batch, settings.auxiliary_weight)}
        if batch.sentences is not None:
            owners = batch.sentences.owners
            negatives = model.score_pairs(rows_of(images, owners), model.encode_texts(batch.sentences.texts)).float()
            loss = hardest_sentence_loss(scores.diagonal(), negatives, owners, settings.margin)
            terms["synthetic"] = settings.synthetic_weight * loss
        return terms


class SentenceSource(PairSource, Protocol):
    """A training set with synthetic sentences.

    Attributes:
        sentences: of its captions.
    """

    sentences: SentenceBank


def build(settings: Triplet, data: PairSource, lists: Mapping[str, np.ndarray]) -> TripletMethod:
    """Makes the method; it reads no mined lists, and of `data` the sentences where the settings want some."""
    sentences = cast(SentenceSource, data).sentences if settings.synthetic_sentences else None
    return TripletMethod(settings, data, sentences)
