"""Settings of matching with hard negatives."""

from __future__ import annotations

from pydantic import NonNegativeFloat, model_validator

from itrpipe.methods.declaration import Count, FirstEpochs, WithTwins
from itrpipe.papers import UNITER


class HardNegatives(FirstEpochs):
    """The hardest of sampled negatives, in both directions.

    Attributes:
        margin: of the hinge between the sigmoids of two scores.
        sampled_negatives: images drawn for each caption, and captions for each image, that do not belong to it.
        hard_negatives: how many of them, those with the highest scores, it is trained with; in the first `sum_epochs`
            epochs the first drawn instead.
    """

    papers = (UNITER,)
    only_backbone = "uniter"

    margin: NonNegativeFloat = 0.2
    sampled_negatives: Count = 399
    hard_negatives: Count = 31

    @model_validator(mode="after")
    def _enough_are_sampled(self) -> HardNegatives:
        if self.hard_negatives > self.sampled_negatives:
            raise ValueError(
                f"hard_negatives = {self.hard_negatives} are to be found among sampled_negatives = "
                f"{self.sampled_negatives}; raise those or lower these"
            )
        return self


class Itm(WithTwins, HardNegatives):
    """Image-text matching with the hardest of sampled negatives. Source: UNITER (Chen et al., ECCV 2020), appendix."""
