"""What the bottom-up-attention detector declares; read without torch."""

from __future__ import annotations

from typing import Literal

from itrpipe.features.declaration import Precision, RegionSettings


class Butd(RegionSettings):
    """The bottom-up-attention detector of Visual Genome.

    Attributes:
        weights: hub id, a file (.bin, .pth or .safetensors), or `random` for trying things out.
        revision: of the hub id.
        profile: `caffe` selects as the published feature files were made, `hub` as the published conversion does.
        precision: of the network.
    """

    weights: str
    revision: str
    profile: Literal["caffe", "hub"]
    precision: Precision
