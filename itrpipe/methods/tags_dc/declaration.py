"""Settings of TAGS-DC."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, model_validator

from itrpipe.methods.tags.declaration import Tags


class TagsDc(Tags):
    """TAGS with discrimination and correction of the sentences' words. Source: TAGS-DC, section 2.4; its released code.

    Attributes:
        weight_discrimination: lambda_WoD.
        weight_correction: lambda_WoC.
        match_weight: of the words of a sentence that are its caption's, in the loss of discrimination; the others
            count 1 (released code).
        count_ends: count start and end of a sentence as words (released code).
        correct: at which words: those `masked` when the sentence was written (released code), or `all`.
    """

    heads = frozenset({"word_match", "correction"})
    answers = frozenset({"words"})

    weight_discrimination: NonNegativeFloat = 1e-3
    weight_correction: NonNegativeFloat = 1e-3
    match_weight: NonNegativeFloat = 0.11
    count_ends: bool = True
    correct: Literal["masked", "all"] = "masked"

    @model_validator(mode="after")
    def _sentences_word_by_word(self) -> TagsDc:
        if self.generator == "bank":
            raise ValueError(
                "generator = bank keeps sentences without saying which of their tokens were masked, which "
                "discrimination and correction need; use method tags, or another generator"
            )
        return self
