"""Settings of AsCL."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from itrpipe.methods.declaration import MethodSettings
from itrpipe.papers import ASCL


class Ascl(MethodSettings):
    """Contrastive training with generated positives and negatives. Source: AsCL (Gong, Mai and Huang), II-B and II-D.

    Attributes:
        contrastive: the loss of Eq. 5 to 7; off, the triplet loss of Table II with the hardest negatives.
        temperature: t of the contrastive loss.
        margin: of the triplet loss.
        noise: what makes negatives of captions (Asymmetry-I): one kind, or for each caption one of them (`mixture`);
            `none` makes no negatives ("w/o Neg").
        shuffle_at: words are shuffled before the text encoder (`input`), or after it (`states`), where it changes no
            score.
        positives: what makes positives of captions: `joined` with another of the image (Asymmetry-II), `shortened`
            (Asymmetry-III), or for each caption one of both (`either`); `none` makes no positives ("w/o Pos").
        mask_same_image: do not count two captions of one image as each other's negatives.
        max_tokens: longest caption that joining makes, start and end included.
    """

    papers = (ASCL,)
    only_backbone = "ascl"

    mask_same_image: bool = True
    contrastive: bool = True
    temperature: PositiveFloat = 0.05
    margin: NonNegativeFloat = 0.2
    noise: Literal["mixture", "gaussian", "shuffle", "cutoff", "dropout", "none"] = "mixture"
    shuffle_at: Literal["input", "states"] = "input"
    positives: Literal["either", "joined", "shortened", "none"] = "either"
    max_tokens: int = Field(default=62, ge=3, le=65_536)
