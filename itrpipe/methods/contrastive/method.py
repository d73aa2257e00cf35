"""Contrastive training: any negatives, weighed in any way, under any objective.

For a batch of B pairs, images and captions each meet candidates: those of the batch and, beside them, captions and
images drawn from mined lists, and synthetic sentences. A candidate has a log-weight, which is minus infinity where it
is no negative (`itrpipe.learning.losses`). The loss is the mean of both directions of InfoNCE and of the sigmoid
loss, and their sum for triplets.

Of mined candidates each is encoded once, however many anchors drew it, and those that the batch has are not encoded
again. The probabilities of `fne` come from the similarities of the batch (`itrpipe.learning.false_negatives`). What
judges say of a pair is a log-weight too, or with `soft` a target of the loss.

Source: the objectives as named there; sources of negatives: AOQ §3.2 (mined), NegCLIP (synthetic).

Shapes: B pairs, U mined captions, V mined images, S sentences, C candidates in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from itrpipe.datasets.truth import PairSet
from itrpipe.errors import UsageError
from itrpipe.learning.false_negatives import SimilarityStatistics, false_negative_probability
from itrpipe.learning.losses import excluded_pairs, hardest_triplet, infonce, sigmoid, sum_of_triplets, twin_differences
from itrpipe.learning.mined import (
    IMAGES,
    TEXTS,
    Lists,
    MinedCandidates,
    judged_chances,
    listed_pairs,
    neighbours_order,
    without_likely,
)
from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods.base import (
    AnyMatcher,
    Batch,
    Method,
    TrainingSet,
    auxiliary_terms,
    draw_sentences,
    draw_twins,
    encode_pairs,
    in_training,
    same_image_mask,
    twin_scores,
)
from itrpipe.methods.contrastive.declaration import OWN, Contrastive
from itrpipe.models.base import Tensors

_NONE = float("-inf")
_ROUNDING = 1.001
"""CLIP's own models were trained with 100 as the largest scale, and their files hold a little more."""
_SURE = 1 - 1e-6
"""Probability of a false negative at most, so that no candidate is left out by an estimate."""


@dataclass(frozen=True)
class FurtherCandidates(Tensors):
    """Candidates of the anchors of one kind beside the batch, and known pairs among all of them.

    Attributes:
        drawn: the U captions or V images that were drawn from mined lists and are not in the batch; None without any.
        images: int64 [U], image row of each of them.
        anchors: bool [B, U], True where the anchor drew the candidate; None for candidates of all anchors.
        known: places [n] of anchors and of candidates, of the batch and then of those drawn, and their log-weights:
            `matching`, pairs that are correct matches, where the dataset knows all of them; `decided`, those that
            people have found to fit.
        chances: [B, C] by judges, that candidates of the batch and then those drawn are right; None without judges.
    """

    drawn: Any = None
    images: Tensor | None = None
    anchors: Tensor | None = None
    known: dict[str, tuple[Tensor, Tensor, Tensor | float]] = field(default_factory=dict)
    chances: Tensor | None = None

    def excluded(self, image_rows: Tensor) -> Tensor:
        """Mark candidates of the anchor's own image, and those of others where these do not count, bool [B, U]."""
        assert self.images is not None
        same_image = image_rows[:, None] == self.images
        if self.anchors is None:
            return same_image
        return same_image | ~self.anchors


@dataclass(eq=False)
class ContrastiveBatch(Batch):
    """A batch with candidates from elsewhere.

    Attributes:
        candidates: of the images under `texts_for_images`, and of the captions under `images_for_texts`.
    """

    candidates: dict[str, FurtherCandidates] = field(default_factory=dict)


class ContrastiveState(nn.Module):
    """Tensors that the method keeps between steps.

    Attributes:
        log_scale, bias: logarithm of 1 / t, and the bias of `sigmoid`; trained where the settings say so.
        statistics: of matches and mismatches, for `fne`.
    """

    def __init__(self, settings: Contrastive, scale: float, bias: float) -> None:
        super().__init__()
        trained = settings.learn_temperature and settings.has_scale
        trains_bias = trained and settings.objective == "sigmoid"
        log_scale = torch.tensor(math.log(scale))
        self.log_scale = nn.Parameter(log_scale, requires_grad=trained)
        self.bias = nn.Parameter(torch.tensor(bias), requires_grad=trains_bias)
        self.statistics = SimilarityStatistics() if settings.weigh == "fne" else None


class ContrastiveMethod(Method[Contrastive]):
    """Meets every anchor with all its candidates."""

    _state: ContrastiveState

    def __init__(
        self,
        settings: Contrastive,
        data: TrainingSet,
        lists: Lists | None = None,
        sentences: SentenceBank | None = None,
        matches: Lists | None = None,
        decided: PairSet | None = None,
        duplicates: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(settings, data)
        self._sentences = sentences
        self._matches = matches
        self._fitting: list[Any] = [] if decided is None else [decided]  # pairs that fit although of two images
        if settings.drop_duplicates:
            assert duplicates is not None, "drop_duplicates needs to know the captions; give build() duplicates"
            self._fitting.append(duplicates())
        if settings.weigh == "truth" and self._matches is None:
            raise UsageError(
                "loss.weigh = truth needs a dataset that knows all correct matches, such as scenes; give fne, which "
                "estimates them, or ask judges by loss.judged"
            )
        self.refresh(lists or {})

    def refresh(self, lists: Lists) -> None:
        """Go on with other mined lists.

        Raises:
            UsageError: they are empty.
        """
        settings = self.settings
        self._lists = dict(lists)
        self._offered = self._lists
        if settings.judged == "drop":
            self._offered = without_likely(lists, settings.drop_above)
        self._mined: dict[str, MinedCandidates] = {}
        if "mined" in settings.negatives:
            self._mined[TEXTS] = MinedCandidates(
                self._offered,
                TEXTS,
                settings.top_texts,
                settings.skip_texts,
            )
            self._mined[IMAGES] = MinedCandidates(
                self._offered,
                IMAGES,
                settings.top_images,
                settings.skip_images,
            )

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Return captions [T] in the order of an epoch; None for a random one."""
        settings = self.settings
        if settings.batches != "neighbours":
            return None
        lists = self._offered[TEXTS][:, settings.skip_texts : settings.top_texts]
        return neighbours_order(
            lists,
            self.data.caption_image,
            settings.neighbour_group,
            settings.neighbour_share,
            np.random.default_rng([seed, epoch, 0, 2]),
        )

    def collate(
        self,
        captions: np.ndarray,
        rng: np.random.Generator,
    ) -> ContrastiveBatch:
        """Build the batch of the captions and their images, and of what is drawn for each."""
        settings = self.settings
        images = self.data.caption_image[captions]
        batch = ContrastiveBatch(**vars(super().collate(captions, rng)))
        batch.candidates = {
            TEXTS: self._candidates(TEXTS, images, captions, settings.mined_texts, rng),
            IMAGES: self._candidates(
                IMAGES,
                captions,
                images,
                settings.mined_images,
                rng,
            ),
        }
        if settings.twins:
            batch.twins = draw_twins(
                self.data,
                self._sentences,
                settings.twins,
                len(captions),
                rng,
            )
        if "synthetic" in settings.negatives:
            batch.sentences = draw_sentences(
                self._sentences,
                captions,
                settings.synthetic_sentences,
                rng,
            )
        return batch

    def _candidates(
        self,
        direction: str,
        anchors: np.ndarray,
        present: np.ndarray,
        count: int,
        rng: np.random.Generator,
    ) -> FurtherCandidates:
        """Draw candidates of anchors [B], beside those that the batch has, and collect what is known of all [C]."""
        rows = np.empty(0, dtype=np.int64)
        belongs = None
        if direction in self._mined and count:
            drawn = self._mined[direction].draw(anchors, count, rng)
            rows = np.setdiff1d(drawn[drawn >= 0], present).astype(np.int64)
            if not self.settings.shared:
                is_drawn = drawn[:, :, None] == rows
                belongs = torch.from_numpy(is_drawn.any(axis=1))
        candidates = np.concatenate([present, rows])
        known: dict[str, tuple[Tensor, Tensor, Tensor | float]] = {}
        if self._matches is not None:
            matches = self._matches[direction][anchors]
            log_weights = np.full(matches.shape, _NONE)
            known["matching"] = listed_pairs(matches, log_weights, candidates)
        if self._fitting:
            images = anchors[:, None]
            captions = candidates
            if direction == IMAGES:
                images, captions = captions, images
            fits = np.zeros((len(anchors), len(candidates)), dtype=bool)
            for pairs in self._fitting:
                fits |= pairs.has(captions, images)
            fits &= self.data.caption_image[captions] != images
            places, columns = np.nonzero(fits)
            known["decided"] = torch.from_numpy(places), torch.from_numpy(columns), _NONE
        chances = None
        if self.settings.judged != "keep":
            if direction == TEXTS:
                chances = judged_chances(self._lists, anchors, candidates)
            else:
                chances = judged_chances(self._lists, candidates, anchors).T
        if not len(rows):
            return FurtherCandidates(known=known, chances=chances)
        if direction == TEXTS:
            encodable = in_training(self.data.texts(rows))
            image_rows = self.data.caption_image[rows]
        else:  # with some caption of theirs: pairs are what data change at random and share among processes
            some_captions = self.captions_of.values[self.captions_of.offsets[rows]]
            encodable, _ = self.data.pairs(rows, some_captions, rng)
            image_rows = rows
        return FurtherCandidates(
            encodable,
            torch.from_numpy(image_rows),
            belongs,
            known,
            chances,
        )

    def attach(self, model: Any) -> ContrastiveState:
        """Make temperature and bias, and statistics.

        Raises:
            UsageError: they are to be those of a pretrained joint model, and this is none, or its scale is too large.
        """
        settings = self.settings
        taken_over = [name for name in ("temperature", "bias") if getattr(settings, name) == OWN]
        pretrained = model.pretrained_scale if taken_over else (0.0, 0.0)
        if not pretrained:
            raise UsageError(
                f"loss.{taken_over[0]} = own is that of a pretrained joint model, such as CLIP or SigLIP, and this "
                f"model starts from none; give --set loss.{taken_over[0]}=NUMBER"
            )
        scale, bias = pretrained
        if "temperature" not in taken_over:
            scale = 1 / float(settings.temperature)
        elif scale > settings.largest_scale * _ROUNDING:
            raise UsageError(
                f"loss.temperature = own is 1/{scale:.2f} in this model, and loss.largest_scale = "
                f"{settings.largest_scale:g} would change it; give --set loss.largest_scale={math.ceil(scale)} or more"
            )
        if "bias" not in taken_over:
            bias = float(settings.bias)
        device = next(model.parameters()).device
        self._state = ContrastiveState(settings, scale, bias).to(device)
        return self._state

    def start_epoch(self, epoch: int) -> None:
        """Empty the statistics, which are an epoch's own."""
        if self._state.statistics is not None:
            self._state.statistics.reset()

    def losses(
        self,
        model: AnyMatcher,
        batch: ContrastiveBatch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `contrastive`, `twins` by its objective, and the backbone's `auxiliary` loss, means over the batch."""
        settings = self.settings
        state = self._state
        images, texts = encode_pairs(model, batch.pairs["positive"])
        scores = model.score_matrix(images, texts).float()  # [B, B]
        mask = same_image_mask(batch, settings.mask_same_image)
        excluded = excluded_pairs(scores, mask)
        # Scores of the candidates of images and of captions, and which of them are excluded.
        of_images = [(scores, excluded)]
        of_texts = [(scores.T, excluded)]
        further_texts = batch.candidates[TEXTS]
        further_images = batch.candidates[IMAGES]
        if further_texts.drawn is not None:
            encoded_texts = model.encode_texts(further_texts.drawn)
            text_scores = model.score_matrix(images, encoded_texts).float()
            of_images.append((text_scores, further_texts.excluded(batch.images)))
        if further_images.drawn is not None:
            encoded_images = model.encode_images(further_images.drawn)
            image_scores = model.score_matrix(encoded_images, texts).float().T
            of_texts.append((image_scores, further_images.excluded(batch.images)))
        if batch.sentences is not None:
            sentences = model.encode_texts(batch.sentences.texts)
            sentence_scores = model.score_matrix(images, sentences).float()
            excluded = torch.zeros_like(sentence_scores, dtype=torch.bool)
            if not settings.shared:
                pairs = torch.arange(len(scores), device=scores.device)
                excluded = batch.sentences.owners != pairs[:, None]
            of_images.append((sentence_scores, excluded))
        if state.statistics is not None:
            batch.statistics["retained"] = state.statistics.update(scores.detach(), mask)
        loss = self._direction("text", of_images, further_texts, batch, epoch)
        loss = loss + self._direction("image", of_texts, further_images, batch, epoch)
        share = 0.5 if settings.has_scale else 1.0
        terms = {"contrastive": share * loss}
        if batch.twins is not None:
            # A mean over quadruples and their four differences: InfoNCE of two candidates, or the hinge.
            differences = twin_differences(twin_scores(model, batch))
            if settings.has_scale:
                costs = F.softplus(state.log_scale.exp() * differences)
            else:
                costs = (settings.margin + differences).relu()
            terms["twins"] = settings.twin_weight * costs.mean()
        return terms | auxiliary_terms(
            model,
            images,
            batch,
            settings.auxiliary_weight / len(scores),
        )

    def _direction(
        self,
        side: str,
        blocks: list[tuple[Tensor, Tensor]],
        further: FurtherCandidates,
        batch: Batch,
        epoch: int,
    ) -> Tensor:
        """Compute the loss of B anchors with their candidates [B, C], of which the first B are those of the batch.

        Args:
            side: what candidates are, `text` or `image`.
            blocks: scores of candidates, and which are excluded, [B, c] each.
            further: candidates, and what is known of all.
            batch: takes the statistics.
            epoch: 0-based.
        """
        scores = torch.cat([scores for scores, _ in blocks], dim=1)
        excluded = torch.cat([excluded for _, excluded in blocks], dim=1)
        settings = self.settings
        state = self._state
        positive = scores.diagonal()
        written = 0
        if side == "text" and batch.sentences is not None:
            written = len(batch.sentences.owners)
        weights = self._log_weights(scores.detach(), excluded, further, written)
        batch.statistics[f"{side}_candidates"] = weights.exp().sum(dim=1).mean()
        targets = None
        if settings.judged == "soft":
            assert further.chances is not None
            chances = F.pad(further.chances, (0, written))
            targets = chances.masked_fill(weights.isneginf(), 0.0)
        if "matching" in further.known and scores.requires_grad:
            anchors, candidates, _ = further.known["matching"]

            def measure_matches(gradient: Tensor) -> None:
                sizes = gradient.detach().abs()
                sizes.diagonal().zero_()  # of positives
                total = sizes.sum().clamp(min=1e-30)
                batch.statistics[f"{side}_match_share"] = sizes[anchors, candidates].sum() / total

            scores.register_hook(measure_matches)
        if settings.has_scale:
            with torch.no_grad():
                state.log_scale.clamp_(max=math.log(settings.largest_scale))
            scale = state.log_scale.exp()
            batch.statistics["temperature"] = 1 / scale.detach()
            if settings.objective == "infonce":
                return infonce(positive, scores, weights, 1 / scale, targets)
            batch.statistics["bias"] = state.bias.detach()
            return sigmoid(positive, scores, weights, scale, state.bias, targets)
        if targets is not None:
            # Margins of (1 - P) m; the hardest candidate is the one that violates its own margin most.
            scores = scores - settings.margin * targets
        if settings.objective == "sum" or epoch < settings.sum_epochs:
            return sum_of_triplets(positive, scores, weights, settings.margin)
        if settings.weigh == "fne" or settings.judged == "weigh":
            # Each candidate is kept with the probability that is its weight.
            is_kept = torch.rand_like(weights).log() < weights
            weights = torch.where(is_kept, 0.0, _NONE)
        return hardest_triplet(positive, scores, weights, settings.margin)

    def _log_weights(
        self,
        scores: Tensor,
        excluded: Tensor,
        further: FurtherCandidates,
        written: int,
    ) -> Tensor:
        """Return [B, C] of candidates, of which the last `written` were made to be false: no estimate doubts these."""
        settings = self.settings
        doubted = scores[:, : scores.shape[1] - written]
        weights = torch.zeros_like(scores).masked_fill_(excluded, _NONE)
        for name, (anchors, candidates, log_weights) in further.known.items():
            if name != "matching" or settings.weigh == "truth":
                weights[anchors, candidates] += log_weights
        if further.chances is not None:
            chances = F.pad(further.chances, (0, written))
            if settings.judged == "drop":
                weights.masked_fill_(chances > settings.drop_above, _NONE)
            elif settings.judged == "weigh":
                weights += torch.log1p(-chances)
        if settings.weigh == "hardest":  # what weighs nothing is never the highest
            hardest = scores.masked_fill(weights.isneginf(), _NONE).argmax(dim=1, keepdim=True)
            return torch.full_like(weights, _NONE).scatter(1, hardest, weights.gather(1, hardest))
        if settings.weigh == "positive-aware":
            above = above_positive(scores.diagonal(), doubted, settings)
            weights[:, : doubted.shape[1]].masked_fill_(above, _NONE)
        if self._state.statistics is not None:
            probability = false_negative_probability(
                doubted,
                self._state.statistics.gaussians(),
                settings.prior,
                min_count=settings.min_count,
                monotone=True,
            )
            weights[:, : doubted.shape[1]] += torch.log1p(-probability.clamp(max=_SURE))
        return weights


def above_positive(
    positive: Tensor,
    candidates: Tensor,
    settings: Contrastive,
) -> Tensor:
    """Return the candidates, bool [B, C], that score so high beside the positive [B] that they are taken for matches.

    They are above p - r |p|, above p - a, or above `max_score`, with r the `relative_margin` and a the
    `absolute_margin`; a limit that is None sets none. The names are those of sentence-transformers'
    `mine_hard_negatives`.

    Source: Moreira et al. (NV-Retriever), 2024, section 3.2: `TopK-PercPos` at 95 % is r = 0.05, `TopK-MarginPos` is a.
    """
    positive = positive[:, None]
    is_above = torch.zeros_like(candidates, dtype=torch.bool)
    if settings.relative_margin is not None:
        is_above |= candidates > positive - settings.relative_margin * positive.abs()
    if settings.absolute_margin is not None:
        is_above |= candidates > positive - settings.absolute_margin
    if settings.max_score is not None:
        is_above |= candidates > settings.max_score
    return is_above


build = ContrastiveMethod
