"""TAGS-DC: the sentences of TAGS, and which of their words are wrong (L_WoD) and what should stand there (L_WoC).

Both are read from the pass that ranks the sentences.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022, section 2.4.

Shapes: B captions, n sentences of all, W tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from itrpipe.losses.tags import MISMATCH_WEIGHT, correction_loss, discrimination_loss, text_positions
from itrpipe.methods.tags.method import Sentences, TagsBatch, TagsMethod, TagsSource
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.models.uniter.network import UniterEncoder, UniterImages


class TagsDcMethod(TagsMethod):
    """Trains with hard negatives, sentences, and their words.

    Args:
        settings: of all three.
        data: the training set.

    Raises:
        UsageError: the training set is too small for so many hard negatives.
    """

    def __init__(self, settings: TagsDc, data: TagsSource) -> None:
        super().__init__(settings, data)
        self._words = settings

    def sentence_terms(
        self, model: UniterEncoder, images: UniterImages, batch: TagsBatch, made: Sentences, positive: Tensor
    ) -> dict[str, Tensor]:
        """`sentences`, `discrimination` and `correction` with their weights; see `TagsMethod.sentence_terms`."""
        assert batch.masked is not None
        settings, count = self._words, len(positive)
        tokens = made.texts.tokens
        states = self.read_sentences(model, images, made, tokens.shape[1])
        terms = self.ranking_of_sentences(model.rank_score(states[:, 0]), batch, made, positive)
        originals = batch.masked.captions.tokens[made.owners]
        judged, corrected = self._read_words(made)
        judged_owners, corrected_owners = (made.owners[where.nonzero()[:, 0]] for where in (judged, corrected))
        matches, words = model.word_match_logits(states[judged]), model.correction_logits(states[corrected])
        weights = (MISMATCH_WEIGHT, settings.match_weight)
        found = discrimination_loss(matches, tokens[judged], originals[judged], judged_owners, count, weights)
        mended = correction_loss(words, originals[corrected], corrected_owners, count)
        batch.statistics |= _discrimination_accuracy(matches, (tokens == originals)[judged])
        wrong = (tokens != originals)[corrected]
        batch.statistics["correction_accuracy"] = _share(words.argmax(dim=1) == originals[corrected], wrong)
        return {
            **terms,
            "discrimination": settings.weight_discrimination * found,
            "correction": settings.weight_correction * mended,
        }

    def _read_words(self, made: Sentences) -> tuple[Tensor, Tensor]:
        """Tokens bool [n, W] that are judged, and those that are corrected."""
        lengths, width = made.texts.lengths, made.texts.tokens.shape[1]
        judged = text_positions(lengths, width, self._words.count_ends)
        if self._words.correct == "all":
            return judged, text_positions(lengths, width, False)
        assert made.masked is not None
        return judged, made.masked


def _discrimination_accuracy(logits: Tensor, equal: Tensor) -> dict[str, Tensor]:
    """How often a word is judged rightly: of all, of the caption's and of the wrong ones."""
    right = (logits.argmax(dim=1) == 1) == equal
    everywhere = torch.ones_like(equal)
    return {
        "discrimination_accuracy": _share(right, everywhere),
        "accuracy_of_right_words": _share(right, equal),
        "accuracy_of_wrong_words": _share(right, ~equal),
    }


def _share(right: Tensor, among: Tensor) -> Tensor:
    """Share of the right ones among some; 0 where there are none."""
    return (right & among).sum() / among.sum().clamp(min=1)


def build(settings: TagsDc, data: TagsSource, lists: Mapping[str, np.ndarray]) -> TagsDcMethod:
    """Makes the method; it reads no mined lists.

    Raises:
        UsageError: the training set is too small for so many hard negatives.
    """
    return TagsDcMethod(settings, data)
