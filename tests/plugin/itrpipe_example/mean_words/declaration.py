"""What the backbone declares; read without torch."""

from pydantic import Field

from itrpipe.models.declaration import WIDEST, BackboneSettings


class MeanWords(BackboneSettings):
    """The mean of embedded words against the mean of projected regions."""

    embed_dim: int = Field(default=256, ge=1, le=WIDEST, description="Width of the joint space.")
