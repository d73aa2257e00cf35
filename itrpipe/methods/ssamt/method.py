"""Multi-grained supervision: whole pairs, their fragments, and phrases that hold for an image or do not.

Phase `intra` trains the encoders of the two sides with the hardest negatives of the batch (L0, the triplet loss of
both directions as a mean over the batch). Phase `inter` picks for
every positive pair (i, i) a negative caption j and a negative image k by the scores of that model, which is frozen now,
and sends the pairs (i, i), (i, j) and (k, i) through the inter encoder:

    L = lambda_1 L1 (pairs) + lambda_2 L2 (fragments) + lambda_3 L3 (phrases of the two negative pairs)

Which phrases and words of a caption hold for an image is told by the image's own captions, see
`itrpipe.scene_graph.phrases`.

Source: SSAMT (Fan et al., ICMR 2022), sections on training objectives and training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.ssamt import fragment_loss, pair_loss, phrase_loss
from itrpipe.losses.triplet import excluded_pairs, triplet_loss
from itrpipe.methods.base import Batch, PairSource, same_image_mask
from itrpipe.methods.ssamt.declaration import Ssamt
from itrpipe.models.ssamt.network import Relevance, SsamtEncoder, SsamtTexts


class PhraseSource(PairSource, Protocol):
    """A training set that knows which phrases hold for an image."""

    def matching(self, images: np.ndarray, captions: np.ndarray, num_phrases: int, num_words: int) -> Tensor:
        """bool [N, P + W], phrases and words of caption n that hold for image n."""
        ...


class SsamtMethod:
    """Trains one of the two phases.

    Args:
        settings: phase, margins, weights and choice of negatives.
        data: the training set.
    """

    means = True

    def __init__(self, settings: Ssamt, data: PhraseSource) -> None:
        self._settings, self._data = settings, data

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """The captions and their images."""
        images = self._data.caption_image[captions]
        pairs = {"positive": self._data.pairs(images, captions, rng)}
        return Batch(pairs, torch.from_numpy(images), captions=captions)

    def losses(self, model: SsamtEncoder, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """`intra` (L0), or `global`, `local` and `phrase` (L1, L2, L3) with their weights."""
        settings = self._settings
        image_batch, text_batch = batch.pairs["positive"]
        images, texts = model.encode_images(image_batch), model.encode_texts(text_batch)
        scores = model.intra_matrix(images, texts).float()  # [B, B]
        mask = same_image_mask(batch, settings.mask_same_image)
        if settings.phase == "intra":
            hardest = epoch >= settings.sum_epochs
            return {"intra": triplet_loss(scores, settings.margin_intra, hardest, mask) / len(scores)}
        text, image = self._negatives(scores.detach(), mask)
        positive = model.relevance(images, texts)
        with_text, with_image = model.relevance(images, texts[text]), model.relevance(images[image], texts)
        found = {
            "global": settings.weight_global
            * pair_loss(positive.whole, with_text.whole, with_image.whole, settings.margin_global),
            "local": settings.weight_local
            * fragment_loss(
                positive.text_fragments,
                with_text.text_fragments,
                positive.regions,
                with_image.regions,
                settings.margin_local,
            ),
        }
        if settings.weight_phrase:
            rows = np.arange(len(scores))
            phrases = self._phrase_loss(batch, with_text, texts, rows, text.cpu().numpy())
            phrases = phrases + self._phrase_loss(batch, with_image, texts, image.cpu().numpy(), rows)
            found["phrase"] = settings.weight_phrase * phrases
        return found

    def _negatives(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Positions in the batch of a negative caption j for each image and a negative image k for each caption."""
        candidates = scores.masked_fill(excluded_pairs(scores, mask), float("-inf"))
        return self._pick(candidates), self._pick(candidates.T)

    def _pick(self, candidates: Tensor) -> Tensor:
        """One column for each row [B]; a row without candidates gets its own, where every hinge is constant."""
        settings = self._settings
        # A score that is NaN is drawn like any other; the loss shows it.
        candidates = candidates.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
        none = candidates.isneginf().all(dim=1)
        own = torch.zeros_like(candidates).fill_diagonal_(1.0).log()
        candidates = torch.where(none[:, None], own, candidates)
        if settings.negatives == "hardest":
            return candidates.argmax(dim=1)
        if settings.negatives == "softmax":
            return torch.multinomial((candidates / settings.temperature).softmax(dim=1), 1).squeeze(1)
        best = candidates.topk(min(settings.top_k, candidates.shape[1]), dim=1)
        place = torch.multinomial(best.values.isfinite().float(), 1)
        return best.indices.gather(1, place).squeeze(1)

    def _phrase_loss(
        self, batch: Batch, pairs: Relevance, texts: SsamtTexts, images: np.ndarray, captions: np.ndarray
    ) -> Tensor:
        """L3 of pairs of the batch's images and captions at the given positions."""
        assert batch.captions is not None
        members = texts.phrase_tokens  # [B, P, W]
        rows = self._data.caption_image[batch.captions[images]]
        matching = self._data.matching(rows, batch.captions[captions], *members.shape[1:]).to(members.device)
        real = pairs.fragments_real
        if self._settings.label_stopwords == "drop":
            inside = members[torch.from_numpy(captions).to(members.device)].any(dim=1)
            real = real & torch.cat([torch.ones_like(real[:, : members.shape[1]]), inside], dim=1)
        return phrase_loss(pairs.fragments.float(), matching, real, self._settings.margin_phrase)


def build(settings: Ssamt, data: PhraseSource, lists: Mapping[str, np.ndarray]) -> Any:
    """Makes the method; it reads no mined lists."""
    return SsamtMethod(settings, data)
