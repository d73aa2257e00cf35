"""Matching fine-tuned with hard negatives: for every anchor the hardest of some hundred candidates.

A batch of B captions has 2 B anchors: each caption, which meets images, and as many images, drawn on their own, each
with one of its captions, which meet captions. A step

1. scores every anchor's match and candidates without gradient and without dropout,
2. takes the candidates with the highest scores,
3. scores these again with dropout and trains  mean_j max(0, margin + sigmoid(s_j) - sigmoid(s_0))  of every anchor.

Source: UNITER (Chen et al., ECCV 2020), fine-tuning for retrieval with hard negatives; used by TAGS-DC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.learning.losses import twin_differences
from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods.base import Batch, Method, TrainingSet, draw_twins, encode_pairs, scoring, twin_scores
from itrpipe.methods.itm.declaration import HardNegatives, Itm
from itrpipe.models.uniter.network import UniterEncoder

Chosen = TypeVar("Chosen", bound=HardNegatives)


@dataclass(frozen=True)
class PairRows:
    """Pairs of 2 B anchors, the captions first, as rows of the images and captions of a batch; kept on the CPU.

    Attributes:
        images, captions: int64 [2 B, 1 + M]; the first column is the match.
    """

    images: Tensor
    captions: Tensor

    def at(self, columns: Tensor) -> PairRows:
        """Return the matches and those of their negatives [2 B, m] that are named by number, from 0."""
        first = torch.zeros_like(columns[:, :1])
        columns = torch.cat([first, columns + 1], dim=1)
        return PairRows(
            self.images.gather(1, columns),
            self.captions.gather(1, columns),
        )


@dataclass(eq=False, kw_only=True)
class ItmBatch(Batch):
    """All images and captions of a batch under the name `pool`, each once; its `images` are those of the captions.

    Attributes:
        rows: the pairs that they make.
    """

    rows: PairRows


class HardNegativesMethod(Method[Chosen]):
    """Trains with the hardest of sampled negatives.

    Raises:
        UsageError: the training set is too small for so many negatives.
    """

    def __init__(self, settings: Chosen, data: TrainingSet) -> None:
        super().__init__(settings, data)
        most_own = int(self.captions_of.counts.max())
        spare = min(len(self.captions_of) - 1, len(data.caption_image) - most_own)
        if settings.sampled_negatives > spare:
            raise UsageError(
                f"loss.sampled_negatives = {settings.sampled_negatives}, but the training set has no more than {spare} "
                f"negatives for every anchor; give --set loss.sampled_negatives={spare} or less"
            )

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> ItmBatch:
        """Build the batch of the captions with candidate images, and of as many images with candidate captions."""
        owners = self.data.caption_image
        total = len(self.captions_of)
        count = self.settings.sampled_negatives
        own_images = owners[captions]
        other_images = draw_others(own_images[:, None] == np.arange(total), count, rng)
        images = rng.choice(total, len(captions), replace=len(captions) > total)
        matching = np.array([rng.choice(self.captions_of[image]) for image in images])
        other_captions = draw_others(images[:, None] == owners, count, rng)

        # Pairs of the captions, and behind them those of the images, [2 B, 1 + N].
        images_of_captions = np.column_stack([own_images, other_images])
        captions_of_images = np.column_stack([matching, other_captions])
        images_again = np.tile(images[:, None], 1 + count)
        captions_again = np.tile(captions[:, None], 1 + count)
        image_rows = np.concatenate([images_of_captions, images_again])
        caption_rows = np.concatenate([captions_again, captions_of_images])
        pool_images, image_places = np.unique(image_rows, return_inverse=True)
        pool_captions, caption_places = np.unique(caption_rows, return_inverse=True)
        rows = PairRows(
            torch.from_numpy(image_places.reshape(image_rows.shape)),
            torch.from_numpy(caption_places.reshape(image_rows.shape)),
        )
        pool = self.data.images(pool_images), self.data.texts(pool_captions)
        return ItmBatch({"pool": pool}, torch.from_numpy(own_images), rows=rows)

    def pair_scores(
        self,
        model: UniterEncoder,
        batch: ItmBatch,
        pairs: PairRows,
    ) -> Tensor:
        """Return scores [2 B, n] of pairs, of which each image and each caption is embedded once."""
        image_rows, image_places = torch.unique(pairs.images, return_inverse=True)
        text_rows, text_places = torch.unique(pairs.captions, return_inverse=True)
        image_batch, text_batch = batch.pairs["pool"]
        images, texts = encode_pairs(model, (image_batch[image_rows], text_batch[text_rows]))
        scores = model.score_at(
            images,
            texts,
            image_places.flatten(),
            text_places.flatten(),
        )
        return scores.view(pairs.images.shape)

    def ranking_terms(self, scores: Tensor, batch: ItmBatch) -> dict[str, Tensor]:
        """Return `text_anchored` and `image_anchored` of the scores [2 B, 1 + M] of pairs that `hard_rows` gave.

        Their hinges are max(0, margin + sigmoid(negative) - sigmoid(positive)), in single precision. Source: UNITER,
        released code; TAGS-DC, Eq. 4 and 5.
        """
        probabilities = scores.float().sigmoid()
        differences = self.settings.margin + probabilities[:, 1:] - probabilities[:, :1]
        hinges = differences.clamp(min=0)
        batch.statistics["active_negatives"] = (hinges.detach() > 0).float().mean()
        with_images, with_captions = hinges.chunk(2)
        return {"text_anchored": with_images.mean(), "image_anchored": with_captions.mean()}

    def hard_rows(self, model: UniterEncoder, batch: ItmBatch, epoch: int) -> PairRows:
        """Return the pairs that are trained: matches and hard negatives, or the first negatives in the first epochs.

        The model scores in evaluation mode and is put back into the mode it had; that draws no random numbers.
        """
        rows = batch.rows
        count = self.settings.hard_negatives
        if epoch < self.settings.sum_epochs:
            first = torch.arange(count)
            return rows.at(first.expand(len(rows.images), -1))
        negatives = PairRows(rows.images[:, 1:], rows.captions[:, 1:])
        with scoring(model):
            scores = self.pair_scores(model, batch, negatives)
        hardest = scores.topk(count, dim=1).indices
        return rows.at(hardest.cpu())


class ItmMethod(HardNegativesMethod[Itm]):
    """Trains with the hardest of sampled negatives, and with twins.

    Raises:
        UsageError: the training set is too small for so many negatives.
    """

    def __init__(
        self,
        settings: Itm,
        data: TrainingSet,
        sentences: SentenceBank | None = None,
    ) -> None:
        super().__init__(settings, data)
        self._sentences = sentences

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> ItmBatch:
        """Build the batch of captions and images with their candidates, and of twins where wanted."""
        batch = super().collate(captions, rng)
        if self.settings.twins:
            batch.twins = draw_twins(
                self.data,
                self._sentences,
                self.settings.twins,
                len(captions),
                rng,
            )
        return batch

    def losses(
        self,
        model: UniterEncoder,
        batch: ItmBatch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `text_anchored` and `image_anchored`, means over anchors and negatives, and `twins` of that hinge."""
        rows = self.hard_rows(model, batch, epoch)
        scores = self.pair_scores(model, batch, rows)
        terms = self.ranking_terms(scores, batch)
        if batch.twins is not None:
            probabilities = twin_scores(model, batch).sigmoid()
            hinges = (self.settings.margin + twin_differences(probabilities)).relu()
            terms["twins"] = self.settings.twin_weight * hinges.mean()
        return terms


def draw_others(
    excluded: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw rows [B, count] uniformly and without repetition from those not `excluded` bool [B, M], in random order."""
    keys = rng.random(excluded.shape, dtype=np.float32)
    keys[excluded] = 2.0
    first = np.argpartition(keys, count - 1, axis=1)[:, :count]
    # The partition has no order that chance has made; of equal sets, the keys give a random one.
    order = np.take_along_axis(keys, first, axis=1).argsort(axis=1)
    return np.take_along_axis(first, order, axis=1)


build = ItmMethod
