"""Declaration of torchvision's Faster R-CNN; read without torch."""

from pydantic import ValidationInfo, field_validator

from itrpipe.features.declaration import Count, Fraction, Precision, RegionSettings, Side


class Frcnn(RegionSettings):
    """torchvision's Faster R-CNN.

    Attributes:
        weights: name of torchvision's weights, a file (.pth, .pt or .safetensors), or `random` for trying things out.
        nms: boxes of one class that overlap more than this (IoU) are one.
        proposals: boxes per image that are looked at, at least `max_regions`.
        short_side, long_side: pixels to which an image is scaled, at most.
        precision: of the network.
    """

    weights: str
    nms: Fraction
    proposals: Count
    short_side: Side
    long_side: Side
    precision: Precision

    @field_validator("proposals")
    @classmethod
    def _enough_proposals(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("max_regions", value):
            raise ValueError(f"must not be smaller than max_regions = {info.data['max_regions']}")
        return value
