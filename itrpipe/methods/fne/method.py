"""False-negative elimination: negatives drawn from the batch and a momentum memory, likely matches less often.

A step, with v and t the embeddings of the batch by the model and v', t' those by its momentum twin:

    S_i2t = v [t' | text queue]^T      S_t2i = t [v' | image queue]^T      s+ = diagonals
    statistics of matches and hardest mismatches take in v t^T
    j_i, k_i: one column for each row, drawn by `itrpipe.losses.fne.sampling_weights`
    L = 1/B sum_i [margin - S_i2t[i, i] + S_i2t[i, j_i]]+ + [margin - S_t2i[i, i] + S_t2i[i, k_i]]+

then v', t' enter the queues. The gradient reaches v and t alone. Pairs of one image are never each other's negatives.
The first epochs are the plain triplet loss of the batch, as in the released code.

Source: FNE (Li et al., ACM MM 2023), section 3; its released code for what the settings call so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from itrpipe.losses.fne import (
    SamplingRules,
    SimilarityStatistics,
    draw,
    drawn_hinges,
    false_negative_probability,
    hardest_only,
    sampling_weights,
)
from itrpipe.losses.triplet import triplet_loss
from itrpipe.methods.base import Batch, PairSource, auxiliary_terms, positive_pairs, same_image_mask
from itrpipe.methods.fne.declaration import Fne
from itrpipe.models.base import DualEncoder, inner_products
from itrpipe.negatives.memory import FeatureQueues, MomentumTwin, same_image_columns


@dataclass(frozen=True)
class Pool:
    """Candidates of a step: those of the batch, then those of a queue.

    Similarities with all of them carry no gradient; that of the drawn ones is computed again from their rows. So the
    queue may be overwritten before the backward pass, and nothing of its size is copied.

    Attributes:
        batch: [B, D], in the order of the anchors, so that candidate i is the positive of anchor i.
        queue: [Q, D], or None.
    """

    batch: Tensor
    queue: Tensor | None

    @torch.no_grad()
    def similarities(self, anchors: Tensor) -> Tensor:
        """[B, B + Q]."""
        within = inner_products(anchors, self.batch)
        return within if self.queue is None else torch.cat([within, inner_products(anchors, self.queue)], dim=1)

    def rows(self, columns: Tensor) -> Tensor:
        """Candidates [B, D] at the given columns [B]."""
        size = len(self.batch)
        if self.queue is None:
            return self.batch[columns]
        within = self.batch[columns.clamp(max=size - 1)]
        stored = self.queue[(columns - size).clamp(min=0)]
        return torch.where((columns < size)[:, None], within, stored)


class FneState(nn.Module):
    """What the method keeps between steps.

    Attributes:
        statistics: of matches and mismatches.
        twin: the momentum copy, or None.
        queues: the memory, or None.
    """

    def __init__(self, settings: Fne, model: DualEncoder, width: int) -> None:
        super().__init__()
        self.statistics = SimilarityStatistics()
        self.twin = MomentumTwin(model, settings.momentum, settings.momentum_eval) if settings.momentum_twin else None
        size = settings.memory_size
        self.queues = FeatureQueues(size, width, random=not settings.mask_unfilled) if size else None


class FneMethod:
    """Draws negatives by how likely they are false.

    Args:
        settings: see `Fne`.
        data: the training set.
    """

    means = True
    _state: FneState

    def __init__(self, settings: Fne, data: PairSource) -> None:
        self._settings, self._data = settings, data
        self._rules = sampling_rules(settings)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """The captions and their images."""
        return positive_pairs(self._data, captions, rng)

    def attach(self, model: DualEncoder) -> FneState:
        """Copies the model and makes queues as wide as its embeddings."""
        device = next(model.parameters()).device
        first = np.zeros(1, dtype=np.int64)
        _, texts = self._data.pairs(self._data.caption_image[first], first)
        mode = model.training
        with torch.no_grad():
            width = model.eval().encode_texts(texts.to(device)).embedding.shape[1]
        self._state = FneState(self._settings, model.train(mode), width).to(device)
        return self._state

    def start_epoch(self, epoch: int) -> None:
        """Empties the statistics where they are an epoch's own."""
        if self._settings.reset_each_epoch:
            self._state.statistics.reset()

    def losses(self, model: DualEncoder, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """`fne` (Eq. 15), in the first epochs `triplet`, and the backbone's `auxiliary` loss; means over the batch."""
        settings, state = self._settings, self._state
        if state.twin is not None:
            state.twin.follow()
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        # 1 / p - 1 = 9,999 and P > 0.001 need single precision.
        image, text = images.embedding.float(), texts.embedding.float()  # [B, D]
        mask, size = same_image_mask(batch, settings.mask_same_image), len(batch.images)
        if epoch < settings.online_epochs:
            hardest = epoch >= settings.sum_epochs
            loss = {"triplet": triplet_loss(inner_products(image, text), settings.margin, hardest, mask) / size}
            return loss | auxiliary_terms(model, images, text_batch, settings.auxiliary_weight / size)

        # The candidates: those of the batch by the twin, and the memory.
        own = (image, text) if state.twin is None else state.twin.encode(image_batch, text_batch)
        memory = (None, None) if state.queues is None else (state.queues.images, state.queues.texts)
        image_pool, text_pool = (Pool(*each) for each in zip(own, memory, strict=True))
        excluded = same_image_columns(batch.images, state.queues)

        # What matches and mismatches look like comes from the model itself.
        scores = inner_products(image.detach(), text.detach())
        batch.statistics["retained"] = state.statistics.update(scores, mask, settings.negative_source, settings.ties)

        hinges = self._hinges(image, text_pool, excluded, batch, "text")
        hinges = hinges + self._hinges(text, image_pool, excluded, batch, "image")
        if state.queues is not None:
            state.queues.write(*own, batch.images)
        return {
            "fne": hinges.mean(),
            **auxiliary_terms(model, images, text_batch, settings.auxiliary_weight / size),
        }

    def _hinges(self, anchors: Tensor, pool: Pool, excluded: Tensor, batch: Batch, side: str) -> Tensor:
        """Losses [B] of anchors [B, D], whose candidates are on the other `side`."""
        similarities = pool.similarities(anchors.detach())  # [B, B + Q]
        weights = self._weights(similarities, similarities.diagonal(), excluded)
        drawn, found = draw(weights)
        self._count(similarities, excluded, drawn, batch, side)
        positive, negative = (anchors * pool.batch).sum(dim=1), (anchors * pool.rows(drawn)).sum(dim=1)
        return drawn_hinges(positive, negative, found, self._settings.margin)

    def _weights(self, similarities: Tensor, positive: Tensor, excluded: Tensor) -> Tensor:
        if self._settings.candidates == "hardest":
            return hardest_only(similarities, excluded)
        return sampling_weights(similarities, positive, excluded, self._state.statistics.gaussians(), self._rules)

    def _count(self, similarities: Tensor, excluded: Tensor, drawn: Tensor, batch: Batch, side: str) -> None:
        """Adds to the history how often the hardest candidates are drawn, and how likely the drawn ones are false."""
        rules, gaussians = self._rules, self._state.statistics.gaussians()
        value = similarities.gather(1, drawn[:, None])
        hardest = similarities.masked_fill(excluded, float("-inf")).amax(dim=1, keepdim=True)
        probability = false_negative_probability(
            value, gaussians, rules.prior, min_count=rules.min_count, monotone=rules.monotone
        )
        batch.statistics[f"hardest_{side}_share"] = (value >= hardest).double().mean()
        batch.statistics[f"{side}_probability"] = probability.double().mean()
        if rules.window is not None and rules.fallback and self._settings.candidates == "drawn":
            below = hardest.isfinite() & (hardest <= gaussians.mean[0] - rules.window)
            batch.statistics[f"fallback_{side}_share"] = below.double().mean()


def sampling_rules(settings: Fne) -> SamplingRules:
    """The part of the settings that weighs candidates."""
    return SamplingRules(
        prior=settings.prior,
        alpha=settings.alpha,
        posterior_threshold=settings.posterior_threshold,
        posterior_scale=settings.posterior_scale,
        min_count=settings.min_count,
        window=settings.margin if settings.window else None,
        fallback=settings.fallback,
        monotone=settings.monotone,
    )


def build(settings: Fne, data: PairSource, lists: Mapping[str, np.ndarray]) -> FneMethod:
    """Makes the method; it reads no mined lists."""
    return FneMethod(settings, data)
