"""What SSAMT declares."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from itrpipe.methods.declaration import MOST, FirstEpochs
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
    margin_intra: float = Field(default=0.05, ge=0)
    margin_global: float = Field(default=0.05, ge=0)
    margin_local: float = Field(default=0.05, ge=0)
    margin_phrase: float = Field(default=0.1, ge=0)
    weight_global: float = Field(default=1.0, ge=0)
    weight_local: float = Field(default=0.1, ge=0)
    weight_phrase: float = Field(default=0.1, ge=0)
    negatives: Literal["hardest", "softmax", "top-k"] = "hardest"
    temperature: float = Field(default=0.05, gt=0)
    top_k: int = Field(default=10, ge=1, le=MOST)
    label_stopwords: Literal["keep", "drop"] = "keep"

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of the other phase."""
        if self.phase == "inter":
            return "sum_epochs", "margin_intra"
        margins = ("margin_global", "margin_local", "margin_phrase")
        weights = ("weight_global", "weight_local", "weight_phrase")
        return (*margins, *weights, "negatives", "temperature", "top_k", "label_stopwords")

    @model_validator(mode="after")
    def _is_of_one_phase(self) -> Ssamt:
        self.refuse_unused()
        return self
