"""What AsCL declares."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from itrpipe.models.declaration import DEEPEST, LONGEST, RANDOM, WIDEST, BackboneSettings
from itrpipe.papers import ASCL, Paper


class Ascl(BackboneSettings):
    """AsCL: regions and words fused pair by pair, and a vector of the whole image. Source: AsCL (Gong et al.).

    A pretrained text encoder is a hub id or a folder. `random` is a small one of the given size with random weights: a
    BERT that reads our own vocabulary of words.
    """

    papers: ClassVar[tuple[Paper, ...]] = (ASCL,)
    embeds: ClassVar[bool] = False
    opens_encoders: ClassVar[bool] = True
    answers: ClassVar[frozenset[str]] = frozenset({"mean-vectors"})

    text: str = Field(
        default="bert-base-uncased", min_length=1, description="Text encoder: hub id, folder or 'random'."
    )
    text_revision: str = Field(default="main", description="Branch, tag or commit of the hub id of `text`.")
    tune_text: bool = Field(default=False, description="Train a pretrained text encoder too; a random one always is.")
    text_ends: bool = Field(default=True, description="Take the first and last token of a caption for words, too.")
    clean_captions: bool = Field(default=True, description="Lower-case captions and drop punctuation.")
    max_words: int = Field(default=60, ge=1, le=LONGEST, description="Words kept of a caption.")
    embed_dim: int = Field(
        default=1024, ge=1, le=WIDEST, description="Width D of the joint space of images and captions."
    )
    heads: int = Field(default=8, ge=1, le=DEEPEST, description="Attention heads of the fusion; D is a multiple of it.")
    fusion: Literal["paper", "released", "none"] = Field(
        default="paper",
        description="Attention with learned matrices, without any as in released code, or the mean vectors alone.",
    )
    u1: float = Field(default=0.8, ge=0.0, le=1.0, description="Share of the local score of a pair; Flickr30K: 0.6.")
    text_width: int = Field(default=128, ge=1, le=WIDEST, description="Hidden width of a random text encoder.")
    text_heads: int = Field(default=4, ge=1, le=DEEPEST, description="Its attention heads.")
    text_layers: int = Field(default=2, ge=1, le=DEEPEST, description="Its layers.")

    def reads(self) -> tuple[str, ...]:
        """Regions, and the whole image where it is fused."""
        return ("regions",) if self.fusion == "none" else ("regions", "global")

    def without(self, missing: str) -> str:
        """Without fusion."""
        return "do without with --set train.model.fusion=none" if missing == "global" else ""

    def pretrained(self) -> dict[str, str]:
        """The text encoder."""
        return {} if self.text == RANDOM else {"text": self.text}

    @model_validator(mode="after")
    def _heads_fit(self) -> Ascl:
        if self.embed_dim % self.heads:
            raise ValueError(f"embed_dim = {self.embed_dim} is no multiple of heads = {self.heads}")
        if self.text_width % self.text_heads:
            raise ValueError(f"text_width = {self.text_width} is no multiple of text_heads = {self.text_heads}")
        return self
