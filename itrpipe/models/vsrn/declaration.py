"""Declaration of VSRN."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import DEEPEST, LONGEST, Dropout, PlacedRegionBackbone, Width
from itrpipe.papers import VSRN


class Vsrn(PlacedRegionBackbone):
    """VSRN: region graph reasoning, a GRU over regions and a captioning branch. Source: VSRN (Li et al., ICCV 2019)."""

    papers = (VSRN,)

    embed_dim: Width = Field(default=2048, description="Width D of the joint space of images and captions.")
    graph_layers: int = Field(
        default=4, ge=0, le=DEEPEST, description="Number of residual graph layers over the regions."
    )
    region_norm: bool = Field(
        default=True, description="l2-normalise right after the region projection (COCO: on, Flickr30K: off)."
    )
    region_l2_axis: Literal["regions", "channels"] = Field(
        default="regions",
        description="Axis of both region l2-norms: 'regions' as in every published weight, 'channels' as was meant.",
    )
    final_batch_norm: bool = Field(
        default=False, description="BatchNorm on the image vector before its l2-norm (Flickr30K: on, COCO: off)."
    )
    captioner: bool = Field(default=True, description="Train the captioning branch in addition to the matching loss.")
    caption_dim: Width = Field(default=512, description="Hidden width of the captioner's encoder and decoder.")
    caption_word_dim: Width = Field(default=300, description="Width of the captioner's own word embedding.")
    caption_max_length: int = Field(
        default=60,
        ge=2,
        le=LONGEST,
        description="Longest caption label in tokens, start and end included; longer ones are cut.",
    )
    caption_dropout: Dropout = Field(
        default=0.2, description="Dropout on the projected regions and on the decoder input."
    )

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of the captioning branch if there is none."""
        if self.captioner:
            return ()
        return "caption_dim", "caption_word_dim", "caption_max_length", "caption_dropout"
