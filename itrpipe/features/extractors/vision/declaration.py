"""Declaration of vision networks; read without torch."""

from typing import Literal

from itrpipe.features.declaration import REGIONS, FeatureSettings, Precision


class Vision(FeatureSettings):
    """A vision network that transformers opens by `AutoModel`, one of timm among them.

    Attributes:
        model: hub id, or local folder with a configuration, weights and an image processor.
        revision: branch, tag or commit of the hub id.
        weights: `pretrained`, or `random` for trying things out.
        precision: of the network.
    """

    holds = REGIONS | {"global"}

    model: str
    revision: str
    weights: Literal["pretrained", "random"]
    precision: Precision
