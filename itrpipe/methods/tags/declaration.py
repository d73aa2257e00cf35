"""Settings of TAGS."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from itrpipe.methods.declaration import Masked, MasksCaptions, ReadsSentences, Written
from itrpipe.methods.itm.declaration import HardNegatives
from itrpipe.papers import TAGS_DC


class Tags(ReadsSentences, MasksCaptions, HardNegatives):
    """Synthetic negative sentences beside hard negatives. Source: TAGS-DC (Fan et al., Findings of NAACL 2022).

    Attributes:
        generator: who writes the sentences: in every step the model itself (`dynamic`) or a frozen one (`static`,
            §3.2), or `itrpipe synthesize` before training (`bank`, ours). What is written in a step is ranked by the
            model in training; the sentences of the bank keep the order of the model that wrote them.
        writer: of `static`: configuration of `train` whose model writes.
        mask: what is masked together: `phrases` of the scene graph, or single `words`.
            This and what follows up to `compare` is about sentences that are written in the step.
        copies: K, masked copies of a caption.
        draws: L, refills of a copy.
        temperature: tau of the draws.
        noise: put random words at 10 % of the masked positions and leave 10 % as they are.
        exclude_specials: never draw start, end, padding, the unknown word or the mask.
        compare: the filter against false negatives compares token ids with the captions of the image (`piece`); `off`
            leaves it out.
        keep: m, sentences that a caption is trained with, the hardest.
        weight_words: lambda_MLM.
        weight_sentences: lambda_ISTM.
    """

    papers = (TAGS_DC,)

    generator: Literal["dynamic", "static", "bank"] = "dynamic"
    writer: str = ""
    mask: Literal["phrases", "words"] = "phrases"
    copies: Written = 20
    draws: Written = 20
    temperature: PositiveFloat = 1.5
    noise: bool = True
    exclude_specials: bool = True
    compare: Literal["piece", "off"] = "piece"
    keep: Written = 31
    weight_words: NonNegativeFloat = 0.1
    weight_sentences: NonNegativeFloat = 1e-3

    def masked(self) -> Masked | None:
        """Return how captions are masked where sentences are written in the step."""
        return None if self.reads_sentences() else Masked(self.mask, self.compare, self.writer)

    def reads_sentences(self) -> bool:
        """Return whether sentences are those of the bank."""
        return self.generator == "bank"

    @model_validator(mode="after")
    def _someone_writes(self) -> Tags:
        if self.generator == "bank" and self.weight_words:
            raise ValueError(
                f"weight_words = {self.weight_words} trains the model on masked words, and generator = bank has none; "
                "give --set loss.weight_words=0"
            )
        if (self.generator == "static") != bool(self.writer):
            raise ValueError(
                f"generator = {self.generator} and writer = {self.writer!r} do not go together: a static generator is "
                "the model of a configuration of train, such as --set loss.writer=pretrain, and no other has one"
            )
        return self
