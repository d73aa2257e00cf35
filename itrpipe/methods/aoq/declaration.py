"""Settings of AOQ."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from itrpipe.methods.declaration import AuxiliaryLoss, Count, FirstEpochs, Mined, ReadsLists, SameImageMask
from itrpipe.papers import AOQ, Paper

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

    Inherited: `sum_epochs`, `mask_same_image`, `auxiliary_weight`, and `judged` with its options. `weigh` draws mined
    candidates with weight 1 - P, and keeps negatives of the batch with that probability. `soft` makes the margins of
    a, b and negatives of the batch (1 - P) of what they are; c and d of mined candidates keep theirs, since no list
    need hold these pairs.
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

    def cited(self) -> tuple[Paper, ...]:
        """Return the papers of judges too."""
        return (*self.papers, *self.judges_cited())

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of other variants, and of judges that are not asked."""
        unused = [option for option, variants in _READ_BY.items() if self.variant not in variants]
        return (*unused, *super().unused_options())

    def mined(self) -> Mined:
        """Return the lists of the teacher."""
        return Mined(self.teacher, self.judges_asked())

    @model_validator(mode="after")
    def _coupled_ranks_fit(self) -> Aoq:
        if self.coupled and self.top_images > self.top_texts:
            raise ValueError("coupled ranks need top_images <= top_texts")
        if self.coupled and self.judged == "weigh":
            raise ValueError("coupled leaves no rank of images to weigh; give --set loss.judged=drop")
        return self
