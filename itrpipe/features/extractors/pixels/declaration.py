"""Declaration of decoded images; read without torch."""

from typing import Literal

from itrpipe.features.declaration import FeatureSettings, ImageSide


class Pixels(FeatureSettings):
    """Decoded images of one size.

    Attributes:
        height, width: pixels.
        fit: `stretch` the image, or `crop` the middle of it in the right shape.
    """

    holds = frozenset({"pixels"})

    height: ImageSide
    width: ImageSide
    fit: Literal["stretch", "crop"]
