"""Declaration of vision transformers; read without torch."""

from itrpipe.features.declaration import NetworkSettings


class Vit(NetworkSettings):
    """A vision transformer of transformers."""
