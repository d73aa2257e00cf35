"""Declaration of SSAMT."""

from typing import Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.models.declaration import Depth, Dropout, Length, RegionBackbone, Width
from itrpipe.papers import SSAMT


class Ssamt(RegionBackbone):
    """SSAMT: phrases, words and regions in one masked Transformer. Source: SSAMT (Fan et al., ICMR 2022)."""

    papers = (SSAMT,)
    embeds = False
    reads_phrases = True
    multiples = (("embed_dim", "heads"),)

    phase: Literal["intra", "inter"] = Field(
        default="inter",
        description="What is trained and scored: each side alone (intra), or pairs on top of that, frozen (inter).",
    )
    layers: Depth = Field(default=2, description="Layers of each of the three encoders.")
    heads: Depth = Field(default=16, description="Attention heads; the width is a multiple of it.")
    feed_forward_dim: Width = Field(default=2048, description="Width of the feed-forward networks.")
    dropout: Dropout = Field(default=0.3, description="Dropout of embeddings, attention and layers.")
    max_words: Length = Field(default=64, description="Longest caption in words.")
    mask: Literal["paper", "strict", "none"] = Field(
        default="paper", description="Which edges are closed: the paper's, also node to node, or none but padding."
    )
    phrases: bool = Field(default=True, description="Read phrases; off leaves the words alone (Table 3).")
    mu1: float = Field(default=0.3, ge=0.0, description="Weight of the global cosine of a pair in its score.")
    mu2: float = Field(default=0.1, ge=0.0, description="Weight of each mean of local cosines.")

    def refuses(self, loss: Settings) -> str:
        """Refuse all methods but its own, and other phases of that."""
        if getattr(loss, "phase", None) == self.phase:
            return ""
        return "ssamt-intra and ssamt train ssamt, and nothing else does"
