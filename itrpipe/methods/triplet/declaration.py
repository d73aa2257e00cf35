"""Settings of the online triplet loss."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat

from itrpipe.methods.declaration import AuxiliaryLoss, CountOrNone, FirstEpochs, SameImageMask, WithTwins
from itrpipe.papers import ASCL, VSE_C, VSEPP, Paper


class Triplet(WithTwins, FirstEpochs, SameImageMask, AuxiliaryLoss):
    """Online triplet loss. Source: VSE++ (Faghri et al., BMVC 2018); AOQ Eq. 1 and 2.

    Attributes:
        margin: gamma.
        max_violation: hardest negative of the batch only (Eq. 2), else all of them (Eq. 1).
        synthetic_sentences: sentences of `itrpipe synthesize` drawn for each caption, as further negatives of its
            image; 0: none.
        synthetic_weight: of the loss with the hardest of these.
        generated_positives: a second caption of every pair is made of the image's own: `joined` with another of them
            (AsCL's Asymmetry-II), `shortened` (Asymmetry-III), or for each one of both (`either`); the loss is then
            half that of the captions and half that of these (AsCL Eq. 7). `none` makes none.
    """

    papers = (VSEPP,)

    margin: NonNegativeFloat = 0.2
    max_violation: bool = True
    synthetic_sentences: CountOrNone = 0
    synthetic_weight: NonNegativeFloat = 1.0
    generated_positives: Literal["none", "joined", "shortened", "either"] = "none"

    def cited(self) -> tuple[Paper, ...]:
        """Return also the papers that further negatives and positives come from."""
        papers = [*self.papers]
        if self.synthetic_sentences:
            papers.append(VSE_C)
        if self.generated_positives != "none":
            papers.append(ASCL)
        return tuple(papers)

    def reads_sentences(self) -> bool:
        """Return whether sentences or twins are drawn."""
        return super().reads_sentences() or self.synthetic_sentences > 0
