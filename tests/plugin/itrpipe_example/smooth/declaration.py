"""What the method declares; read without torch."""

from pydantic import Field

from itrpipe.methods.declaration import MethodSettings


class Smooth(MethodSettings):
    """Triplet loss in which a soft maximum stands for the hardest negative."""

    margin: float = Field(default=0.2, ge=0)
    temperature: float = Field(default=0.1, gt=0)
