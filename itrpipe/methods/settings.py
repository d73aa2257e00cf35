"""Settings of the methods, one class per method file: `aoq.py` is configured by `Aoq`.

Kept apart from the methods so that a configuration can be read and checked without importing torch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from itrpipe.config import Settings


class MethodSettings(Settings):
    """Settings that every method has.

    Attributes:
        auxiliary_weight: weight of the backbone's own loss, such as VSRN's captioning loss.
        mask_same_image: do not count two captions of one image as each other's negatives.
        sum_epochs: train the first so many epochs with all negatives of the batch (AOQ Eq. 1) instead, which
            keeps the hardest-negative loss off its plateau at twice the margin; VSE-infinity does so for one epoch.
    """

    auxiliary_weight: float = Field(default=1.0, ge=0)
    mask_same_image: bool = False
    sum_epochs: int = Field(default=0, ge=0)


class Triplet(MethodSettings):
    """Online triplet loss. Source: VSE++ (Faghri et al., BMVC 2018); AOQ Eq. 1 and 2.

    Attributes:
        margin: gamma.
        max_violation: hardest negative of the batch only (Eq. 2), else all of them (Eq. 1).
    """

    margin: float = Field(default=0.2, ge=0)
    max_violation: bool = True


class Aoq(MethodSettings):
    """Adaptive offline quintuplet loss. Source: AOQ (Chen et al., ECCV 2020), Eq. 3 to 5.

    Attributes:
        variant: `adaptive-quintuplet` (Eq. 5), `quintuplet` (Eq. 4) or `offline-triplet` (Eq. 3).
        online_term: count the in-batch negatives too; not with Eq. 5, which weighs them.
        quintuplet_pairs: make the last two pairs of Eq. 4 of `offline` or of `online` negatives.
        weight_by: whose score the weights of Eq. 5 compare in-batch negatives with, `offline` or `positive`.
        margin_online: gamma_1.
        margin_offline: gamma_2.
        alpha, beta: slope and offset of the adaptive weights.
        top_texts, top_images: negatives are drawn among the first so many of the mined lists.
        coupled: tie the image's rank to the text's, as the released code does.
        redraw: draw again while the drawn text describes the drawn image, as the paper says.
        teacher: backbone whose round one is mined; None for the model's own.
    """

    variant: Literal["adaptive-quintuplet", "quintuplet", "offline-triplet"] = "adaptive-quintuplet"
    online_term: bool = True
    quintuplet_pairs: Literal["offline", "online"] = "offline"
    weight_by: Literal["offline", "positive"] = "offline"
    margin_online: float = Field(default=0.2, ge=0)
    margin_offline: float = Field(default=0.0, ge=0)
    alpha: float = Field(default=0.3, gt=0)
    beta: float = 1.5
    top_texts: int = Field(default=300, ge=1)
    top_images: int = Field(default=60, ge=1)
    coupled: bool = False
    redraw: bool = True
    teacher: str | None = None

    @model_validator(mode="after")
    def _coupled_ranks_fit(self) -> Aoq:
        if self.coupled and self.top_images > self.top_texts:
            raise ValueError("coupled ranks need top_images <= top_texts")
        return self

    @model_validator(mode="after")
    def _options_are_read(self) -> Aoq:
        for option, usual, variants in (
            ("online_term", True, ("offline-triplet", "quintuplet")),
            ("quintuplet_pairs", "offline", ("quintuplet",)),
            ("weight_by", "offline", ("adaptive-quintuplet",)),
        ):
            value = getattr(self, option)
            if value != usual and self.variant not in variants:
                raise ValueError(f"{option} = {value} is an option of variant {' and '.join(variants)} only")
        return self


class Ssamt(MethodSettings):
    """Multi-grained supervision with phrase labels. Source: SSAMT (Fan et al., 2021).

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
    top_k: int = Field(default=10, ge=1)
    label_stopwords: Literal["keep", "drop"] = "keep"


def methods() -> dict[str, type[MethodSettings]]:
    """Method name (file stem, with hyphens) -> its settings class."""
    return {kind.__name__.lower(): kind for kind in MethodSettings.__subclasses__()}
