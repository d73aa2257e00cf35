"""Declaration of UNITER."""

from typing import Self

from pydantic import Field, model_validator

from itrpipe.models.declaration import LONGEST, BackboneSettings, Depth, Dropout, Width
from itrpipe.papers import UNITER


class Uniter(BackboneSettings):
    """UNITER: words and regions in one BERT. Source: UNITER (Chen et al., ECCV 2020); the sizes are those of base.

    Attributes:
        initial: published weights to start from: a state dict of UNITER, TAGS or BERT; empty: random.
        tokenizer: tokenizer of word pieces: hub id or folder, as bert-base-cased; empty: our own words.
        tokenizer_revision: branch, tag or commit of its hub id.
        embed_dim: width d of all states.
        layers: layers of the encoder.
        heads: attention heads; the width is a multiple of it.
        feed_forward_dim: width of the feed-forward networks.
        dropout: dropout of embeddings, attention and layers.
        max_words: positions of a caption, start and end included.
        initial_deviation: standard deviation of random weights; BERT's suits wide models.
    """

    papers = (UNITER,)
    embeds = False
    answers = frozenset({"words", "writing"})
    multiples = (("embed_dim", "heads"),)

    initial: str = ""
    tokenizer: str = ""
    tokenizer_revision: str = "main"
    embed_dim: Width = 768
    layers: Depth = 12
    heads: Depth = 12
    feed_forward_dim: Width = 3072
    dropout: Dropout = 0.1
    max_words: int = Field(default=512, ge=2, le=LONGEST)
    initial_deviation: float = Field(default=0.02, gt=0)

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
