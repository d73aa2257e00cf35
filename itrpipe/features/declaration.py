"""Declares features, without torch: settings of extractors and importers, the kinds that there are,
and the files of embeddings that another program has made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationInfo, create_model, field_validator

from itrpipe import plugins
from itrpipe.config import Settings
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.registry import Registry
from itrpipe.storage.artifact import local_folders

Count = Annotated[int, Field(ge=1, le=10_000)]
Side = Annotated[int, Field(ge=32, le=16_384)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Precision = Literal["fp32", "bf16"]

EVERYTHING = frozenset({"regions", "boxes", "global"})
REGIONS = frozenset({"regions", "boxes"})
Input = TypeVar("Input")
_MODEL_KEYS = ("model", "weights")
_NO_FILES = ("", "pretrained", "random")


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

    def counted(self) -> dict[str, Any]:
        """Return the values as a fingerprint sees them: of local files their content counts and not where they lie.

        Of a plug-in, name and version count.
        """
        values = self.model_dump(mode="json")
        for key in self.local_files():
            values[key] = "local"
        package = EXTRACTORS.package(self.kind)
        if package:
            values["package"] = package
        return values

    def may_hold(self) -> frozenset[str]:
        """Return the groups that these features may have, a part of `EVERYTHING`."""
        return self.holds

    def further_files(self, source: Path | None) -> Mapping[str, Path]:
        """Return the files that the features depend on, beside the imported ones and those that a setting names.

        Args:
            source: the file or folder that is imported.
        """
        return {}

    def local_files(self) -> dict[str, Path]:
        """Return the settings that name a file or folder of this machine, with its path."""
        return local_folders(self._models())

    def from_hub(self) -> dict[str, str]:
        """Return the models of the hub that it computes with, and their revisions; none of settings without one."""
        models = {}
        local = self.local_files()
        revision = getattr(self, "revision", "")
        for key, model in self._models().items():
            if revision and key not in local:
                models[model] = revision
        return models

    def _models(self) -> dict[str, str]:
        """Return the settings that name a model or its weights."""
        models = {}
        for key in _MODEL_KEYS:
            value = getattr(self, key, "")
            if value not in _NO_FILES:
                models[key] = value
        return models


class RegionSettings(FeatureSettings):
    """Number of regions of an image that are kept.

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


def names_a_file(key: str, value: object) -> bool:
    """Tell whether the value of a setting may be a file or folder of this machine."""
    return key in (*_MODEL_KEYS, "ids") and isinstance(value, str) and value not in _NO_FILES


EXTRACTORS: Registry[FeatureSettings] = Registry("itrpipe.features.extractors", "extractor", plugins.EXTRACTORS)
"""The extractors; their modules have `build`, which makes one."""
IMPORTERS: Registry[FeatureSettings] = Registry("itrpipe.features.importers", "importer", makes="open_source")
"""The importers; their modules have `layout` and `open_source`."""


def feature_settings(values: Mapping[str, Any]) -> type[Settings]:
    """Return the settings of the configuration's kind; for several, `a+b`, the settings of each under its name.

    Raises:
        UsageError: there is no such kind.
    """
    if "kind" in values:
        return _settings_of(values["kind"])
    fields: dict[str, Any] = {}
    for name, table in values.items():
        if isinstance(table, Mapping) and "kind" in table:
            fields[name] = _settings_of(table["kind"]), ...
    return create_model("Combined", __base__=_Combined, **fields)


class _Combined(Settings):
    """Settings of several extractors, each under its name."""

    def counted(self) -> dict[str, Any]:
        """Return the values of each as a fingerprint sees them."""
        return {name: part.counted() for name, part in passes_of("", self).items()}


def _settings_of(kind: object) -> type[Settings]:
    classes = EXTRACTORS.classes | IMPORTERS.classes
    name = str(kind).replace("_", "-")
    if name not in classes:
        raise UsageError(f"extract: kind = {kind!r} is none of {', '.join(classes)}; leave it out")
    return classes[name]


def passes_of(name: str, settings: Settings) -> dict[str, FeatureSettings]:
    """Return the settings of every extractor of a configuration; a single one goes by `name`."""
    if isinstance(settings, FeatureSettings):
        return {name: settings}
    return {part: getattr(settings, part) for part in type(settings).model_fields}


def recorded_passes(name: str, settings: Mapping[str, Any]) -> dict[str, FeatureSettings]:
    """Return `passes_of` a configuration by the settings that a manifest, or an exported model, has of it."""
    return passes_of(name, feature_settings(settings).model_validate(settings))


# Embeddings that another program has made.

GIVEN = "given"
"""Configuration of `embeddings`, and the first word of the names of such embeddings."""
SENTENCE_TRANSFORMERS, OPEN_CLIP = "sentence-transformers", "open-clip"
"""Configurations of `embeddings` that are made by a model of another library."""
LIBRARIES = {SENTENCE_TRANSFORMERS: "sentence_transformers", OPEN_CLIP: "open_clip"}
"""Configuration -> module that it needs."""
EMBEDDER_PREFIXES = {"st:": SENTENCE_TRANSFORMERS, "oc:": OPEN_CLIP}
"""Beginning of the name of an embedder -> configuration."""
EMBEDS_NO = (
    "{} embeds no {}; name a model of images and texts, such as st:laion/CLIP-ViT-B-32-laion2B-s34B-b79K, or give "
    "vectors of any models by --embeddings or to itrpipe.mine"
)
NOT_HERE = (
    "given embeddings come without a model that itrpipe can run; only mine-negatives, export-negatives, evaluate and "
    "report do without one"
)


def is_given(name: str) -> bool:
    """Tell whether embeddings from files have this name: `given`, `given-NAME`."""
    return name == GIVEN or name.startswith(f"{GIVEN}-")


def model_inputs(inputs: Iterable[str]) -> list[str]:
    """Return the names of the inputs that are models, trainings or given embeddings, in order: `train`, `embeddings_2`.

    Args:
        inputs: names of all inputs of an artifact.
    """
    models = {}
    for name in inputs:
        stage, _, number = name.partition("_")
        if stage in ("train", "embeddings"):
            models[int(number or 1)] = name
    return [models[number] for number in sorted(models)]


def first_model(inputs: Mapping[str, Input]) -> Input:
    """Return the model that an artifact was made with, a training or given embeddings; of several the first."""
    if "train" in inputs:
        return inputs["train"]
    return inputs["embeddings"]


class GivenFiles(Settings):
    """The files of one split, by absolute path.

    Attributes:
        images, texts: files of the embeddings, one and the same where it holds both; empty where nothing was given.
        owners: file that says which image each text describes; empty where another file says so.
    """

    images: str = ""
    texts: str = ""
    owners: str = ""

    @property
    def paths(self) -> dict[str, Path]:
        """Return the files that were named and the ids that lie beside arrays, by what is read from them.

        Raises:
            MissingInputError: one of them is not there.
        """
        named = {name: Path(value) for name, value in self if value}
        beside = {}
        for name, path in named.items():
            if not path.exists():
                option = "--owners" if name == "owners" else "--embeddings"
                raise MissingInputError(f"{option} {path} does not exist; restore it or name another file")
            ids = ids_beside(path)
            if name != "owners" and ids.is_file():
                beside[f"{name} ids"] = ids
        return named | beside


def ids_beside(path: Path) -> Path:
    """Return the path of the ids of an array's rows, if they are kept: `images.ids.json` beside `images.npy`."""
    return path.with_suffix(".ids.json")
