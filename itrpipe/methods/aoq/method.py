"""Second training, from scratch: the adaptive offline quintuplet loss.

Beside the batch's own negatives, every positive pair (i, t) meets four pairs made of negatives that the model of a
first training found hardest over the whole training set:

    a = S(i, t_off)      b = S(i_off, t)      c = S(i_off, t_off)      d = S(i_off2, t_off2)

with t_off drawn from the list of i, i_off from the list of t, t_off2 a text of i_off and i_off2 the image of
t_off. The three groups (i, t), (i_off, t_off), (i_off2, t_off2) are encoded one after the other, so that
BatchNorm sees each apart, as in the released code.

Shapes: B positive pairs in a batch, N images, T captions, K candidates of an anchor.

Source: Chen, Deng and Luo, "Adaptive Offline Quintuplet Loss for Image-Text Matching" (AOQ), ECCV 2020, sections 3.2
and 3.3, Eq. 3 to 5, and Table 3; all differences from paper and released code: docs/papers/aoq.md. Ours: what judges
say of candidates (`judged`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.learning.losses import excluded_pairs, hinge, online_hard_negatives, triplet_loss
from itrpipe.learning.mined import IMAGES, PROBABILITY_OF, TEXTS, Lists, judged_chances, without_likely
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.base import AnyMatcher, Batch, Method, TrainingSet, auxiliary_terms, encode_pairs, same_image_mask
from itrpipe.storage.arrays import Ragged

__all__ = ["Aoq", "OfflineNegatives", "OfflineQuintuplets", "OfflineScores", "aoq_loss"]

MAX_REDRAWS = 20
"""Tries; what still corresponds after them is kept, and counted in `corresponding`."""
LEAST_WEIGHT = 1e-3
"""Weight of a candidate that is a match for certain, so that an anchor with no others still has a negative."""


class OfflineScores(NamedTuple):
    """Scores of the offline negatives of each positive pair (i, t), all [B].

    Attributes:
        image_with_offline_text: a = S(i, t_off).
        offline_image_with_text: b = S(i_off, t).
        offline_pair: c = S(i_off, t_off).
        derived_pair: d = S(i_off2, t_off2).
    """

    image_with_offline_text: Tensor
    offline_image_with_text: Tensor
    offline_pair: Tensor
    derived_pair: Tensor


def aoq_loss(
    scores: Tensor,
    offline: OfflineScores,
    settings: Aoq,
    not_negative: Tensor | None = None,
) -> Tensor:
    """Add terms of offline negatives to the in-batch triplet loss, summed over the batch. Variants:

    `offline-triplet` has one online and one offline negative per direction (Eq. 3):

        L = sum_(i,t) [g1 - S(i,t) + S(i,t_on)]+ + [g2 - S(i,t) + a]+
                    + [g1 - S(i,t) + S(i_on,t)]+ + [g2 - S(i,t) + b]+

    `quintuplet` adds the two pairs that offline negatives form among themselves (Eq. 4):

        L = Eq. 3 + sum_(i,t) [g2 - S(i,t) + c]+ + [g2 - S(i,t) + d]+

    `adaptive-quintuplet` weighs an online term less the harder the offline negative is (Eq. 5):

        L = sum_(i,t) (beta - (a - S(i,t_on)) / alpha) [g1 - S(i,t) + S(i,t_on)]+
                    + (beta - (b - S(i_on,t)) / alpha) [g1 - S(i,t) + S(i_on,t)]+
                    + [g2 - S(i,t) + a]+ + [g2 - S(i,t) + b]+ + [g2 - S(i,t) + c]+ + [g2 - S(i,t) + d]+

    t_on and i_on are the hardest negatives of the batch, g1 is `margin_online` and g2 `margin_offline`. Gradients flow
    through the weight, as in the paper's Eq. 6 and in the released code, and it is not clamped: it turns negative where
    the offline negative beats the online one by more than alpha * beta.

    The options of Table 3: `online_term` off leaves out the terms with g1, without which training collapses
    ("OnlyOffline"); `quintuplet_pairs = online` makes c and d of the hardest negatives of the batch, see `online_pairs`
    ("OnlineQuin"); `weight_by = positive` puts S(i,t) in place of a and b in the weights ("w/o OfflineAdap").

    Args:
        scores: [B, B] in-batch scores of image i with caption j, positives on the diagonal.
        offline: a, b, c and d, each [B].
        settings: variant, margins and options.
        not_negative: [B, B] bool, pairs beside the diagonal that are not in-batch negatives.

    Returns:
        Scalar, a sum (not a mean) over the batch; that of Eq. 5 may be negative.

    Relations:
        Without offline negatives: `itrpipe.learning.triplet_loss`. Eq. 5 with alpha = infinity and beta = 1 is Eq. 4.
    """
    positive = scores.diagonal()
    text, image = online_hard_negatives(scores, not_negative)  # S(i,t_on), S(i_on,t)
    text_term = hinge(positive, text, settings.margin_online)
    image_term = hinge(positive, image, settings.margin_online)
    a, b, *pairs = offline
    if settings.variant == "adaptive-quintuplet":
        text_reference = image_reference = positive
        if settings.weight_by == "offline":
            text_reference = a
            image_reference = b
        text_term = _adaptive_weight(text_reference, text, settings) * text_term
        image_term = _adaptive_weight(image_reference, image, settings) * image_term
    elif settings.variant == "offline-triplet":
        pairs = []
    elif settings.quintuplet_pairs == "online":
        pairs = online_pairs(scores, not_negative)
    negatives = torch.stack([a, b, *pairs], dim=1)
    terms = hinge(positive[:, None], negatives, settings.margin_offline).sum(dim=1)  # [B]
    if settings.online_term:
        terms = terms + (text_term + image_term)
    return terms.sum()


def _adaptive_weight(reference: Tensor, online: Tensor, settings: Aoq) -> Tensor:
    """Compute the weight [B] of the online terms of one direction in Eq. 5."""
    # Without an in-batch negative an anchor scores -inf there; a finite weight keeps its hinge at zero.
    gap = reference - torch.where(online.isneginf(), reference, online)
    return settings.beta - gap / settings.alpha


def online_pairs(
    scores: Tensor,
    not_negative: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the scores of the two pairs that the hardest in-batch negatives of a positive pair form.

    Args:
        scores: [B, B] scores of image i with caption j, positives on the diagonal.
        not_negative: [B, B] bool, further pairs that are not negatives, or None.

    Returns:
        S(i_on, t_on) [B] and S(image of t_on, text of i_on) [B]; -inf where the two are no negative pair.

    Source: AOQ, Table 3, "OnlineQuin".
    """
    excluded = excluded_pairs(scores, not_negative)
    negatives = scores.masked_fill(excluded, float("-inf"))
    text_of_image = negatives.argmax(dim=1)
    image_of_text = negatives.argmax(dim=0)
    return negatives[image_of_text, text_of_image], negatives[text_of_image, image_of_text]


@dataclass(frozen=True)
class OfflineQuintuplets:
    """Rows of the training set that one batch of positives is compared with.

    Attributes:
        text: [B] t_off, hard negative text of each image.
        image: [B] i_off, hard negative image of each text.
        text_of_image: [B] t_off2, a text of `image`, picked at random among its own.
        image_of_text: [B] i_off2, the image of `text`.
        corresponding: number of rows in which `text` still is a text of `image` after every redraw.
    """

    text: np.ndarray
    image: np.ndarray
    text_of_image: np.ndarray
    image_of_text: np.ndarray
    corresponding: int


class OfflineNegatives:
    """Draws negatives from mined lists: uniformly from the top h, redrawing the text while the two items correspond.

    Where filters made a list shorter, negatives are drawn from what is left.

    Args:
        lists: `texts_for_images` [N, K1], caption rows of every image, and `images_for_texts` [T, K2], image rows of
            every caption, see `itrpipe.learning.mined.Lists`; with probabilities where candidates are to be judged.
        caption_image: [T] row of the image that each caption describes.
        settings: how many are drawn among, whether ranks are `coupled`, whether text is drawn again (`redraw`, the
            paper; the code does not), and what follows from the probabilities (`judged`).

    Raises:
        UsageError: the lists are shorter than asked for, an anchor has no candidate left, or the settings ask for
            probabilities and there are none.

    Source: AOQ, section 3.2.
    """

    def __init__(self, lists: Lists, caption_image: np.ndarray, settings: Aoq) -> None:
        self._caption_image = caption_image
        self._settings = settings
        self._captions_of = Ragged.of_owners(caption_image, len(lists[TEXTS]))
        if settings.judged == "drop":
            lists = without_likely(lists, settings.drop_above)
        weighed = settings.judged == "weigh"
        self._texts = _RankedList(TEXTS, lists, settings.top_texts, weighed)
        self._images = _RankedList(IMAGES, lists, settings.top_images, weighed)

    def draw(
        self,
        captions: np.ndarray,
        rng: np.random.Generator,
    ) -> OfflineQuintuplets:
        """Draw the offline negatives of a batch.

        Args:
            captions: [B] rows of the positive captions.
            rng: source of randomness.
        """
        settings = self._settings
        images = self._caption_image[captions]
        text_places = self._texts.places(images, rng)
        if settings.coupled:
            image_places = text_places * settings.top_images // settings.top_texts
        else:
            image_places = self._images.places(captions, rng)
        text = self._texts.at(images, text_places)
        image = self._images.at(captions, image_places)
        tries = MAX_REDRAWS if settings.redraw else 0
        for _ in range(tries):
            clash = np.flatnonzero(self._caption_image[text] == image)
            if not len(clash):
                break
            places = self._texts.places(images[clash], rng)
            text[clash] = self._texts.at(images[clash], places)
        picked = rng.random(len(image)) * self._captions_of.counts[image]
        places = self._captions_of.offsets[image] + picked.astype(np.int64)
        text_of_image = self._captions_of.values[places]
        image_of_text = self._caption_image[text]
        corresponding = int((image_of_text == image).sum())
        return OfflineQuintuplets(
            text,
            image,
            text_of_image,
            image_of_text,
            corresponding,
        )


class _RankedList:
    """The lists [A, K] of one direction, of which places are drawn.

    Where candidates are weighed, places are drawn by inverting the cumulative weights.
    """

    def __init__(self, direction: str, lists: Lists, top: int, weighed: bool) -> None:
        rows = lists[direction]
        self._sums = None
        if weighed:
            probabilities = lists[PROBABILITY_OF + direction].astype(np.float32)
            weights = np.maximum(1 - probabilities, LEAST_WEIGHT)
            weights = np.where(rows < 0, 0, weights)
            self._sums = np.cumsum(weights[:, :top], axis=1, dtype=np.float32)
        self._rows = rows  # [A, K]
        self._counts = np.minimum((rows >= 0).sum(axis=1), top)  # [A]
        if not self._counts.all():
            raise UsageError(
                f"{(self._counts == 0).sum():,} of {len(rows):,} anchors of {direction} have no candidate left: "
                "loosen the window that mine-negatives was given, or raise loss.drop_above"
            )

    def places(self, anchors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw places [B] in the lists of the given anchors [B]."""
        if self._sums is None:
            return rng.integers(self._counts[anchors])
        sums = self._sums[anchors]
        drawn = rng.random(len(anchors)) * sums[:, -1]
        return (sums <= drawn[:, None]).sum(axis=1)

    def at(self, anchors: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the candidates [B] of anchors [B] at these places [B], or at the last one that there is."""
        last = self._counts[anchors] - 1
        return self._rows[anchors, np.minimum(places, last)]


@dataclass(eq=False)
class AoqBatch(Batch):
    """A batch, and by how much its negatives are lowered because of what judges say.

    Attributes:
        lowered: [B, B] of images and captions of the batch: infinitely where they are no negatives; with `soft` by
            P margin_online.
        offline_lowered: [2, B] of a and of b; with `soft` by P margin_offline.
    """

    lowered: Tensor | float = 0.0
    offline_lowered: Tensor | float = 0.0


class AoqMethod(Method[Aoq]):
    """Adds offline negatives to the online triplet loss; see `OfflineNegatives` for the lists."""

    means = False  # its losses are sums over the batch

    def __init__(self, settings: Aoq, data: TrainingSet, lists: Lists) -> None:
        super().__init__(settings, data)
        self._lists = lists
        self._negatives = OfflineNegatives(lists, data.caption_image, settings)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> AoqBatch:
        """Build the batch of the positives, the offline pair of each, and the derived pair of each."""
        settings = self.settings
        images = self.data.caption_image[captions]
        drawn = self._negatives.draw(captions, rng)
        pairs = {
            "positive": self.data.pairs(images, captions, rng),
            "offline": self.data.pairs(drawn.image, drawn.text, rng),
            "derived": self.data.pairs(drawn.image_of_text, drawn.text_of_image, rng),
        }
        batch = AoqBatch(pairs, torch.from_numpy(images), {"corresponding_draws": drawn.corresponding})
        if settings.judged == "keep":
            return batch
        chances = judged_chances(self._lists, images, captions)
        if settings.judged == "soft":
            batch.lowered = settings.margin_online * chances
            of_text = judged_chances(self._lists, images, drawn.text).diagonal()
            of_image = judged_chances(self._lists, drawn.image, captions).diagonal()
            batch.offline_lowered = settings.margin_offline * torch.stack([of_text, of_image])
            return batch
        limits: Tensor | float = settings.drop_above
        if settings.judged == "weigh":
            limits = torch.from_numpy(rng.random(chances.shape, dtype=np.float32))
        batch.lowered = torch.where(chances > limits, math.inf, 0.0)
        return batch

    def losses(
        self,
        model: AnyMatcher,
        batch: AoqBatch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `aoq` (Eq. 3, 4 or 5, summed over the batch) and the backbone's `auxiliary` loss of the positives.

        In the first `sum_epochs` epochs (paper: 0) it is `triplet`, over all negatives of the batch, instead;
        what `collate` drew is then unused. A negative whose score is lowered by P m has the margin (1 - P) m; the
        weights of Eq. 5 compare lowered scores.
        """
        settings = self.settings
        mask = same_image_mask(batch, settings.mask_same_image)
        images, texts = encode_pairs(model, batch.pairs["positive"])
        if epoch < settings.sum_epochs:
            scores = model.score_matrix(images, texts).float() - batch.lowered  # [B, B]
            loss = triplet_loss(
                scores,
                settings.margin_online,
                max_violation=False,
                not_negative=mask,
            )
            terms = {"triplet": loss}
        else:
            offline_images, offline_texts = encode_pairs(model, batch.pairs["offline"])
            derived_images, derived_texts = encode_pairs(model, batch.pairs["derived"])
            a = model.score_pairs(images, offline_texts).float()
            b = model.score_pairs(offline_images, texts).float()
            c = model.score_pairs(offline_images, offline_texts).float()
            d = model.score_pairs(derived_images, derived_texts).float()
            a, b = torch.stack([a, b]) - batch.offline_lowered
            scores = model.score_matrix(images, texts).float() - batch.lowered  # [B, B]
            loss = aoq_loss(scores, OfflineScores(a, b, c, d), settings, mask)
            terms = {"aoq": loss}
        return terms | auxiliary_terms(model, images, batch, settings.auxiliary_weight)


build = AoqMethod
