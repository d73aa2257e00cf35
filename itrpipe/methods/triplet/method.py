"""First training: the triplet loss with the negatives of the batch.

Captions that are made of the image's own (AsCL) may stand beside the captions as further positives.

Source: VSE++ (Faghri et al., BMVC 2018); AOQ (Chen et al., ECCV 2020), Eq. 1 and 2; of the positives, AsCL, Eq. 7.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itrpipe.learning.losses import hinge, triplet_loss, twin_differences
from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods.ascl.method import generated_positives
from itrpipe.methods.base import (
    AnyMatcher,
    Batch,
    Method,
    TokenLimits,
    TrainingSet,
    auxiliary_terms,
    draw_sentences,
    draw_twins,
    encode_pairs,
    same_image_mask,
    twin_scores,
)
from itrpipe.methods.triplet.declaration import Triplet


class TripletMethod(Method[Triplet]):
    """Scores every image of the batch with every caption of it."""

    means = False

    def __init__(
        self,
        settings: Triplet,
        data: TrainingSet,
        limits: TokenLimits,
        sentences: SentenceBank | None = None,
    ) -> None:
        super().__init__(settings, data)
        self._limits = limits
        self._sentences = sentences

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """Build the batch of the captions and their images, with sentences, twins and positives where wanted."""
        settings = self.settings
        kind = settings.generated_positives
        batch = super().collate(captions, rng)
        if settings.synthetic_sentences:
            batch.sentences = draw_sentences(
                self._sentences,
                captions,
                settings.synthetic_sentences,
                rng,
            )
        if settings.twins:
            batch.twins = draw_twins(
                self.data,
                self._sentences,
                settings.twins,
                len(captions),
                rng,
            )
        if kind != "none":
            batch.generated = generated_positives(
                kind,
                self.data,
                self.captions_of,
                captions,
                self._limits,
                rng,
            )
        return batch

    def losses(self, model: AnyMatcher, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """Return sums over the batch: `triplet` (Eq. 1 or 2), the backbone's `auxiliary` loss, `synthetic` sentences.

        `twins` is the hinge of the four scores of twins.

        With generated positives `triplet` is half of Eq. 1 or 2, and `positives` half of the same with these for the
        captions: each meets the images of the other pairs, and each image the positives of the other pairs.
        """
        settings = self.settings
        images, texts = encode_pairs(model, batch.pairs["positive"])
        scores = model.score_matrix(images, texts).float()  # [B, B]
        terms = {"triplet": self._ranking(scores, batch, epoch)}
        terms |= auxiliary_terms(model, images, batch, settings.auxiliary_weight)
        if batch.sentences is not None:
            owners = batch.sentences.owners
            sentences = model.encode_texts(batch.sentences.texts)
            negatives = model.score_pairs(images[owners], sentences).float()
            loss = hardest_sentence_loss(
                scores.diagonal(),
                negatives,
                owners,
                settings.margin,
            )
            terms["synthetic"] = settings.synthetic_weight * loss
        if batch.twins is not None:
            differences = twin_differences(twin_scores(model, batch))
            hinges = (settings.margin + differences).relu()
            terms["twins"] = settings.twin_weight * hinges.sum()
        if batch.generated is not None:
            generated = model.encode_texts(batch.generated)
            scores_of_generated = model.score_matrix(images, generated).float()  # [B, B]
            terms["triplet"] = terms["triplet"] / 2
            terms["positives"] = self._ranking(scores_of_generated, batch, epoch) / 2
        return terms

    def _ranking(self, scores: Tensor, batch: Batch, epoch: int) -> Tensor:
        """Compute Eq. 1 or 2 of scores [B, B]."""
        settings = self.settings
        hardest = settings.max_violation and epoch >= settings.sum_epochs
        mask = same_image_mask(batch, settings.mask_same_image)
        return triplet_loss(scores, settings.margin, hardest, mask)


def hardest_sentence_loss(
    positive: Tensor,
    negatives: Tensor,
    owners: Tensor,
    margin: float,
) -> Tensor:
    """Sum the hinges of pairs with the hardest of the sentences that are negatives of their image alone.

        L = sum_(i,t) max_(t') [margin - S(i,t) + S(i,t')]+

    Args:
        positive: [B] scores of the pairs.
        negatives: [n] scores of the image of each sentence's pair with the sentence.
        owners: [n] int64, number of that pair.
        margin: by how much a positive must beat a negative, in units of the score.

    Returns:
        Scalar; a pair without sentences counts with 0.

    References:
        Shi et al. (VSE-C), COLING 2018, section 3.3.
    """
    nothing = torch.full_like(positive, float("-inf"))
    hardest = nothing.scatter_reduce(0, owners, negatives, "amax")
    return hinge(positive, hardest, margin).sum()


build = TripletMethod
