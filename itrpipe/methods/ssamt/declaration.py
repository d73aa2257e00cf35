"""Settings of SSAMT."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from itrpipe.methods.declaration import Count, FirstEpochs
from itrpipe.papers import SSAMT


class Ssamt(FirstEpochs):
    """Multi-grained supervision with phrase labels. Source: SSAMT (Fan et al., ICMR 2022).

    Attributes:
        phase: `intra` trains each side alone with L0; `inter` trains pairs with L1 to L3 on top of that, frozen.
        margin_intra, margin_global, margin_local, margin_phrase: alpha_0 to alpha_3.
        weight_global, weight_local, weight_phrase: lambda_1 to lambda_3.
        negatives: which negative of the batch, by the scores of phase `intra`: the `hardest`, one drawn by `softmax`
            of the scores, or one of the `top-k` at random.
        temperature: of `softmax`.
        top_k: of `top-k`.
        mask_same_image: do not count two captions of one image as each other's negatives.
        label_stopwords: whether words outside every phrase take part in the phrase loss.
    """

    papers = (SSAMT,)
    only_backbone = "ssamt"

    mask_same_image: bool = True
    phase: Literal["intra", "inter"] = "inter"
    margin_intra: NonNegativeFloat = 0.05
    margin_global: NonNegativeFloat = 0.05
    margin_local: NonNegativeFloat = 0.05
    margin_phrase: NonNegativeFloat = 0.1
    weight_global: NonNegativeFloat = 1.0
    weight_local: NonNegativeFloat = 0.1
    weight_phrase: NonNegativeFloat = 0.1
    negatives: Literal["hardest", "softmax", "top-k"] = "hardest"
    temperature: PositiveFloat = 0.05
    top_k: Count = 10
    label_stopwords: Literal["keep", "drop"] = "keep"

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of the other phase."""
        if self.phase == "inter":
            return "sum_epochs", "margin_intra"
        return (
            "margin_global",
            "margin_local",
            "margin_phrase",
            "weight_global",
            "weight_local",
            "weight_phrase",
            "negatives",
            "temperature",
            "top_k",
            "label_stopwords",
        )
