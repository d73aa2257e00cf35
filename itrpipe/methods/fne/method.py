"""False-negative elimination: negatives drawn from the batch and a momentum memory, likely matches less often.

The loss is `itrpipe.losses.FneLoss`; the embeddings that enter its memory are those by a momentum copy of the model.
The first epochs are the plain triplet loss of the batch, as in the released code.

Source: FNE (Li et al., ACM MM 2023), section 3; its released code for what the settings call so.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.fne import SamplingRules
from itrpipe.losses.fne_loss import FneLoss
from itrpipe.losses.triplet import triplet_loss
from itrpipe.methods.base import Batch, PairSource, auxiliary_terms, positive_pairs, same_image_mask
from itrpipe.methods.fne.declaration import Fne
from itrpipe.models.base import DualEncoder, inner_products
from itrpipe.negatives.memory import MomentumTwin


class FneState(FneLoss):
    """The loss, with all that the method keeps between steps.

    Attributes:
        twin: the momentum copy, or None.
    """

    def __init__(self, settings: Fne, model: DualEncoder, width: int) -> None:
        super().__init__(
            width,
            margin=settings.margin,
            memory_size=settings.memory_size,
            rules=sampling_rules(settings),
            candidates=settings.candidates,
            mask_unfilled=settings.mask_unfilled,
            negative_source=settings.negative_source,
            ties=settings.ties,
            mask_same_image=settings.mask_same_image,
        )
        self.twin = MomentumTwin(model, settings.momentum, settings.momentum_eval) if settings.momentum_twin else None


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
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        # 1 / p - 1 = 9,999 and P > 0.001 need single precision.
        image, text = images.embedding.float(), texts.embedding.float()  # [B, D]
        if epoch < settings.first_epochs():
            mask, size = same_image_mask(batch, settings.mask_same_image), len(batch.images)
            hardest = epoch >= settings.sum_epochs
            found = {"triplet": triplet_loss(inner_products(image, text), settings.margin, hardest, mask) / size}
        else:
            slow = (None, None) if state.twin is None else state.twin.encode(image_batch, text_batch)
            found = {"fne": state(image, text, batch.images, *slow, report=batch.statistics)}
        return found | auxiliary_terms(model, images, text_batch, settings.auxiliary_weight / len(batch.images))


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
