"""Declaration of the bottom-up-attention detector; read without torch."""

from itrpipe.features.declaration import Precision, RegionSettings


class Butd(RegionSettings):
    """The bottom-up-attention detector of Visual Genome.

    Attributes:
        weights: the published conversion, by hub id or as a file (.bin, .pth or .safetensors), or `random` for trying
            things out.
        revision: of the hub id.
        precision: of the network.
    """

    weights: str
    revision: str
    precision: Precision
