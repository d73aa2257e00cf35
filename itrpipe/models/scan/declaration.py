"""Declaration of SCAN."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import PlacedRegionBackbone
from itrpipe.papers import SCAN


class Scan(PlacedRegionBackbone):
    """SCAN: words attend to regions, or regions to words. Source: SCAN (Lee et al., ECCV 2018)."""

    papers = (SCAN,)
    embeds = False

    cross_attention: Literal["t2i", "i2t"] = Field(
        default="t2i", description="Direction of attention: words to regions (t2i), or regions to words (i2t)."
    )
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = Field(
        default="LogSumExp", description="How the relevances of the words (i2t: of the regions) make up the score."
    )
    raw_feature_norm: Literal[
        "clipped_l2norm", "l2norm", "clipped", "softmax", "no_norm", "l1norm", "clipped_l1norm"
    ] = Field(
        default="clipped_l2norm",
        description="Normalisation of the region-word products over the attending side, before the softmax.",
    )
    lambda_softmax: float = Field(
        default=9.0, gt=0.0, description="Inverse temperature of the attention (published: t2i 9, i2t 4)."
    )
    lambda_lse: float = Field(
        default=6.0,
        gt=0.0,
        description="Inverse temperature of LogSumExp (published: t2i 6, i2t 5 on Flickr30K and 20 on COCO).",
    )

    def unused_options(self) -> tuple[str, ...]:
        """Return the temperature of LogSumExp if relevances are aggregated otherwise."""
        if self.aggregation == "LogSumExp":
            return ()
        return ("lambda_lse",)
