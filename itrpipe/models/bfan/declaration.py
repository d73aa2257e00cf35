"""What BFAN declares."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from itrpipe.models.declaration import PlacedRegionBackbone
from itrpipe.papers import BFAN, Paper


class Bfan(PlacedRegionBackbone):
    """BFAN: attention in both directions, on the relevant fragments only. Source: BFAN (Liu et al., ACM MM 2019)."""

    papers: ClassVar[tuple[Paper, ...]] = (BFAN,)
    embeds: ClassVar[bool] = False

    focal: Literal["equal", "prob"] = Field(
        default="equal",
        description="Fragments kept: weighing more than the plain mean (equal), or than a mean by confidence (prob).",
    )
    lambda_softmax: float = Field(default=20.0, gt=0.0, description="Inverse temperature of the attention.")
