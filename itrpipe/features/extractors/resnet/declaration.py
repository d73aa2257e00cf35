"""What convolutional networks declare; read without torch."""

from __future__ import annotations

from itrpipe.features.declaration import NetworkSettings


class Resnet(NetworkSettings):
    """A convolutional network of transformers."""
