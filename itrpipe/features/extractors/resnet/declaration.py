"""Declaration of convolutional networks; read without torch."""

from itrpipe.features.declaration import NetworkSettings


class Resnet(NetworkSettings):
    """A convolutional network of transformers."""
