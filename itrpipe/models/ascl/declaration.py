"""Declaration of AsCL."""

from typing import Literal

from pydantic import Field

from itrpipe.models.declaration import RANDOM, BackboneSettings, Depth, Length, Width
from itrpipe.papers import ASCL


class Ascl(BackboneSettings):
    """AsCL: regions and words fused pair by pair, and a vector of the whole image. Source: AsCL (Gong et al.).

    A pretrained text encoder is a hub id or a folder. `random` is a small one of the given size with random weights: a
    BERT that reads our own vocabulary of words.
    """

    papers = (ASCL,)
    embeds = False
    opens_encoders = True
    answers = frozenset({"mean-vectors"})
    multiples = (("embed_dim", "heads"), ("text_width", "text_heads"))

    text: str = Field(
        default="bert-base-uncased", min_length=1, description="Text encoder: hub id, folder or 'random'."
    )
    text_revision: str = Field(default="main", description="Branch, tag or commit of the hub id of `text`.")
    tune_text: bool = Field(default=False, description="Train a pretrained text encoder too; a random one always is.")
    text_ends: bool = Field(default=True, description="Take the first and last token of a caption for words, too.")
    clean_captions: bool = Field(default=True, description="Lower-case captions and drop punctuation.")
    max_words: Length = Field(default=60, description="Words kept of a caption.")
    embed_dim: Width = Field(default=1024, description="Width D of the joint space of images and captions.")
    heads: Depth = Field(default=8, description="Attention heads of the fusion; D is a multiple of it.")
    fusion: Literal["paper", "released", "none"] = Field(
        default="paper",
        description="Attention with learned matrices, without any as in released code, or the mean vectors alone.",
    )
    u1: float = Field(default=0.8, ge=0.0, le=1.0, description="Share of the local score of a pair; Flickr30K: 0.6.")
    text_width: Width = Field(default=128, description="Hidden width of a random text encoder.")
    text_heads: Depth = Field(default=4, description="Its attention heads.")
    text_layers: Depth = Field(default=2, description="Its layers.")

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
