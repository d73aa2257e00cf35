"""Round two: the adaptive offline quintuplet loss.

Beside the batch's own negatives, every positive pair (i, t) meets four pairs made of negatives that a
round-one model found hardest over the whole training set:

    a = S(i, t_off)      b = S(i_off, t)      c = S(i_off, t_off)      d = S(i_off2, t_off2)

with t_off drawn from the list of i, i_off from the list of t, t_off2 a text of i_off and i_off2 the image of
t_off. The three groups (i, t), (i_off, t_off), (i_off2, t_off2) are encoded one after the other, so that
BatchNorm sees each apart, as in the released code.

Source: AOQ (Chen et al., ECCV 2020), sections 3.2 and 3.3, Eq. 3 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.losses.quintuplet import (
    OfflineScores,
    adaptive_offline_quintuplet_loss,
    offline_quintuplet_loss,
    offline_triplet_loss,
)
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.base import Batch, PairSource, auxiliary_terms, same_image_mask
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.methods.triplet.method import TripletMethod
from itrpipe.models.base import Matcher
from itrpipe.negatives.lists import PROBABILITY_OF
from itrpipe.negatives.offline import FalseNegativeGuard, OfflineNegatives


class AoqMethod:
    """Adds offline negatives to the online triplet loss.

    Args:
        settings: constants of the loss and of the draw.
        data: the training set.
        negatives: draws from the mined lists.
    """

    means = False

    def __init__(self, settings: Aoq, data: PairSource, negatives: OfflineNegatives) -> None:
        self._settings, self._data, self._negatives = settings, data, negatives
        self._warm_up = TripletMethod(_warm_up_settings(settings), data)

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """The positives, the offline pair of each, and the derived pair of each."""
        images = self._data.caption_image[captions]
        drawn = self._negatives.draw(captions, rng)
        # The order of the three groups is that of the released code, whose BatchNorm sees them one by one.
        pairs = {
            "positive": self._data.pairs(images, captions, rng),
            "offline": self._data.pairs(drawn.image, drawn.text, rng),
            "derived": self._data.pairs(drawn.image_of_text, drawn.text_of_image, rng),
        }
        return Batch(pairs, torch.from_numpy(images), {"corresponding_draws": drawn.corresponding})

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """`aoq` (Eq. 3, 4 or 5, summed over the batch) and the backbone's `auxiliary` loss of the positives.

        In the first `sum_epochs` epochs it is the plain triplet loss over all negatives instead.
        """
        settings = self._settings
        if epoch < settings.sum_epochs:
            return self._warm_up.losses(model, batch, epoch)
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        (offline_images, offline_texts), (derived_images, derived_texts) = (
            (model.encode_images(batch.pairs[name][0]), model.encode_texts(batch.pairs[name][1]))
            for name in ("offline", "derived")
        )
        offline = OfflineScores(
            image_with_offline_text=model.score_pairs(images, offline_texts).float(),
            offline_image_with_text=model.score_pairs(offline_images, texts).float(),
            offline_pair=model.score_pairs(offline_images, offline_texts).float(),
            derived_pair=model.score_pairs(derived_images, derived_texts).float(),
        )
        scores = model.score_matrix(images, texts).float()  # [B, B]
        mask = same_image_mask(batch, settings.mask_same_image)
        loss, names = _VARIANTS[settings.variant]
        options = {option: getattr(settings, name) for option, name in names.items()}
        margins = settings.margin_online, settings.margin_offline
        matching = loss(scores, offline, *margins, not_negative=mask, **options)
        return {"aoq": matching, **auxiliary_terms(model, images, text_batch, settings.auxiliary_weight)}


def _warm_up_settings(settings: Aoq) -> Triplet:
    return Triplet(
        margin=settings.margin_online,
        auxiliary_weight=settings.auxiliary_weight,
        mask_same_image=settings.mask_same_image,
        sum_epochs=settings.sum_epochs,
    )


def _offline_triplet_loss(scores: Tensor, offline: OfflineScores, *margins: Any, **options: Any) -> Tensor:
    return offline_triplet_loss(scores, *offline[:2], *margins, **options)


_VARIANTS: dict[str, tuple[Callable[..., Tensor], dict[str, str]]] = {
    "offline-triplet": (_offline_triplet_loss, {"online_term": "online_term"}),
    "quintuplet": (offline_quintuplet_loss, {"online_term": "online_term", "pairs": "quintuplet_pairs"}),
    "adaptive-quintuplet": (
        adaptive_offline_quintuplet_loss,
        {"alpha": "alpha", "beta": "beta", "weight_by": "weight_by"},
    ),
}
"""Eq. 3, 4 and 5: the loss, and its options with the settings that they are."""


def build(settings: Aoq, data: PairSource, lists: Mapping[str, np.ndarray]) -> AoqMethod:
    """Makes the method.

    Args:
        settings: see `Aoq`.
        data: the training set.
        lists: `texts_for_images` [N, K1] and `images_for_texts` [T, K2], from `itrpipe mine-negatives`; where it
            guarded, the probabilities of the candidates under the same names with `PROBABILITY_OF` before them.

    Raises:
        UsageError: the settings ask for these probabilities and there are none.
    """
    negatives = OfflineNegatives(
        lists["texts_for_images"],
        lists["images_for_texts"],
        data.caption_image,
        top_texts=settings.top_texts,
        top_images=settings.top_images,
        coupled=settings.coupled,
        redraw=settings.redraw,
        guard=_guard(settings, lists),
    )
    return AoqMethod(settings, data, negatives)


def _guard(settings: Aoq, lists: Mapping[str, np.ndarray]) -> FalseNegativeGuard | None:
    if settings.false_negatives == "keep":
        return None
    names = [f"{PROBABILITY_OF}{direction}" for direction in ("texts_for_images", "images_for_texts")]
    if not lists.keys() >= set(names):
        raise UsageError(
            f"loss.false_negatives = {settings.false_negatives} needs lists that say how likely each candidate is a "
            "false negative; mine them with `itrpipe mine-negatives --guard fne`"
        )
    drop_above = settings.drop_above if settings.false_negatives == "drop" else None
    return FalseNegativeGuard(lists[names[0]], lists[names[1]], drop_above)
