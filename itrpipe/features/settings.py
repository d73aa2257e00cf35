"""Settings of the extractors and importers. Light: plans bind settings without importing any of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from itrpipe.config import Settings

# Larger images than any vision encoder takes would only fill disk and memory.
ImageSide = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Side = Annotated[int, Field(ge=32, le=16_384)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["fp32", "bf16"]


class Scenes(Settings):
    """The region detector of the embedded dataset; its weights are in the package."""

    kind: Literal["scenes"]


class RegionSettings(Settings):
    """How many regions of an image are kept.

    Attributes:
        min_regions, max_regions: as many regions as are surer than `min_score`, but at least and at most these.
            Equal numbers give every image the same count.
        min_score: confidence in 0..1.
    """

    min_regions: Count
    max_regions: Count
    min_score: Fraction

    @field_validator("max_regions")
    @classmethod
    def _ordered(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("min_regions", value):
            raise ValueError(f"must not be smaller than min_regions = {info.data['min_regions']}")
        return value


class Frcnn(RegionSettings):
    """torchvision's Faster R-CNN.

    Attributes:
        weights: name of torchvision's weights, a file (.pth, .pt or .safetensors), or `random` for trying things out.
        nms: boxes of one class that overlap more than this (IoU) are one.
        proposals: boxes per image that are looked at, at least `max_regions`.
        short_side, long_side: pixels to which an image is scaled, at most.
        precision: of the network.
    """

    kind: Literal["frcnn"]
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


class Butd(RegionSettings):
    """The bottom-up-attention detector of Visual Genome.

    Attributes:
        weights: hub id, a file (.bin, .pth or .safetensors), or `random` for trying things out.
        revision: of the hub id.
        profile: `caffe` selects as the published feature files were made, `hub` as the published conversion does.
        precision: of the network.
    """

    kind: Literal["butd"]
    weights: str
    revision: str
    profile: Literal["caffe", "hub"]
    precision: Precision


class Vit(Settings):
    """A vision transformer of transformers.

    Attributes:
        model: hub id or local folder with config.json and preprocessor_config.json.
        revision: branch, tag or commit of the hub id.
        weights: `pretrained`, or `random` for trying things out.
        precision: of the network.
    """

    kind: Literal["vit"]
    model: str
    revision: str
    weights: Literal["pretrained", "random"]
    precision: Precision


class Resnet(Settings):
    """A convolutional network of transformers; attributes as of `Vit`."""

    kind: Literal["resnet"]
    model: str
    revision: str
    weights: Literal["pretrained", "random"]
    precision: Precision


class Pixels(Settings):
    """Decoded images of one size.

    Attributes:
        height, width: pixels.
        fit: `stretch` the image, or `crop` the middle of it in the right shape.
    """

    kind: Literal["pixels"]
    height: ImageSide
    width: ImageSide
    fit: Literal["stretch", "crop"]


class Precomp(Settings):
    """A `*_precomp` folder as SCAN, VSRN and AOQ publish them.

    Attributes:
        grid: rows and columns of the cells that the regions are, from the top left, row by row; the boxes of the cells
            are stored with them. Empty: the folder does not say where its regions lie, and no boxes are stored.
    """

    kind: Literal["precomp"]
    grid: tuple[()] | tuple[Count, Count] = ()


class ButdTsv(Settings):
    """TSV files of the bottom-up-attention tools."""

    kind: Literal["butd_tsv"]


class Uniter(RegionSettings):
    """LMDB or npz folders of UNITER; the settings choose among the regions stored for an image."""

    kind: Literal["uniter"]


class Arrays(Settings):
    """Arrays in .npy, .npz or HDF5 files.

    Attributes:
        map: dataset of `features.h5` -> name of the array in the file, empty to leave the dataset out; what is not
            named is looked for by its own name.
        ids: text file with one image id a line, absolute or beside the arrays; empty where the arrays' file has ids.
        boxes: unit of the boxes: `fractions` of the image, or `pixels`.
    """

    kind: Literal["arrays"]
    map: dict[str, str] = Field(default_factory=dict)
    ids: str
    boxes: Literal["fractions", "pixels"]


SETTINGS: dict[str, type[Settings]] = {
    "scenes": Scenes,
    "frcnn": Frcnn,
    "butd": Butd,
    "vit": Vit,
    "resnet": Resnet,
    "pixels": Pixels,
    "precomp": Precomp,
    "butd_tsv": ButdTsv,
    "uniter": Uniter,
    "arrays": Arrays,
}
IMPORTERS = ("precomp", "butd_tsv", "uniter", "arrays")
_EVERYTHING = frozenset({"regions", "boxes", "global", "pixels"})
_HELD = {
    "scenes": frozenset({"regions", "boxes", "global"}),
    "frcnn": frozenset({"regions", "boxes"}),
    "butd": frozenset({"regions", "boxes"}),
    "vit": frozenset({"regions", "boxes", "global"}),
    "resnet": frozenset({"regions", "boxes", "global"}),
    "pixels": frozenset({"pixels"}),
    "butd_tsv": frozenset({"regions", "boxes"}),
    "uniter": frozenset({"regions", "boxes"}),
}


def settings_class(kind: Any) -> type[Settings]:
    """The settings class of an extractor or importer."""
    return SETTINGS[kind]


def may_hold(settings: Any) -> frozenset[str]:
    """What features may hold, as far as that is known before they are there: `regions`, `boxes`, `global`, `pixels`.

    Args:
        settings: of one extractor or importer.
    """
    if isinstance(settings, Precomp):
        return frozenset({"regions", "global"} | ({"boxes"} if settings.grid else set()))
    return _HELD.get(settings.kind, _EVERYTHING)
