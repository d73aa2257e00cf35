"""Stands in the place of a backbone where embeddings come from files: what is known of them, and no network."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.features.declaration import GivenFiles
from itrpipe.models.declaration import BackboneSettings


class GivenEmbeddings(BackboneSettings):
    """Embeddings that another program has made of one split, which stands in the place of features."""

    files: GivenFiles = Field(default_factory=GivenFiles, description="The files.")
    measure: Literal["cosine", "inner-product", "order"] = Field(
        default="cosine", description="How embeddings are compared; for the cosine they are made unit vectors."
    )

    def reads(self) -> tuple[str, ...]:
        """No features."""
        return ()

    def refuses(self, loss: Settings) -> str:
        """Methods that train it."""
        return "these embeddings were made elsewhere, so give --method given" if getattr(loss, "trains", True) else ""

    def untrained(self) -> str:
        """They are used as they are."""
        return ""
