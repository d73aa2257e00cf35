"""Declaration of VSRN."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import DEEPEST, LONGEST, Dropout, PlacedRegionBackbone, Width
from itrpipe.papers import VSRN


class Vsrn(PlacedRegionBackbone):
    """VSRN: region graph reasoning, a GRU over regions and a captioning branch. Source: VSRN (Li et al., ICCV 2019).

    Attributes:
        embed_dim: width D of the joint space of images and captions.
        graph_layers: number of residual graph layers over the regions.
        region_norm: l2-normalise right after the region projection (COCO: on, Flickr30K: off).
        region_l2_axis: axis of both region l2-norms: 'regions' as in every published weight, 'channels' as was meant.
        final_batch_norm: BatchNorm on the image vector before its l2-norm (Flickr30K: on, COCO: off).
        captioner: train the captioning branch in addition to the matching loss.
        caption_dim: hidden width of the captioner's encoder and decoder.
        caption_word_dim: width of the captioner's own word embedding.
        caption_max_length: longest caption label in tokens, start and end included; longer ones are cut.
        caption_dropout: dropout on the projected regions and on the decoder input.
    """

    papers = (VSRN,)

    embed_dim: Width = 2048
    graph_layers: int = Field(default=4, ge=0, le=DEEPEST)
    region_norm: bool = True
    region_l2_axis: Literal["regions", "channels"] = "regions"
    final_batch_norm: bool = False
    captioner: bool = True
    caption_dim: Width = 512
    caption_word_dim: Width = 300
    caption_max_length: int = Field(default=60, ge=2, le=LONGEST)
    caption_dropout: Dropout = 0.2

    def unused_options(self) -> tuple[str, ...]:
        """Return the options of the captioning branch if there is none."""
        if self.captioner:
            return ()
        return "caption_dim", "caption_word_dim", "caption_max_length", "caption_dropout"
