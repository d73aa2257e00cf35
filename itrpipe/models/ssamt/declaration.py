"""Declaration of SSAMT."""

from typing import Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.models.declaration import Depth, Dropout, Length, RegionBackbone, Width
from itrpipe.papers import SSAMT


class Ssamt(RegionBackbone):
    """SSAMT: phrases, words and regions in one masked Transformer. Source: SSAMT (Fan et al., ICMR 2022).

    Attributes:
        phase: what is trained and scored: each side alone (intra), or pairs on top of that, frozen (inter).
        layers: layers of each of the three encoders.
        heads: attention heads; the width is a multiple of it.
        feed_forward_dim: width of the feed-forward networks.
        dropout: dropout of embeddings, attention and layers.
        max_words: longest caption in words.
        mask: which edges are closed: the paper's, also node to node, or none but padding.
        phrases: read phrases; off leaves the words alone (Table 3).
        mu1: weight of the global cosine of a pair in its score.
        mu2: weight of each mean of local cosines.
    """

    papers = (SSAMT,)
    embeds = False
    reads_phrases = True
    multiples = (("embed_dim", "heads"),)

    phase: Literal["intra", "inter"] = "inter"
    layers: Depth = 2
    heads: Depth = 16
    feed_forward_dim: Width = 2048
    dropout: Dropout = 0.3
    max_words: Length = 64
    mask: Literal["paper", "strict", "none"] = "paper"
    phrases: bool = True
    mu1: float = Field(default=0.3, ge=0.0)
    mu2: float = Field(default=0.1, ge=0.0)

    def refuses(self, loss: Settings) -> str:
        """Refuse all methods but its own, and other phases of that."""
        if getattr(loss, "phase", None) == self.phase:
            return ""
        return "ssamt-intra and ssamt train ssamt, and nothing else does"
