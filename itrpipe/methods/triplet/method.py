"""Round one: the triplet loss with the negatives of the batch.

Captions that are made of the image's own (AsCL) may stand beside the captions as further positives.

Source: VSE++ (Faghri et al., BMVC 2018); AOQ (Chen et al., ECCV 2020), Eq. 1 and 2; of the positives, AsCL, Eq. 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.triplet import hardest_sentence_loss, triplet_loss
from itrpipe.methods.base import Batch, OwnedTexts, PairSource, auxiliary_terms, same_image_mask
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.base import Matcher, rows_of
from itrpipe.negatives.caption_positives import CaptionPositives, CaptionSource, batch_of, tokens_of
from itrpipe.negatives.sentence_bank import SentenceBank


class TripletMethod:
    """Scores every image of the batch with every caption of it.

    Args:
        settings: margin and choice of negatives.
        data: the training set.
        sentences: its synthetic sentences, where the settings want some.
        positives: makes further captions of its images, where the settings want some.
    """

    means = False

    def __init__(
        self,
        settings: Triplet,
        data: PairSource,
        sentences: SentenceBank | None = None,
        positives: CaptionPositives | None = None,
    ) -> None:
        self._settings, self._data = settings, data
        self._sentences, self._positives = sentences, positives

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """The captions and their images, and synthetic sentences and generated positives of each where wanted."""
        images = self._data.caption_image[captions]
        pairs = {"positive": self._data.pairs(images, captions, rng)}
        sentences = None
        if self._sentences is not None:
            texts, owners, _ = self._sentences.drawn(captions, self._settings.synthetic_sentences, rng)
            sentences = OwnedTexts(texts, owners) if len(owners) else None
        generated = None
        if self._positives is not None:
            own = tokens_of(pairs["positive"][1], self._positives.ends)
            generated = batch_of(self._positives.draw(images, own, rng))
        return Batch(pairs, torch.from_numpy(images), sentences=sentences, generated=generated)

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """Sums over the batch: `triplet` (Eq. 1 or 2), the backbone's `auxiliary` loss, `synthetic` of sentences.

        With generated positives `triplet` is half of Eq. 1 or 2, and `positives` half of the same with these for the
        captions: each meets the images of the other pairs, and each image the positives of the other pairs.
        """
        settings = self._settings
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        scores = model.score_matrix(images, texts).float()  # [B, B]
        terms = {
            "triplet": self._ranking(scores, batch, epoch),
            **auxiliary_terms(model, images, text_batch, settings.auxiliary_weight),
        }
        if batch.sentences is not None:
            owners = batch.sentences.owners
            negatives = model.score_pairs(rows_of(images, owners), model.encode_texts(batch.sentences.texts)).float()
            loss = hardest_sentence_loss(scores.diagonal(), negatives, owners, settings.margin)
            terms["synthetic"] = settings.synthetic_weight * loss
        if batch.generated is not None:
            longer_or_shorter = model.score_matrix(images, model.encode_texts(batch.generated)).float()  # [B, B]
            terms["triplet"] = terms["triplet"] / 2
            terms["positives"] = self._ranking(longer_or_shorter, batch, epoch) / 2
        return terms

    def _ranking(self, scores: Tensor, batch: Batch, epoch: int) -> Tensor:
        """Eq. 1 or 2 of scores [B, B]."""
        settings = self._settings
        return triplet_loss(
            scores,
            margin=settings.margin,
            max_violation=settings.max_violation and epoch >= settings.sum_epochs,
            not_negative=same_image_mask(batch, settings.mask_same_image),
        )


class SentenceSource(PairSource, Protocol):
    """A training set with synthetic sentences.

    Attributes:
        sentences: of its captions.
    """

    sentences: SentenceBank


class GeneratingSource(PairSource, CaptionSource, Protocol):
    """A training set whose captions can be joined and shortened.

    Attributes:
        ends: how many tokens stand before the words of every caption and how many behind.
        max_tokens: longest caption that the model reads, in tokens.
    """

    ends: tuple[int, int]
    max_tokens: int


def build(settings: Triplet, data: PairSource, lists: Mapping[str, np.ndarray]) -> TripletMethod:
    """Makes the method; it reads no mined lists, and of `data` more than pairs where the settings want it."""
    sentences, positives = None, None
    if settings.synthetic_sentences:
        sentences = cast(SentenceSource, data).sentences
    if settings.generated_positives != "none":
        source = cast(GeneratingSource, data)
        positives = CaptionPositives(settings.generated_positives, source, source.max_tokens, source.ends)
    return TripletMethod(settings, data, sentences, positives)
