"""What an extractor or importer declares: its settings, and what its features hold. Read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from itrpipe.config import Settings

# Larger images than any vision encoder takes would only fill disk and memory.
ImageSide = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Side = Annotated[int, Field(ge=32, le=16_384)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["fp32", "bf16"]

EVERYTHING = frozenset({"regions", "boxes", "global", "pixels"})
REGIONS = frozenset({"regions", "boxes"})
_FILES, _NO_FILES = ("model", "weights"), ("", "pretrained", "random")


class FeatureSettings(Settings):
    """Settings of an extractor or importer.

    Attributes:
        holds: what its features may hold, as far as that is known before they are there.
        imported: read from files that others have made, and not computed from the images.
        drawings_only: knows the drawings of the embedded dataset and no photographs.
        kind: name of the extractor or importer.
    """

    holds: ClassVar[frozenset[str]] = EVERYTHING
    imported: ClassVar[bool] = False
    drawings_only: ClassVar[bool] = False

    kind: str

    def may_hold(self) -> frozenset[str]:
        """What these features may hold, a part of `EVERYTHING`."""
        return self.holds

    def own_files(self) -> Mapping[str, Path]:
        """Files of its package that the features depend on."""
        return {}

    def beside(self, source: Path) -> Mapping[str, Path]:
        """Files that are read together with the imported one."""
        return {}

    def local_files(self) -> dict[str, Path]:
        """The settings that name a file or folder of this machine, with its path."""
        values = {key: getattr(self, key, "") for key in _FILES}
        paths = {key: Path(value).expanduser() for key, value in values.items() if value not in _NO_FILES}
        return {key: path for key, path in paths.items() if path.is_absolute() or path.exists()}

    def from_hub(self) -> dict[str, str]:
        """The models of the hub that it computes with, and their revisions."""
        named = {value for key in _FILES if (value := getattr(self, key, "")) not in _NO_FILES}
        here = {str(getattr(self, key)) for key in self.local_files()}
        return dict.fromkeys(sorted(named - here), getattr(self, "revision", "main"))

    def fingerprinted(self) -> dict[str, Any]:
        """The settings as the fingerprint sees them: of local files their content counts and not where they lie."""
        return self.model_dump(mode="json") | dict.fromkeys(self.local_files(), "local")


class RegionSettings(FeatureSettings):
    """How many regions of an image are kept.

    Attributes:
        min_regions, max_regions: as many regions as are surer than `min_score`, but at least and at most these.
            Equal numbers give every image the same count.
        min_score: confidence in 0..1.
    """

    holds = REGIONS

    min_regions: Count
    max_regions: Count
    min_score: Fraction

    @field_validator("max_regions")
    @classmethod
    def _ordered(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min_regions", value):
            raise ValueError(f"must not be smaller than min_regions = {info.data['min_regions']}")
        return value


class NetworkSettings(FeatureSettings):
    """A vision network of transformers.

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


def names_a_file(key: str, value: object) -> bool:
    """Whether the value of a setting may be a file or folder of this machine."""
    return key in (*_FILES, "ids") and isinstance(value, str) and value not in _NO_FILES
