"""Round one: the triplet loss with the negatives of the batch.

Source: VSE++ (Faghri et al., BMVC 2018); AOQ (Chen et al., ECCV 2020), Eq. 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.triplet import triplet_loss
from itrpipe.methods.base import Batch, PairSource, auxiliary_terms, same_image_mask
from itrpipe.methods.settings import Triplet
from itrpipe.models.base import Matcher


class TripletMethod:
    """Scores every image of the batch with every caption of it.

    Args:
        settings: margin and choice of negatives.
        data: the training set.
    """

    means = False

    def __init__(self, settings: Triplet, data: PairSource) -> None:
        self._settings, self._data = settings, data

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """The captions and their images."""
        images = self._data.caption_image[captions]
        return Batch({"positive": self._data.pairs(images, captions, rng)}, torch.from_numpy(images))

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """`triplet` (Eq. 1 or 2, summed over the batch) and the backbone's `auxiliary` loss."""
        settings = self._settings
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        scores = model.score_matrix(images, texts).float()  # [B, B]
        matching = triplet_loss(
            scores,
            margin=settings.margin,
            max_violation=settings.max_violation and epoch >= settings.sum_epochs,
            not_negative=same_image_mask(batch, settings.mask_same_image),
        )
        return {"triplet": matching, **auxiliary_terms(model, images, text_batch, settings.auxiliary_weight)}


def build(settings: Triplet, data: PairSource, lists: Mapping[str, np.ndarray]) -> TripletMethod:
    """Makes the method; it reads no mined lists."""
    return TripletMethod(settings, data)
