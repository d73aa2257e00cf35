"""What SSAMT declares."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from itrpipe.config import Settings
from itrpipe.models.declaration import DEEPEST, LONGEST, WIDEST, RegionBackbone
from itrpipe.papers import SSAMT, Paper


class Ssamt(RegionBackbone):
    """SSAMT: phrases, words and regions in one masked Transformer. Source: SSAMT (Fan et al., ICMR 2022)."""

    papers: ClassVar[tuple[Paper, ...]] = (SSAMT,)
    embeds: ClassVar[bool] = False
    reads_phrases: ClassVar[bool] = True

    phase: Literal["intra", "inter"] = Field(
        default="inter",
        description="What is trained and scored: each side alone (intra), or pairs on top of that, frozen (inter).",
    )
    layers: int = Field(default=2, ge=1, le=DEEPEST, description="Layers of each of the three encoders.")
    heads: int = Field(default=16, ge=1, le=DEEPEST, description="Attention heads; the width is a multiple of it.")
    feed_forward_dim: int = Field(default=2048, ge=1, le=WIDEST, description="Width of the feed-forward networks.")
    dropout: float = Field(default=0.3, ge=0.0, lt=1.0, description="Dropout of embeddings, attention and layers.")
    max_words: int = Field(default=64, ge=1, le=LONGEST, description="Longest caption in words.")
    mask: Literal["paper", "strict", "none"] = Field(
        default="paper", description="Which edges are closed: the paper's, also node to node, or none but padding."
    )
    phrases: bool = Field(default=True, description="Read phrases; off leaves the words alone (Table 3).")
    mu1: float = Field(default=0.3, ge=0.0, description="Weight of the global cosine of a pair in its score.")
    mu2: float = Field(default=0.1, ge=0.0, description="Weight of each mean of local cosines.")

    def refuses(self, loss: Settings) -> str:
        """Its phases are trained by its own method, each by that phase of it."""
        own = getattr(loss, "phase", None) == self.phase
        return "" if own else "ssamt-intra and ssamt train ssamt, and nothing else does"

    @model_validator(mode="after")
    def _heads_fit(self) -> Ssamt:
        if self.embed_dim % self.heads:
            raise ValueError(f"embed_dim = {self.embed_dim} is no multiple of heads = {self.heads}")
        return self
