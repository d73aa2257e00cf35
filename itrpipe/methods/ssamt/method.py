"""Multi-grained supervision: whole pairs, their fragments, and phrases that hold for an image or do not.

Phase `intra` trains the encoders of the two sides with the hardest negatives of the batch (L0, the triplet loss of
both directions as a mean over the batch). Phase `inter` picks for every positive pair (i, i) a negative caption j and a
negative image k by the scores of that model, which is frozen now, and sends the pairs (i, i), (i, j) and (k, i) through
the inter encoder:

    L = lambda_1 L1 (pairs) + lambda_2 L2 (fragments) + lambda_3 L3 (phrases of the two negative pairs)

Which phrases and words of a caption hold for an image is told by the image's own captions, see
`itrpipe.scene_graph.phrases`.

Source: SSAMT (Fan et al., ICMR 2022), sections on training objectives and training.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from itrpipe.learning.losses import excluded_pairs, hinge, triplet_loss
from itrpipe.methods.base import Batch, Method, TrainingSet, encode_pairs, mean_of_chosen, same_image_mask
from itrpipe.methods.ssamt.declaration import Ssamt
from itrpipe.models.ssamt.network import Relevance, SsamtEncoder, SsamtTexts

Matching = Callable[[np.ndarray, np.ndarray, int, int], Tensor]
"""Image rows [n], caption rows [n], P and W -> bool [n, P + W], phrases and words of captions that hold for images."""


def two_way_loss(
    texts: tuple[Tensor, Tensor],
    images: tuple[Tensor, Tensor],
    margin: float,
) -> Tensor:
    """Compute the triplet loss of both directions, a mean over the batch:

        mean_i [margin - F(i,i) + F(i,j)]+ + [margin - G(i,i) + G(k,i)]+

    L1 takes for F and G the scores S of the inter encoder. L2 takes for F the mean cosine of an image with the
    fragments of a caption, phrases and words, and for G that of a caption with the regions of an image.

    Args:
        texts: [B] F of (i, i) and of (i, j).
        images: [B] G of (i, i) and of (k, i).
        margin: alpha_1 or alpha_2.

    References:
        SSAMT, L1^G and L2^L. L0^G is `triplet_loss` divided by the batch size.
    """
    hinges = hinge(*texts, margin) + hinge(*images, margin)
    return hinges.mean()


def phrase_loss(
    fragments: Tensor,
    matching: Tensor,
    real: Tensor,
    margin: float,
) -> Tensor:
    """Compute the triplet loss inside a negative pair, of phrases that hold for the image and those that do not:

        mean [margin - mean_{+} cos(h^I, H^T_k) + mean_{-} cos(h^I, H^T_k)]+

    A pair whose phrases and words are all of one sort is left out of the mean; if all pairs are, the loss is 0.

    Args:
        fragments: [N, M] cosine of each phrase or word with the image of its pair.
        matching: bool [N, M], those that hold for the image.
        real: bool [N, M], those that exist.
        margin: alpha_3.

    References:
        SSAMT, L3^P, one of its two terms; the paper does not say what happens to empty sets.
    """
    holds = matching & real
    fails = ~matching & real
    live = holds.any(dim=1) & fails.any(dim=1)
    violation = hinge(mean_of_chosen(fragments, holds), mean_of_chosen(fragments, fails), margin)
    total = torch.where(live, violation, 0.0).sum()
    return total / live.sum().clamp(min=1)


class SsamtMethod(Method[Ssamt]):
    """Trains one of the two phases."""

    def __init__(self, settings: Ssamt, data: TrainingSet, matching: Matching) -> None:
        super().__init__(settings, data)
        self._matching = matching

    def losses(
        self,
        model: SsamtEncoder,
        batch: Batch,
        epoch: int,
    ) -> dict[str, Tensor]:
        """Return `intra` (L0), or `global`, `local` and `phrase` (L1, L2, L3) with their weights."""
        settings = self.settings
        images, texts = encode_pairs(model, batch.pairs["positive"])
        scores = model.intra_matrix(images, texts).float()  # [B, B]
        mask = same_image_mask(batch, settings.mask_same_image)
        if settings.phase == "intra":
            hardest = epoch >= settings.sum_epochs
            loss = triplet_loss(scores, settings.margin_intra, hardest, mask)
            return {"intra": loss / len(scores)}
        # Positions in the batch of a negative caption for each image, and of a negative image for each caption.
        excluded = excluded_pairs(scores, mask)
        candidates = scores.detach().masked_fill(excluded, float("-inf"))
        text = self._pick(candidates)
        image = self._pick(candidates.T)
        positive = model.relevance(images, texts)
        with_text = model.relevance(images, texts[text])
        with_image = model.relevance(images[image], texts)
        whole = two_way_loss(
            (positive.whole, with_text.whole),
            (positive.whole, with_image.whole),
            settings.margin_global,
        )
        fragments = two_way_loss(
            (positive.text_fragments, with_text.text_fragments),
            (positive.regions, with_image.regions),
            settings.margin_local,
        )
        terms = {
            "global": settings.weight_global * whole,
            "local": settings.weight_local * fragments,
        }
        if settings.weight_phrase:
            rows = np.arange(len(scores))
            of_texts = self._phrase_loss(
                batch,
                with_text,
                texts,
                rows,
                text.cpu().numpy(),
            )
            of_images = self._phrase_loss(
                batch,
                with_image,
                texts,
                image.cpu().numpy(),
                rows,
            )
            terms["phrase"] = settings.weight_phrase * (of_texts + of_images)
        return terms

    def _pick(self, candidates: Tensor) -> Tensor:
        """Pick a column for each row [B]; a row without candidates gets its own, where every hinge is constant."""
        settings = self.settings
        # A score that is NaN is drawn like any other; the loss shows it.
        candidates = candidates.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
        has_none = candidates.isneginf().all(dim=1, keepdim=True)
        diagonal_alone = torch.zeros_like(candidates).fill_diagonal_(1.0).log()
        candidates = torch.where(has_none, diagonal_alone, candidates)
        if settings.negatives == "hardest":
            return candidates.argmax(dim=1)
        if settings.negatives == "softmax":
            weights = (candidates / settings.temperature).softmax(dim=1)
            return torch.multinomial(weights, 1).squeeze(1)
        count = min(settings.top_k, candidates.shape[1])
        best = candidates.topk(count, dim=1)
        place = torch.multinomial(best.values.isfinite().float(), 1)
        return best.indices.gather(1, place).squeeze(1)

    def _phrase_loss(
        self,
        batch: Batch,
        pairs: Relevance,
        texts: SsamtTexts,
        images: np.ndarray,
        captions: np.ndarray,
    ) -> Tensor:
        """Compute L3 of pairs of the batch's images and captions at the given positions."""
        assert batch.captions is not None
        members = texts.phrase_tokens  # [B, P, W]
        _, phrases, words = members.shape
        image_rows = self.data.caption_image[batch.captions[images]]
        matching = self._matching(image_rows, batch.captions[captions], phrases, words)
        real = pairs.fragments_real
        if self.settings.label_stopwords == "drop":
            rows = torch.from_numpy(captions).to(members.device)
            is_in_phrase = members[rows].any(dim=1)
            every_phrase = torch.ones_like(real[:, :phrases])
            real = real & torch.cat([every_phrase, is_in_phrase], dim=1)
        return phrase_loss(
            pairs.fragments.float(),
            matching.to(members.device),
            real,
            self.settings.margin_phrase,
        )


build = SsamtMethod
