"""What SSAMT declares."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from itrpipe.methods.declaration import MOST, MethodSettings
from itrpipe.papers import SSAMT


class Ssamt(MethodSettings):
    """Multi-grained supervision with phrase labels. Source: SSAMT (Fan et al., ICMR 2022).

    Attributes:
        phase: `intra` trains each side alone with L0; `inter` trains pairs with L1 to L3 on top of that, frozen.
        margin_intra, margin_global, margin_local, margin_phrase: alpha_0 to alpha_3.
        weight_global, weight_local, weight_phrase: lambda_1 to lambda_3.
        negatives: which negative of the batch, by the scores of phase `intra`: the `hardest`, one drawn by `softmax`
            of the scores, or one of the `top-k` at random.
        temperature: of `softmax`.
        top_k: of `top-k`.
        label_stopwords: whether words outside every phrase take part in the phrase loss.
    """

    papers = (SSAMT,)
    only_backbone = "ssamt"
    unread = ("auxiliary_weight",)

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

    def unread_options(self) -> tuple[str, ...]:
        """Also those of the other phase."""
        if self.phase == "inter":
            return (*self.unread, "sum_epochs", "margin_intra")
        of_inter = (name for name in Ssamt.model_fields if name.startswith(("margin_", "weight_")))
        others = ("negatives", "temperature", "top_k", "label_stopwords")
        return (*self.unread, *(name for name in of_inter if name != "margin_intra"), *others)
