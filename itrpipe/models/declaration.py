"""What a backbone declares: its options, what it reads, what can be asked of it. Read without torch."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.papers import Paper

WIDEST, DEEPEST, LONGEST = 65_536, 1_000, 65_536
"""Largest width, number of layers or heads, and length in words: an order of magnitude beyond any published model."""


RANDOM = "random"
"""Stands for a hub id or folder: a small encoder with random weights."""


class BackboneSettings(Settings):
    """What is known of every backbone.

    Attributes:
        embeds: whether an image and a caption are one vector each, which mining and search need.
        reads_phrases: whether it needs the scene graphs of captions.
        opens_encoders: whether its module opens encoders of transformers, before captions are read by their tokenizer.
        answers: what can be asked of it beside rankings: `words` (which are wrong), `word-maps` (where a word is seen),
            `writing` (words in masked places), `mean-vectors` (of images and captions, where scores are of pairs).
        papers: that it comes from.
    """

    embeds: ClassVar[bool] = True
    reads_phrases: ClassVar[bool] = False
    opens_encoders: ClassVar[bool] = False
    answers: ClassVar[frozenset[str]] = frozenset()
    papers: ClassVar[tuple[Paper, ...]] = ()

    def cited(self) -> tuple[Paper, ...]:
        """The papers to cite for a model of these settings."""
        return self.papers

    def reads(self) -> tuple[str, ...]:
        """What it reads of features: `regions`, `boxes`, `global` or `pixels`."""
        return ("regions",)

    def without(self, missing: str) -> str:
        """Settings with which it does without something that it reads; empty where there are none."""
        return ""

    def refuses(self, loss: Settings) -> str:
        """Why a method of these settings does not train it; empty where it does."""
        return ""

    def pretrained(self) -> dict[str, str]:
        """Setting -> hub id or folder of its encoders and tokenizers, empty for those that it has not."""
        return {}

    def joint(self) -> str:
        """Hub id or folder of the one model that both of its encoders are of, such as CLIP; empty where none is."""
        return ""

    def encoders(self) -> tuple[str, ...]:
        """Names of those of its networks that can be frozen, adapted, or trained at a rate that falls by the layer."""
        return ()

    def untrained(self) -> str:
        """Why it cannot be used without training; empty where its weights were published as a whole."""
        return "" if self.published_weights() else "it starts from random weights"

    def published_weights(self) -> str:
        """File of weights to start from; empty for random ones."""
        return ""


class RegionBackbone(BackboneSettings):
    """Settings of the backbones that read region features and words."""

    embed_dim: int = Field(
        default=1024, ge=1, le=WIDEST, description="Width D of the joint space of images and captions."
    )
    word_dim: int = Field(default=300, ge=1, le=WIDEST, description="Width of the word embedding.")
