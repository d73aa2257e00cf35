"""Declaration of AsCL."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import RANDOM, BackboneSettings, Depth, Length, Width
from itrpipe.papers import ASCL


class Ascl(BackboneSettings):
    """AsCL: regions and words fused pair by pair, and a vector of the whole image. Source: AsCL (Gong et al.).

    A pretrained text encoder is a hub id or a folder. `random` is a small one of the given size with random weights: a
    BERT that reads our own vocabulary of words.

    Attributes:
        text: hub id or folder of the text encoder, or `random`.
        text_revision: branch, tag or commit of the hub id of `text`.
        tune_text: train a pretrained text encoder too; a random one always is.
        text_ends: take the first and last token of a caption for words, too.
        clean_captions: lower-case captions and drop punctuation.
        max_words: words kept of a caption.
        embed_dim: width D of the joint space of images and captions.
        heads: attention heads of the fusion; D is a multiple of it.
        fusion: attention with learned matrices (`paper`), without any (`released`), or the mean vectors alone (`none`).
        u1: share of the local score of a pair; Flickr30K: 0.6.
        text_width: hidden width of a random text encoder.
        text_heads: its attention heads.
        text_layers: its layers.
    """

    papers = (ASCL,)
    embeds = False
    opens_encoders = True
    answers = frozenset({"mean-vectors"})
    multiples = (("embed_dim", "heads"), ("text_width", "text_heads"))

    text: str = Field(default="bert-base-uncased", min_length=1)
    text_revision: str = "main"
    tune_text: bool = False
    text_ends: bool = True
    clean_captions: bool = True
    max_words: Length = 60
    embed_dim: Width = 1024
    heads: Depth = 8
    fusion: Literal["paper", "released", "none"] = "paper"
    u1: float = Field(default=0.8, ge=0.0, le=1.0)
    text_width: Width = 128
    text_heads: Depth = 4
    text_layers: Depth = 2

    def reads(self) -> tuple[str, ...]:
        """Return regions, and the whole image where it is fused."""
        if self.fusion == "none":
            return ("regions",)
        return "regions", "global"

    def without(self, missing: str) -> str:
        """Return how to do without the whole image: without fusion."""
        if missing == "global":
            return "do without with --set train.model.fusion=none"
        return ""

    def unused_options(self) -> tuple[str, ...]:
        """Return the sizes of a random text encoder if a pretrained one is named."""
        if self.text == RANDOM:
            return ()
        return "text_width", "text_heads", "text_layers"

    def pretrained(self) -> dict[str, str]:
        """Return the text encoder unless it is random."""
        if self.text == RANDOM:
            return {}
        return {"text": self.text}
