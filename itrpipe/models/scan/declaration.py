"""Declaration of SCAN."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import PlacedRegionBackbone
from itrpipe.papers import SCAN


class Scan(PlacedRegionBackbone):
    """SCAN: words attend to regions, or regions to words. Source: SCAN (Lee et al., ECCV 2018).

    Attributes:
        cross_attention: direction of attention: words to regions (t2i), or regions to words (i2t).
        aggregation: how the relevances of the words (i2t: of the regions) make up the score.
        raw_feature_norm: normalisation of the region-word products over the attending side, before the softmax.
        lambda_softmax: inverse temperature of the attention (published: t2i 9, i2t 4).
        lambda_lse: inverse temperature of LogSumExp (published: t2i 6, i2t 5 on Flickr30K and 20 on COCO).
    """

    papers = (SCAN,)
    embeds = False

    cross_attention: Literal["t2i", "i2t"] = "t2i"
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = "LogSumExp"
    raw_feature_norm: Literal[
        "clipped_l2norm", "l2norm", "clipped", "softmax", "no_norm", "l1norm", "clipped_l1norm"
    ] = "clipped_l2norm"
    lambda_softmax: float = Field(default=9.0, gt=0.0)
    lambda_lse: float = Field(default=6.0, gt=0.0)

    def unused_options(self) -> tuple[str, ...]:
        """Return the temperature of LogSumExp if relevances are aggregated otherwise."""
        if self.aggregation == "LogSumExp":
            return ()
        return ("lambda_lse",)
