"""What the detector of the embedded dataset declares; read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from itrpipe.features.declaration import (
    REGIONS,
    FeatureSettings,
)
from itrpipe.features.weights import SCENES_DETECTOR


class Scenes(FeatureSettings):
    """The region detector of the embedded dataset; its weights are in the package."""

    holds = REGIONS | {"global"}
    drawings_only = True

    def own_files(self) -> Mapping[str, Path]:
        return {"weights": SCENES_DETECTOR}
