"""TAGS-DC: the sentences of TAGS, and which of their words are wrong (L_WoD) and what should stand there (L_WoC).

Both are read from the pass that ranks the sentences.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022, section 2.4.

Shapes: B captions, n sentences of all, W tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from itrpipe.methods.base import OwnedTexts
from itrpipe.methods.pretrain.method import mean_over_captions, word_loss
from itrpipe.methods.tags.method import TagsBatch, TagsMethod
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.models.uniter.network import UniterEncoder

SMALLEST = 1e-10
"""Probabilities are not taken for less before their logarithm."""


def discrimination_loss(
    logits: Tensor,
    equal: Tensor,
    owners: Tensor,
    count: int,
    match_weight: float,
) -> Tensor:
    """Compute the loss of telling which words of synthetic sentences are those of their captions:

        L_WoD = mean -w_y log p(y),   y = 1 where the words are equal, else 0

    w_0 is 1. The mean is over the words and not divided by their weights.

    Args:
        logits: [M, 2] of the words of all sentences; 1 is a word of the caption.
        equal: bool [M], which words are those of the captions.
        owners: [M] int64, caption of each.
        count: of the captions.
        match_weight: w_1.

    References:
        TAGS-DC, Eq. 8, which has no weights.
    """
    probabilities = logits.float().softmax(dim=1)
    labels = equal.long()[:, None]
    of_label = probabilities.gather(1, labels)[:, 0]
    weights = torch.where(equal, match_weight, 1.0)
    losses = weights * -of_label.clamp(min=SMALLEST).log()
    return mean_over_captions(losses, owners, count)


class TagsDcMethod(TagsMethod[TagsDc]):
    """Trains with hard negatives, sentences, and their words.

    Raises:
        UsageError: the training set is too small for so many hard negatives.
    """

    reads_words = True

    def word_terms(
        self,
        model: UniterEncoder,
        batch: TagsBatch,
        sentences: OwnedTexts,
        states: Tensor,
    ) -> dict[str, Tensor]:
        """Return `discrimination` and `correction` with their weights; see `TagsMethod.word_terms`.

        Words are judged at all positions. They are corrected at those that had been labelled when the sentence was
        made, also where the draw was the caption's own word, or at all (`correct`): the paper reads as all, its code
        takes the first. L_WoC is mean -log p(s_j | I, T_t), s_j being the word of the caption (Eq. 9).
        """
        assert batch.masked is not None
        assert sentences.masked is not None
        settings = self.settings
        count = len(batch.images)
        owners = sentences.owners
        tokens = sentences.texts.tokens
        place = torch.arange(tokens.shape[1], device=tokens.device)
        end = sentences.texts.lengths[:, None]
        inner = (place >= 1) & (place < end - 1)  # [n, W]
        judged = inner
        if settings.count_ends:
            judged = place < end
        corrected = sentences.masked
        if settings.correct == "all":
            corrected = inner

        originals = batch.masked.captions.tokens[owners]
        judged_owners = owners[judged.nonzero()[:, 0]]
        corrected_owners = owners[corrected.nonzero()[:, 0]]
        matches = model.word_match_logits(states[judged])
        words = model.correction_logits(states[corrected])
        equal = (tokens == originals)[judged]
        targets = originals[corrected]
        discrimination = discrimination_loss(
            matches,
            equal,
            judged_owners,
            count,
            settings.match_weight,
        )
        correction = word_loss(words, targets, corrected_owners, count)

        right = (matches.argmax(dim=1) == 1) == equal
        wrong = tokens[corrected] != targets
        batch.statistics |= {
            "discrimination_accuracy": _share(right, torch.ones_like(equal)),
            "accuracy_of_right_words": _share(right, equal),
            "accuracy_of_wrong_words": _share(right, ~equal),
            "correction_accuracy": _share(words.argmax(dim=1) == targets, wrong),
        }
        return {
            "discrimination": settings.weight_discrimination * discrimination,
            "correction": settings.weight_correction * correction,
        }


def _share(right: Tensor, among: Tensor) -> Tensor:
    """Return the share of the right ones among some; 0 where there are none."""
    count = among.sum().clamp(min=1)
    return (right & among).sum() / count


build = TagsDcMethod
