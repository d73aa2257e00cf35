"""Settings of the pretraining of UNITER."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat

from itrpipe.methods.declaration import Count, Masked, MasksCaptions
from itrpipe.papers import UNITER


class Pretrain(MasksCaptions):
    """Masked words and matching, which UNITER is pretrained with. Source: UNITER (Chen et al., ECCV 2020), §3.2.

    Attributes:
        negatives: images drawn for each caption that are not its own.
        mask: what is masked together: single `words`, or the `phrases` of the scene graph.
        noise: put random words at 10 % of the masked positions and leave 10 % as they are.
        weight_words: of the loss of masked words.
        weight_matching: of the loss of matching.
    """

    papers = (UNITER,)
    only_backbone = "uniter"

    negatives: Count = 1
    mask: Literal["words", "phrases"] = "words"
    noise: bool = True
    weight_words: NonNegativeFloat = 1.0
    weight_matching: NonNegativeFloat = 1.0

    def masked(self) -> Masked:
        """Return that all captions are masked."""
        return Masked(self.mask, "off")
