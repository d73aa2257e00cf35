"""Settings of AOQ."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from itrpipe.methods.declaration import AuxiliaryLoss, Count, FirstEpochs, Mined, ReadsLists, SameImageMask
from itrpipe.papers import AOQ, FNE, Paper

_READ_BY = {
    "online_term": ("offline-triplet", "quintuplet"),
    "quintuplet_pairs": ("quintuplet",),
    "weight_by": ("adaptive-quintuplet",),
}
"""Option -> the variants that read it."""


class Aoq(ReadsLists, FirstEpochs, SameImageMask, AuxiliaryLoss):
    """Adaptive offline quintuplet loss. Source: AOQ (Chen et al., ECCV 2020), Eq. 3 to 5.

    Attributes:
        variant: `adaptive-quintuplet` (Eq. 5), `quintuplet` (Eq. 4) or `offline-triplet` (Eq. 3).
        online_term: count the in-batch negatives too; Eq. 5 cannot do without.
        quintuplet_pairs: build c and d of Eq. 4 from `offline` or from `online` negatives.
        weight_by: whose score the weights of Eq. 5 compare in-batch negatives with, `offline` or `positive`.
        margin_online: gamma_1.
        margin_offline: gamma_2.
        alpha, beta: slope and offset of the adaptive weights.
        top_texts, top_images: draw from the first so many entries of each mined list.
        coupled: tie the image's rank to the text's, as the released code does, with `redraw = false`; a redrawn
            text has a rank of its own.
        redraw: draw the text again while it describes the drawn image (paper: draw both again; released code: neither).
        teacher: backbone, or method, whose model mines; None: the model's own backbone, or VSRN where the backbone
            scores pairs.
        false_negatives: candidates that mining took for false negatives (`--guard fne`) are drawn like others (`keep`),
            with weight 1 - P (`weigh`), or not at all where P is above `drop_above` (`drop`; those further down the
            list then move up).
        drop_above: probability of `drop`.

    Inherited: `sum_epochs`, `mask_same_image`, `auxiliary_weight`.
    """

    papers = (AOQ,)
    negatives_follow = True

    variant: Literal["adaptive-quintuplet", "quintuplet", "offline-triplet"] = "adaptive-quintuplet"
    online_term: bool = True
    quintuplet_pairs: Literal["offline", "online"] = "offline"
    weight_by: Literal["offline", "positive"] = "offline"
    margin_online: NonNegativeFloat = 0.2
    margin_offline: NonNegativeFloat = 0.0
    alpha: PositiveFloat = 0.3
    beta: float = 1.5
    top_texts: Count = 300
    top_images: Count = 60
    coupled: bool = False
    redraw: bool = True
    teacher: str | None = None
    false_negatives: Literal["keep", "weigh", "drop"] = "keep"
    drop_above: float = Field(default=0.5, ge=0, le=1)

    def cited(self) -> tuple[Paper, ...]:
        """Return FNE too, if its probabilities filter the lists."""
        return (*self.papers, FNE) if self.false_negatives != "keep" else self.papers

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of other variants."""
        return tuple(option for option, variants in _READ_BY.items() if self.variant not in variants)

    def mined(self) -> Mined:
        """Return the lists of the teacher."""
        return Mined(self.teacher, guard="" if self.false_negatives == "keep" else "fne")

    @model_validator(mode="after")
    def _coupled_ranks_fit(self) -> Aoq:
        if self.coupled and self.top_images > self.top_texts:
            raise ValueError("coupled ranks need top_images <= top_texts")
        if self.coupled and self.false_negatives == "weigh":
            raise ValueError("coupled leaves no rank of images to weigh; give --set loss.false_negatives=drop")
        return self
