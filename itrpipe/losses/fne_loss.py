"""FNE as one module: draws negatives from the batch and a memory of earlier ones, likely matches less often.

A step, with v and t the embeddings of a batch by the model and v', t' those by a slowly following copy of it:

    S_i2t = v [t' | text queue]^T      S_t2i = t [v' | image queue]^T      s+ = diagonals
    statistics of matches and hardest mismatches take in v t^T
    j_i, k_i: one column for each row, drawn by `itrpipe.losses.fne.sampling_weights`
    L = 1/B sum_i [margin - S_i2t[i, i] + S_i2t[i, j_i]]+ + [margin - S_t2i[i, i] + S_t2i[i, k_i]]+

then v', t' enter the queues. The gradient reaches v and t alone. Pairs of one image are never each other's negatives.

Shapes: B pairs in a batch, Q entries of the memory, D embedding width.

Source: FNE (Li et al., ACM MM 2023), section 3; its released code for what the options call so.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from itrpipe.losses.fne import (
    NegativeSource,
    SamplingRules,
    SimilarityStatistics,
    Ties,
    draw,
    drawn_hinges,
    false_negative_probability,
    hardest_only,
    sampling_weights,
)
from itrpipe.negatives.memory import FeatureQueues, same_image_columns

Candidates = Literal["drawn", "hardest"]


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


def inner_products(first: Tensor, second: Tensor) -> Tensor:
    """[A, M] of vectors [A, D] and [M, D], in their own precision, whatever autocast says."""
    with torch.autocast(first.device.type, enabled=False):
        return first @ second.T


class FneLoss(nn.Module):
    """The loss of FNE with its memory and its statistics, which `state_dict` holds.

    Start it after an epoch of another loss, such as `triplet_loss`: what matches look like is taken from the model.

    Args:
        width: D.
        margin: of the hinges.
        memory_size: Q, pairs of earlier batches that are candidates too; 0 for none.
        rules: how candidates are weighed; None for those of the released code, whose window is the margin.
        candidates: one negative for each anchor, `drawn` by its weight, or the `hardest` ("w/o FNE" of the paper).
        mask_unfilled: the memory starts empty; in the released code it starts with random vectors that count.
        negative_source: mismatches of the statistics are the `hardest` of the batch or `all`.
        ties: of pairs with equal scores `none` counts as a match, or the `first` (released code).
        mask_same_image: captions of one image are no mismatches of each other.

    Attributes:
        statistics: of matches and mismatches; the released code calls `statistics.reset()` at the start of every epoch.
        queues: the memory, or None.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> encoder, fne = nn.Linear(8, 4), FneLoss(width=4, memory_size=16)
        >>> twin = MomentumTwin(encoder, momentum=0.995)  # of itrpipe.negatives
        >>> photographs, sentences, owners = torch.randn(6, 8), torch.randn(6, 8), torch.arange(6)
        >>> image, text = (nn.functional.normalize(encoder(each), dim=1) for each in (photographs, sentences))
        >>> twin.follow()
        >>> with torch.no_grad():
        ...     slow = [nn.functional.normalize(twin.model(each), dim=1) for each in (photographs, sentences)]
        >>> loss = fne(image, text, owners, *slow)
        >>> loss.backward()

    Relations:
        The method `fne` trains with it. `infonce` with `log_weights` is the other way to let likely matches count less.
    """

    def __init__(
        self,
        width: int,
        *,
        margin: float = 0.2,
        memory_size: int = 8192,
        rules: SamplingRules | None = None,
        candidates: Candidates = "drawn",
        mask_unfilled: bool = True,
        negative_source: NegativeSource = "hardest",
        ties: Ties = "none",
        mask_same_image: bool = True,
    ) -> None:
        super().__init__()
        self._margin, self._candidates = margin, candidates
        self._rules = rules or SamplingRules(window=margin)
        self._source: NegativeSource = negative_source
        self._ties: Ties = ties
        self._mask_same_image = mask_same_image
        self.statistics = SimilarityStatistics()
        self.queues = FeatureQueues(memory_size, width, random=not mask_unfilled) if memory_size else None

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        owners: Tensor,
        momentum_images: Tensor | None = None,
        momentum_texts: Tensor | None = None,
        report: MutableMapping[str, Tensor] | None = None,
    ) -> Tensor:
        """The loss of a batch, whose momentum embeddings enter the memory.

        Args:
            images, texts: [B, D] unit vectors of pairs. They are compared in single precision, which 1 / p - 1 = 9,999
                and P > 0.001 need.
            owners: [B] int64, row of the image of each pair in the training set, 0 or more.
            momentum_images, momentum_texts: [B, D] likewise, by a slowly following copy of the model, without gradient;
                None takes the model's own.
            report: takes in figures of the step, tensors []: how many pairs were `retained` for the statistics, and of
                each side how often the hardest candidate was drawn, how likely the drawn ones are matches, and how
                often the window left none.

        Returns:
            Scalar, a mean over the batch.
        """
        report = {} if report is None else report
        images, texts = images.float(), texts.float()
        slow_images = images if momentum_images is None else momentum_images.detach().float()
        own = slow_images, texts if momentum_texts is None else momentum_texts.detach().float()
        memory = (None, None) if self.queues is None else (self.queues.images, self.queues.texts)
        image_pool, text_pool = (Pool(*each) for each in zip(own, memory, strict=True))
        excluded = same_image_columns(owners, self.queues)

        # What matches and mismatches look like comes from the model itself.
        scores = inner_products(images.detach(), texts.detach())
        mask = owners[:, None] == owners[None, :] if self._mask_same_image else None
        report["retained"] = self.statistics.update(scores, mask, self._source, self._ties)

        hinges = self._hinges(images, text_pool, excluded, report, "text")
        hinges = hinges + self._hinges(texts, image_pool, excluded, report, "image")
        if self.queues is not None:
            self.queues.write(own[0].detach(), own[1].detach(), owners)
        return hinges.mean()

    def _hinges(
        self, anchors: Tensor, pool: Pool, excluded: Tensor, report: MutableMapping[str, Tensor], side: str
    ) -> Tensor:
        """Losses [B] of anchors [B, D], whose candidates are on the other `side`."""
        similarities = pool.similarities(anchors.detach())  # [B, B + Q]
        weights = self._weights(similarities, similarities.diagonal(), excluded)
        drawn, found = draw(weights)
        self._count(similarities, excluded, drawn, report, side)
        positive, negative = (anchors * pool.batch).sum(dim=1), (anchors * pool.rows(drawn)).sum(dim=1)
        return drawn_hinges(positive, negative, found, self._margin)

    def _weights(self, similarities: Tensor, positive: Tensor, excluded: Tensor) -> Tensor:
        if self._candidates == "hardest":
            return hardest_only(similarities, excluded)
        return sampling_weights(similarities, positive, excluded, self.statistics.gaussians(), self._rules)

    def _count(
        self, similarities: Tensor, excluded: Tensor, drawn: Tensor, report: MutableMapping[str, Tensor], side: str
    ) -> None:
        """Reports how often the hardest candidates are drawn, and how likely the drawn ones are false."""
        rules, gaussians = self._rules, self.statistics.gaussians()
        value = similarities.gather(1, drawn[:, None])
        hardest = similarities.masked_fill(excluded, float("-inf")).amax(dim=1, keepdim=True)
        probability = false_negative_probability(
            value, gaussians, rules.prior, min_count=rules.min_count, monotone=rules.monotone
        )
        report[f"hardest_{side}_share"] = (value >= hardest).double().mean()
        report[f"{side}_probability"] = probability.double().mean()
        if rules.window is not None and rules.fallback and self._candidates == "drawn":
            below = hardest.isfinite() & (hardest <= gaussians.mean[0] - rules.window)
            report[f"fallback_{side}_share"] = below.double().mean()
