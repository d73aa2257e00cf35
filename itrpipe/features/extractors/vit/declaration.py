"""What vision transformers declares; read without torch."""

from __future__ import annotations

from typing import Literal

from itrpipe.features.declaration import (
    REGIONS,
    FeatureSettings,
    Precision,
)


class Vit(FeatureSettings):
    """A vision transformer of transformers.

    Attributes:
        model: hub id or local folder with config.json and preprocessor_config.json.
        revision: branch, tag or commit of the hub id.
        weights: `pretrained`, or `random` for trying things out.
        precision: of the network.
    """

    holds = REGIONS | {"global"}

    model: str
    revision: str
    weights: Literal["pretrained", "random"]
    precision: Precision
