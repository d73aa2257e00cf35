"""Contrastive training: any negatives, weighed in any way, under any objective.

For a batch of B pairs, images and captions each meet candidates: those of the batch and, beside them, captions and
images drawn from mined lists, and synthetic sentences. A candidate has a log-weight, which is minus infinity where it
is no negative (`itrpipe.losses.contrastive`). The loss is the mean of both directions of InfoNCE and of the sigmoid
loss, and their sum for triplets.

Of mined candidates each is encoded once, however many anchors drew it, and those that the batch has are not encoded
again. The probabilities of `fne` come from the similarities of the batch (`itrpipe.losses.fne`).

Source: the objectives as named there; sources of negatives: AOQ §3.2 (mined), NegCLIP (synthetic).

Shapes: B pairs, U mined captions, V mined images, S sentences, C candidates in all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from itrpipe.errors import UsageError
from itrpipe.losses import contrastive
from itrpipe.losses.fne import SimilarityStatistics, false_negative_probability
from itrpipe.methods.base import Batch, OwnedTexts, PairSource, auxiliary_terms
from itrpipe.methods.contrastive.declaration import OWN, Contrastive
from itrpipe.methods.triplet.method import SentenceSource
from itrpipe.models.base import Matcher, TextBatch
from itrpipe.negatives.lists import PROBABILITY_OF
from itrpipe.negatives.mined_candidates import MinedCandidates, known_pairs
from itrpipe.negatives.neighbours import neighbours_order
from itrpipe.negatives.sentence_bank import SentenceBank

TEXTS, IMAGES = "texts_for_images", "images_for_texts"
_NONE = float("-inf")
_ROUNDING = 1.001
"""CLIP's own models were trained with 100 as the largest scale, and their files hold a little more."""


class CandidateSource(PairSource, Protocol):
    """A training set that gives captions apart, too."""

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Tokens of caption rows [T]."""
        ...


@dataclass(frozen=True)
class Candidates:
    """What anchors of one kind meet beside the batch, and what is known of all of it.

    Attributes:
        drawn: the U captions or V images that were drawn from mined lists and are not in the batch; None without any.
        images: int64 [U], image row of each of them.
        anchors: bool [B, U], whose candidates they are; None for candidates of all.
        guarded: places [n] of anchors and of candidates, of the batch and then of those drawn, and the probability
            that mining wrote.
        matching: likewise, the pairs that are true matches, where the dataset knows all of them.
        decided: likewise, those that people have found to fit.
    """

    drawn: Any = None
    images: Tensor | None = None
    anchors: Tensor | None = None
    guarded: tuple[Tensor, Tensor, Tensor] | None = None
    matching: tuple[Tensor, Tensor, Tensor] | None = None
    decided: tuple[Tensor, Tensor, Tensor] | None = None

    def to(self, device: torch.device | str) -> Candidates:
        """The same on a device."""
        return Candidates(**{each.name: _moved(getattr(self, each.name), device) for each in fields(self)})


class ContrastiveBatch(Batch):
    """A batch with candidates from elsewhere.

    Attributes:
        texts, further_images: candidates of the images, and of the captions.
    """

    texts, further_images = Candidates(), Candidates()

    def to(self, device: torch.device | str) -> ContrastiveBatch:
        """The same batch on a device."""
        placed = super().to(device)
        found = ContrastiveBatch(placed.pairs, placed.images, placed.statistics, placed.captions, placed.sentences)
        found.texts, found.further_images = self.texts.to(device), self.further_images.to(device)
        return found


class ContrastiveState(nn.Module):
    """What the method keeps between steps.

    Attributes:
        log_scale, bias: logarithm of 1 / t, and the bias of `sigmoid`; trained where the settings say so.
        statistics: of matches and mismatches, for `fne`.
    """

    def __init__(self, settings: Contrastive, scale: float, bias: float) -> None:
        super().__init__()
        trained = settings.learn_temperature and settings.objective in ("infonce", "sigmoid")
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)), requires_grad=trained)
        self.bias = nn.Parameter(torch.tensor(bias), requires_grad=trained and settings.objective == "sigmoid")
        self.statistics = SimilarityStatistics() if settings.weigh == "fne" else None


class ContrastiveMethod:
    """Meets every anchor with all its candidates.

    Args:
        settings: see `Contrastive`.
        data: the training set.
        lists: mined ones with their probabilities, as `build` gets them; empty where none are read.
        sentences: synthetic ones; None where none are read.
    """

    means = True
    _state: ContrastiveState

    def __init__(
        self,
        settings: Contrastive,
        data: CandidateSource,
        lists: Mapping[str, np.ndarray],
        sentences: SentenceBank | None,
    ) -> None:
        self._settings, self._data, self._sentences = settings, data, sentences
        self._matches: Mapping[str, np.ndarray] | None = getattr(data, "matches", None)
        self._decided: Mapping[str, np.ndarray] | None = getattr(data, "decided_matches", None)
        self._first_caption = np.full(data.caption_image.max() + 1, -1)
        self._first_caption[data.caption_image[::-1]] = np.arange(len(data.caption_image))[::-1]
        if settings.weigh == "truth" and self._matches is None:
            raise UsageError(
                "loss.weigh = truth needs a dataset that knows every true match, such as scenes; give fne or guard, "
                "which estimate them"
            )
        self.refresh(lists)

    def refresh(self, lists: Mapping[str, np.ndarray]) -> None:
        """Goes on with other mined lists.

        Raises:
            UsageError: they are too short, or lack probabilities that the settings ask for.
        """
        settings, self._lists = self._settings, dict(lists)
        if settings.weigh == "guard" and f"{PROBABILITY_OF}{TEXTS}" not in lists:
            raise UsageError(
                "loss.weigh = guard needs lists that say how likely each candidate is a false negative; mine them with "
                "`itrpipe mine-negatives --guard fne`"
            )
        self._mined = {}
        if "mined" in settings.negatives:
            self._mined = {
                TEXTS: MinedCandidates(TEXTS, lists[TEXTS], settings.top_texts, settings.skip_texts),
                IMAGES: MinedCandidates(IMAGES, lists[IMAGES], settings.top_images, settings.skip_images),
            }

    def order(self, seed: int, epoch: int) -> np.ndarray | None:
        """Captions [T] in the order of an epoch; None for the usual one."""
        settings = self._settings
        if settings.batches != "neighbours":
            return None
        lists = self._lists[TEXTS][:, settings.skip_texts : settings.top_texts]
        rng = np.random.default_rng([seed, epoch, 0, 2])
        group = settings.neighbour_group, settings.neighbour_share
        return neighbours_order(lists, self._data.caption_image, *group, rng)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> ContrastiveBatch:
        """The captions and their images, and what is drawn for each."""
        settings, images = self._settings, self._data.caption_image[captions]
        batch = ContrastiveBatch(
            {"positive": self._data.pairs(images, captions, rng)}, torch.from_numpy(images), captions=captions
        )
        batch.texts = self._candidates(TEXTS, images, captions, settings.mined_texts, rng)
        batch.further_images = self._candidates(IMAGES, captions, images, settings.mined_images, rng)
        if self._sentences is not None:
            texts, owners, _ = self._sentences.drawn(captions, settings.synthetic_sentences, rng)
            if len(owners):
                batch.sentences = OwnedTexts(replace(texts, in_training=True), owners)
        return batch

    def _candidates(
        self, direction: str, anchors: np.ndarray, present: np.ndarray, count: int, rng: np.random.Generator
    ) -> Candidates:
        """Candidates of anchors [B], given those that the batch has [B]."""
        rows = np.empty(0, dtype=np.int64)
        belongs = None
        if direction in self._mined and count:
            drawn = self._mined[direction].draw(anchors, count, rng)
            rows = np.setdiff1d(drawn[drawn >= 0], present).astype(np.int64)
            if not self._settings.shared:
                belongs = (drawn[:, :, None] == rows).any(axis=1)
        known, everything = {}, np.concatenate([present, rows])
        if self._settings.weigh == "guard":
            found = self._lists[direction][anchors], self._lists[f"{PROBABILITY_OF}{direction}"][anchors]
            known["guarded"] = known_pairs(*found, everything).tensors()
        for name, matches in (("matching", self._matches), ("decided", self._decided)):
            if matches is not None:
                true = matches[direction][anchors]
                known[name] = known_pairs(true, np.ones(true.shape), everything).tensors()
        if not len(rows):
            return Candidates(**known)
        images = self._data.caption_image[rows] if direction == TEXTS else rows
        if direction == TEXTS:
            drawn = replace(self._data.texts(rows), in_training=True)
        else:  # with some caption of theirs: pairs are what data change at random and share among processes
            drawn, _ = self._data.pairs(rows, self._first_caption[rows], rng)
        shared = None if belongs is None else torch.from_numpy(belongs)
        return Candidates(drawn, torch.from_numpy(images), shared, **known)

    def attach(self, model: Any) -> ContrastiveState:
        """Makes temperature and bias, and statistics.

        Raises:
            UsageError: they are to be those of a pretrained joint model, and this is none, or its scale is too large.
        """
        settings = self._settings
        own = model.pretrained_scale() if OWN in (settings.temperature, settings.bias) else None
        scale = own[0] if own and settings.temperature == OWN else 1 / _number(settings.temperature, "temperature")
        bias = own[1] if own and settings.bias == OWN else _number(settings.bias, "bias")
        if own and scale > settings.largest_scale * _ROUNDING:
            raise UsageError(
                f"loss.temperature = own is 1/{scale:.2f} in this model, and loss.largest_scale = "
                f"{settings.largest_scale:g} would change it; give --set loss.largest_scale={math.ceil(scale)} or more"
            )
        self._state = ContrastiveState(settings, scale, bias).to(next(model.parameters()).device)
        return self._state

    def start_epoch(self, epoch: int) -> None:
        """Empties the statistics, which are an epoch's own."""
        if self._state.statistics is not None:
            self._state.statistics.reset()

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """`contrastive` and the backbone's `auxiliary` loss; means over the batch."""
        settings, state, batch = self._settings, self._state, cast(ContrastiveBatch, batch)
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        scores = model.score_matrix(images, texts).float()  # [B, B]
        of_images, of_texts = [scores], [scores.T]
        same = batch.images[:, None] == batch.images[None, :]
        own = same if settings.mask_same_image else torch.eye(len(same), dtype=torch.bool, device=same.device)
        excluded_texts, excluded_images = [own], [own]
        if (drawn := batch.texts).drawn is not None:
            of_images.append(model.score_matrix(images, model.encode_texts(drawn.drawn)).float())
            excluded_texts.append(_excluded(batch, drawn))
        if (drawn := batch.further_images).drawn is not None:
            of_texts.append(model.score_matrix(model.encode_images(drawn.drawn), texts).float().T)
            excluded_images.append(_excluded(batch, drawn))
        if batch.sentences is not None:
            of_images.append(model.score_matrix(images, model.encode_texts(batch.sentences.texts)).float())
            place = torch.arange(len(same), device=same.device)
            others = batch.sentences.owners != place[:, None]
            excluded_texts.append(torch.zeros_like(others) if settings.shared else others)
        if state.statistics is not None:
            mask = same if settings.mask_same_image else None
            batch.statistics["retained"] = state.statistics.update(scores.detach(), mask)
        directions = (
            self._direction(torch.cat(of_images, 1), torch.cat(excluded_texts, 1), batch, batch.texts, "text", epoch),
            self._direction(
                torch.cat(of_texts, 1), torch.cat(excluded_images, 1), batch, batch.further_images, "image", epoch
            ),
        )
        share = 0.5 if settings.objective in ("infonce", "sigmoid") else 1.0
        return {
            "contrastive": share * (directions[0] + directions[1]),
            **auxiliary_terms(model, images, text_batch, settings.auxiliary_weight / len(same)),
        }

    def _direction(
        self, scores: Tensor, excluded: Tensor, batch: Batch, known: Candidates, side: str, epoch: int
    ) -> Tensor:
        """Loss of anchors [B] with their candidates [B, C], of which the first B have the positives on the diagonal."""
        settings, state, positive = self._settings, self._state, scores.diagonal()
        written = len(batch.sentences.owners) if side == "text" and batch.sentences is not None else 0
        weights = self._log_weights(scores.detach(), excluded, known, written)
        batch.statistics[f"{side}_candidates"] = weights.exp().sum(dim=1).mean()
        if known.matching is not None and scores.requires_grad:
            scores.register_hook(partial(_count_matches, batch.statistics, f"{side}_match_share", known.matching))
        if settings.objective in ("infonce", "sigmoid"):
            with torch.no_grad():
                state.log_scale.clamp_(max=math.log(settings.largest_scale))
            scale = state.log_scale.exp()
            batch.statistics["temperature"] = 1 / scale.detach()
            if settings.objective == "infonce":
                return contrastive.infonce(positive, scores, weights, 1 / scale)
            batch.statistics["bias"] = state.bias.detach()
            return contrastive.sigmoid(positive, scores, weights, scale, state.bias)
        if settings.objective == "sum" or epoch < settings.sum_epochs:
            return contrastive.sum_of_triplets(positive, scores, weights, settings.margin)
        if settings.weigh in ("fne", "guard"):
            weights = contrastive.survivors(weights)
        return contrastive.hardest_triplet(positive, scores, weights, settings.margin)

    def _log_weights(self, scores: Tensor, excluded: Tensor, known: Candidates, written: int) -> Tensor:
        """[B, C] of candidates, of which the last `written` were made to be false: no estimate doubts these."""
        settings, doubted = self._settings, scores.shape[1] - written
        weights = torch.zeros_like(scores).masked_fill_(excluded, _NONE)
        if known.decided is not None:
            anchors, candidates, _ = known.decided
            weights[anchors, candidates] = _NONE
        if settings.weigh == "hardest":
            return contrastive.hardest_candidate(scores, weights)
        if settings.weigh == "positive-aware":
            names = ("relative_margin", "absolute_margin", "max_score")
            limits = {name: getattr(settings, name) for name in names}
            above = contrastive.above_positive(scores.diagonal(), scores[:, :doubted], **limits)
            weights[:, :doubted].masked_fill_(above, _NONE)
        if settings.weigh == "truth":
            assert known.matching is not None
            anchors, candidates, _ = known.matching
            weights[anchors, candidates] = _NONE
        if known.guarded is not None:
            anchors, candidates, probability = known.guarded
            weights[anchors, candidates] += torch.log1p(-probability.clamp(max=1 - 1e-6))
        if self._state.statistics is not None:
            gaussians = self._state.statistics.gaussians()
            probability = false_negative_probability(
                scores[:, :doubted], gaussians, settings.prior, min_count=settings.min_count, monotone=True
            )
            weights[:, :doubted] += torch.log1p(-probability.clamp(max=1 - 1e-6))
        return weights


def _excluded(batch: Batch, drawn: Candidates) -> Tensor:
    """bool [B, U], candidates of the anchor's own image, and those that others drew where these do not count."""
    assert drawn.images is not None
    own = batch.images[:, None] == drawn.images[None, :]
    return own if drawn.anchors is None else own | ~drawn.anchors


def _count_matches(
    statistics: dict[str, float | Tensor], name: str, matching: tuple[Tensor, Tensor, Tensor], gradient: Tensor
) -> None:
    """Counts how much of the gradient that candidates [B, C] get, those of positives aside, true matches get."""
    sizes = gradient.detach().abs()
    sizes.diagonal().zero_()
    statistics[name] = sizes[matching[0], matching[1]].sum() / sizes.sum().clamp(min=1e-30)


def _number(value: float | str, name: str) -> float:
    if isinstance(value, str):
        raise UsageError(
            f"loss.{name} = {value} is that of a pretrained joint model, such as CLIP or SigLIP, and this model starts "
            f"from none; give --set loss.{name}=NUMBER"
        )
    return value


def _moved(value: Any, device: torch.device | str) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_moved(each, device) for each in value)
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value.to(device)


def build(settings: Contrastive, data: PairSource, lists: Mapping[str, np.ndarray]) -> ContrastiveMethod:
    """Makes the method; `lists` are read where the settings name mined negatives, a guard, or neighbours."""
    sentences = cast(SentenceSource, data).sentences if settings.reads_sentences() else None
    return ContrastiveMethod(settings, cast(CandidateSource, data), lists, sentences)
