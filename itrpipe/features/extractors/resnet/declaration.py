"""What convolutional networks declares; read without torch."""

from __future__ import annotations

from typing import Literal

from itrpipe.features.declaration import (
    REGIONS,
    FeatureSettings,
    Precision,
)


class Resnet(FeatureSettings):
    """A convolutional network of transformers; attributes as of `Vit`."""

    holds = REGIONS | {"global"}

    model: str
    revision: str
    weights: Literal["pretrained", "random"]
    precision: Precision
