"""Declaration of BFAN."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import PlacedRegionBackbone
from itrpipe.papers import BFAN


class Bfan(PlacedRegionBackbone):
    """BFAN: attention in both directions, on the relevant fragments only. Source: BFAN (Liu et al., ACM MM 2019).

    Attributes:
        focal: fragments kept: weighing more than the plain mean (equal), or than a mean by confidence (prob).
        lambda_softmax: inverse temperature of the attention.
    """

    papers = (BFAN,)
    embeds = False

    focal: Literal["equal", "prob"] = "equal"
    lambda_softmax: float = Field(default=20.0, gt=0.0)
