"""False-negative elimination: negatives drawn from the batch and a momentum memory, likely matches less often.

A step, with v and t the embeddings of a batch by the model and v', t' those by a slowly following copy of it:

    S_i2t = v [t' | text queue]^T      S_t2i = t [v' | image queue]^T      s+ = diagonals (printed: v t^T)
    mean mu and variance of matches (+) and of hardest mismatches (-) take in v t^T
    j_i, k_i: one column for each row, drawn by `sampling_weights`
    L = 1/B sum_i [margin - S_i2t[i, i] + S_i2t[i, j_i]]+ + [margin - S_t2i[i, i] + S_t2i[i, k_i]]+

(Eq. 15; 1/B from the released code), then v', t' enter the queues. The gradient reaches v and t alone; the copy
follows after every update (Eq. 14). Pairs of one image are never drawn. The first epochs are the plain triplet loss of
the batch, as in the released code.

A candidate of similarity s is a correct match with probability

    P(s) = p N(s; mu+, var+) / (p N(s; mu+, var+) + (1 - p) N(s; mu-, var-))                                  (Eq. 9)

and is drawn with weight exp(-scale P) where P is above a threshold, with weight exp(-alpha (s - s+)^2) elsewhere. Only
pairs that beat all others of their row and column are matches of the statistics; their hardest caption and image are
the mismatches, clamped at 0, here and in the released code (`itrpipe.learning.false_negatives`).

Shapes: B pairs in a batch, Q entries of the memory, A anchors, M candidates of an anchor, D embedding width.

Source: FNE (Li et al., ACM MM 2023), section 3; its released code where a setting says so. All differences:
docs/papers/fne.md.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from itrpipe.learning.false_negatives import Gaussians, SimilarityStatistics, false_negative_probability
from itrpipe.learning.losses import hinge, triplet_loss
from itrpipe.methods.base import Batch, Method, MomentumTwin, auxiliary_terms, encode_pairs, same_image_mask, scoring
from itrpipe.methods.fne.declaration import Fne
from itrpipe.models.base import EmbeddingModel, inner_products

__all__ = ["FeatureQueues", "Fne", "FneLoss", "MomentumTwin", "draw", "hardest_only", "sampling_weights"]

EMPTY = -1
NO_IMAGE = -2
"""`image_rows` of entries never written: `EMPTY` ones are no candidates, `NO_IMAGE` ones (random vectors) are."""


def sampling_weights(
    similarities: Tensor,
    positive: Tensor,
    excluded: Tensor,
    gaussians: Gaussians,
    settings: Fne,
) -> Tensor:
    """Compute the weight of every candidate of every anchor in the draw.

    Args:
        similarities: [A, M] of anchors with candidates, single precision, without gradient.
        positive: [A] of anchors with their positives.
        excluded: [A, M] bool, candidates that are never drawn, such as those of the anchor's image.
        gaussians: of matches and mismatches.
        settings: see `Fne`.

    Returns:
        [A, M], 0..1. A row is zero where nothing may be drawn. With `candidates = hardest`, each row is one-hot.

    Source: FNE, Eq. 11 to 13; window and fallback of the released code.
    """
    if settings.candidates == "hardest":
        return hardest_only(similarities, excluded)
    probability = match_probability(similarities, gaussians, settings)
    is_likely_match = probability > settings.posterior_threshold
    match_weights = torch.exp(-settings.posterior_scale * probability)
    mismatch_weights = torch.exp(-settings.alpha * (similarities - positive[:, None]).square())
    weights = torch.where(is_likely_match, match_weights, mismatch_weights)
    weights = weights.masked_fill(excluded, 0.0)
    if not settings.window:
        return weights
    is_below = similarities <= gaussians.mean[0] - settings.margin
    weights = weights.masked_fill(is_below, 0.0)
    if settings.fallback:
        has_none = ~weights.any(dim=1, keepdim=True)
        weights = torch.where(has_none, hardest_only(similarities, excluded), weights)
    return weights


def match_probability(similarities: Tensor, gaussians: Gaussians, settings: Fne) -> Tensor:
    """Compute P of similarities of any shape; 0 while too few matches were seen, or a variance is not positive."""
    return false_negative_probability(
        similarities,
        gaussians,
        settings.prior,
        min_count=settings.min_count,
        monotone=settings.monotone,
    )


def hardest_only(similarities: Tensor, excluded: Tensor) -> Tensor:
    """Return weights [A, M] that are 1 for the most similar candidate of every anchor that has one, 0 elsewhere.

    Args:
        similarities, excluded: see `sampling_weights`.
    """
    ranked = similarities.masked_fill(excluded, float("-inf"))
    place = ranked.argmax(dim=1, keepdim=True)
    hardest = torch.zeros_like(similarities).scatter_(1, place, 1.0)
    return hardest.masked_fill(excluded, 0.0)


def draw(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one candidate for every anchor.

    Each weight is divided by an exponential variate and the largest quotient wins, so that a candidate is drawn in
    proportion to its weight. `torch.multinomial` does the same and waits for the device to check its input.

    Args:
        weights: [A, M], 0 or more.

    Returns:
        Columns [A] of the candidates, and bool [A], False where a row is zero and the column says nothing. A candidate
        whose weight is NaN is drawn first, so that the loss shows it.
    """
    times = torch.empty_like(weights).exponential_()
    columns = (weights / times).argmax(dim=1)
    is_drawn = (weights != 0).any(dim=1)
    return columns, is_drawn


class FeatureQueues(nn.Module):
    """The embeddings of the last Q pairs with the rows of their images; the oldest are overwritten first.

    Args:
        size: Q; 0 for no memory.
        width: D.
        random: fill the queues with random directions that count as candidates until they are overwritten, as the
            released code does; else entries are `EMPTY` at first.

    Source: FNE, section 3.3, after MoCo (He et al., CVPR 2020).
    """

    images: Tensor
    texts: Tensor
    image_rows: Tensor
    place: Tensor

    def __init__(self, size: int, width: int, random: bool = False) -> None:
        super().__init__()
        unwritten = NO_IMAGE if random else EMPTY
        for name in ("images", "texts"):
            rows = torch.zeros(size, width)
            if random:
                rows = nn.functional.normalize(torch.randn(size, width), dim=1)
            self.register_buffer(name, rows)
        self.register_buffer("image_rows", torch.full((size,), unwritten))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def write(self, images: Tensor, texts: Tensor, image_rows: Tensor) -> None:
        """Take in a batch; only the last Q pairs if it is longer.

        Args:
            images, texts: [B, D] embeddings.
            image_rows: [B] int64, the image of each pair, 0 or more.
        """
        size = len(self.image_rows)
        if not size:
            return
        images = images[-size:]
        texts = texts[-size:]
        image_rows = image_rows[-size:]
        places = torch.arange(len(image_rows), device=self.place.device)
        rows = (self.place + places) % size
        self.images.index_copy_(0, rows, images)
        self.texts.index_copy_(0, rows, texts)
        self.image_rows.index_copy_(0, rows, image_rows)
        self.place.add_(len(image_rows)).remainder_(size)


class FneLoss(nn.Module):
    """The loss of FNE with its memory and its statistics, which `state_dict` holds.

    Start it after an epoch of another loss, such as `triplet_loss`: what matches look like is taken from the model.

    Args:
        width: D.
        settings: how candidates are weighed, the margin, and the size of the memory; see `Fne`. The momentum
            and epoch settings are left to the caller.

    Attributes:
        statistics: of matches and mismatches; the released code calls `statistics.reset()` at the start of every epoch.
        queues: the memory.
        twin: the momentum copy that the method `fne` keeps here; None if the caller keeps it.
        figures: of the last batch, tensors []: how many pairs were `retained` for the statistics, and of each side how
            often the hardest candidate was drawn, how likely the drawn ones are matches, and how often the window left
            none.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> encoder, fne = nn.Linear(8, 4), FneLoss(4, Fne(memory_size=16))
        >>> twin = MomentumTwin(encoder, momentum=0.995)
        >>> photographs, sentences, owners = torch.randn(6, 8), torch.randn(6, 8), torch.arange(6)
        >>> image, text = (nn.functional.normalize(encoder(each), dim=1) for each in (photographs, sentences))
        >>> twin.follow()
        >>> with torch.no_grad():
        ...     slow = [nn.functional.normalize(twin.model(each), dim=1) for each in (photographs, sentences)]
        >>> loss = fne(image, text, owners, *slow)
        >>> loss.backward()
    """

    def __init__(self, width: int, settings: Fne) -> None:
        super().__init__()
        self._settings = settings
        self.statistics = SimilarityStatistics()
        self.figures: dict[str, Tensor] = {}
        self.twin: MomentumTwin | None = None
        self.queues = FeatureQueues(settings.memory_size, width, random=not settings.mask_unfilled)

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        owners: Tensor,
        momentum_images: Tensor | None = None,
        momentum_texts: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of a batch, whose momentum embeddings enter the memory.

        Args:
            images, texts: [B, D] unit vectors of pairs. They are compared in single precision: P is too small a number
                for bfloat16.
            owners: [B] int64, row of the image of each pair in the training set, 0 or more.
            momentum_images, momentum_texts: [B, D] likewise, by a slowly following copy of the model, without gradient;
                None takes the model's own.

        Returns:
            Scalar, a mean over the batch.
        """
        settings = self._settings
        queues = self.queues
        images = images.float()
        texts = texts.float()
        slow_images = images if momentum_images is None else momentum_images.float()
        slow_texts = texts if momentum_texts is None else momentum_texts.float()
        own_image = owners[:, None] == owners  # [B, B]
        own_in_memory = owners[:, None] == queues.image_rows  # [B, Q]
        is_empty = queues.image_rows == EMPTY
        excluded = torch.cat([own_image, own_in_memory | is_empty], dim=1)

        # What matches and mismatches look like comes from the model itself.
        scores = inner_products(images, texts)
        mask = own_image if settings.mask_same_image else None
        self.figures["retained"] = self.statistics.update(
            scores,
            mask,
            settings.negative_source,
            settings.ties,
        )

        hinges = self._hinges(images, slow_texts, queues.texts, excluded, "text")
        hinges = hinges + self._hinges(
            texts,
            slow_images,
            queues.images,
            excluded,
            "image",
        )
        queues.write(slow_images, slow_texts, owners)
        return hinges.mean()

    def _hinges(
        self,
        anchors: Tensor,
        candidates: Tensor,
        queue: Tensor,
        excluded: Tensor,
        side: str,
    ) -> Tensor:
        """Compute [margin - s+ + s-]+ of anchors [B, D] with candidates [B, D] and queue [Q, D]; 0 if none is drawn.

        Similarities with all candidates carry no gradient; that of the drawn ones is computed again from their rows. So
        the queue may be overwritten before the backward pass, and nothing of its size is copied. Source: FNE, Eq. 15,
        one of its two terms.
        """
        settings = self._settings
        gaussians = self.statistics.gaussians()
        size = len(candidates)
        with torch.no_grad():
            in_batch = inner_products(anchors, candidates)
            in_memory = inner_products(anchors, queue)
            similarities = torch.cat([in_batch, in_memory], dim=1)  # [B, B + Q]
        weights = sampling_weights(
            similarities,
            similarities.diagonal(),
            excluded,
            gaussians,
            settings,
        )
        drawn, is_drawn = draw(weights)

        value = similarities.gather(1, drawn[:, None])
        allowed = similarities.masked_fill(excluded, float("-inf"))
        hardest = allowed.amax(dim=1, keepdim=True)
        is_hardest = value >= hardest - 1e-5  # the memory may hold it again, rounded otherwise
        self.figures[f"hardest_{side}_share"] = _mean_of_drawn(is_hardest, is_drawn)
        probability = match_probability(value, gaussians, settings)
        self.figures[f"{side}_probability"] = _mean_of_drawn(probability, is_drawn)
        if settings.window and settings.fallback and settings.candidates == "drawn":
            is_below = hardest <= gaussians.mean[0] - settings.margin
            falls_back = hardest.isfinite() & is_below
            self.figures[f"fallback_{side}_share"] = falls_back.double().mean()

        positive = (anchors * candidates).sum(dim=1)
        rows = candidates[drawn.clamp(max=size - 1)]
        if len(queue):
            rows_of_queue = queue[(drawn - size).clamp(min=0)]
            rows = torch.where((drawn < size)[:, None], rows, rows_of_queue)
        negative = (anchors * rows).sum(dim=1)
        return torch.where(is_drawn, hinge(positive, negative, settings.margin), 0.0)


def _mean_of_drawn(values: Tensor, is_drawn: Tensor) -> Tensor:
    """Average values [B, 1] over the anchors [B] that have a negative; 0 without any."""
    total = (values[:, 0] * is_drawn).double().sum()
    return total / is_drawn.sum().clamp(min=1)


class FneMethod(Method[Fne]):
    """Draws negatives by how likely they are false."""

    _state: FneLoss

    def attach(self, model: EmbeddingModel) -> FneLoss:
        """Make the loss with queues as wide as the model's embeddings, and copies the model."""
        settings = self.settings
        device = next(model.parameters()).device
        with scoring(model):
            # One caption, for the width of its embedding.
            texts = self.data.texts(np.zeros(1, dtype=np.int64))
            encoding = model.encode_texts(texts.to(device))
        self._state = FneLoss(encoding.embedding.shape[1], settings)
        if settings.momentum_twin:
            self._state.twin = MomentumTwin(model, settings.momentum, settings.momentum_eval)
        return self._state.to(device)

    def start_epoch(self, epoch: int) -> None:
        """Empty the statistics where they are an epoch's own."""
        if self.settings.reset_each_epoch:
            self._state.statistics.reset()

    def losses(
        self,
        model: EmbeddingModel,
        batch: Batch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `fne` (Eq. 15), in the first epochs `triplet`, both means over the batch, and `auxiliary` / B."""
        settings = self.settings
        state = self._state
        size = len(batch.images)
        images, texts = encode_pairs(model, batch.pairs["positive"])
        image = images.embedding  # [B, D]
        text = texts.embedding
        if epoch < settings.first_epochs():
            mask = same_image_mask(batch, settings.mask_same_image)
            hardest = epoch >= settings.sum_epochs
            loss = triplet_loss(
                inner_products(image, text),
                settings.margin,
                hardest,
                mask,
            )
            terms = {"triplet": loss / size}
        else:
            slow = ()
            if state.twin is not None:
                slow = state.twin.encode(*batch.pairs["positive"])
            terms = {"fne": state(image, text, batch.images, *slow)}
            batch.statistics |= state.figures
        return terms | auxiliary_terms(
            model,
            images,
            batch,
            settings.auxiliary_weight / size,
        )


build = FneMethod
