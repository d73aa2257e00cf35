"""Declaration of UNITER."""

from typing import Self

from pydantic import Field, model_validator

from itrpipe.models.declaration import LONGEST, BackboneSettings, Depth, Dropout, Width
from itrpipe.papers import UNITER


class Uniter(BackboneSettings):
    """UNITER: words and regions in one BERT. Source: UNITER (Chen et al., ECCV 2020); the sizes are those of base."""

    papers = (UNITER,)
    embeds = False
    answers = frozenset({"words", "writing"})
    multiples = (("embed_dim", "heads"),)

    initial: str = Field(
        default="", description="Published weights to start from: a state dict of UNITER, TAGS or BERT; empty: random."
    )
    tokenizer: str = Field(
        default="", description="Tokenizer of word pieces: hub id or folder, as bert-base-cased; empty: our own words."
    )
    tokenizer_revision: str = Field(default="main", description="Branch, tag or commit of its hub id.")
    embed_dim: Width = Field(default=768, description="Width d of all states.")
    layers: Depth = Field(default=12, description="Layers of the encoder.")
    heads: Depth = Field(default=12, description="Attention heads; the width is a multiple of it.")
    feed_forward_dim: Width = Field(default=3072, description="Width of the feed-forward networks.")
    dropout: Dropout = Field(default=0.1, description="Dropout of embeddings, attention and layers.")
    max_words: int = Field(default=512, ge=2, le=LONGEST, description="Positions of a caption, start and end included.")
    initial_deviation: float = Field(
        default=0.02, gt=0, description="Standard deviation of random weights; BERT's suits wide models."
    )

    def reads(self) -> tuple[str, ...]:
        return ("regions", "boxes")

    def pretrained(self) -> dict[str, str]:
        return {"tokenizer": self.tokenizer}

    def unused_options(self) -> tuple[str, ...]:
        """Return the revision of a tokenizer that is not named."""
        if self.tokenizer:
            return ()
        return ("tokenizer_revision",)

    def published_weights(self) -> str:
        """Return the file of UNITER, TAGS or BERT."""
        return self.initial

    @model_validator(mode="after")
    def _has_tokenizer(self) -> Self:
        if self.initial and not self.tokenizer:
            raise ValueError("published weights are of word pieces; give --set model.tokenizer=bert-base-cased as well")
        return self
