"""Opens a trained model: what `itrpipe export` or `itrpipe train` wrote, or a joint model of transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from itrpipe.engine.work import resolve_device
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import feature_settings, passes_of
from itrpipe.features.hub import CONFIG, download, local_folder
from itrpipe.retrieval.model import FeatureReading, RetrievalModel
from itrpipe.retrieval.pretrained import open_joint
from itrpipe.scene_graph.settings import ParseSettings
from itrpipe.storage.artifact import MANIFEST, existing_input, read_manifest
from itrpipe.storage.disk import reading
from itrpipe.storage.integrity import read_checked_json
from itrpipe.training.saved import ABOUT, SavedModel, load_model

_Opened = tuple[SavedModel, str, FeatureReading, ParseSettings | None]
"""A model, its name, what it reads of images, and of captions where it reads phrases."""
_FILES = (CONFIG, "*.safetensors", "*.json", "*.txt", "*.model")
"""What is fetched of a model of the hub: no pickles and no code."""


def load(folder_or_model: str | os.PathLike[str], *, device: str = "auto", revision: str = "main") -> RetrievalModel:
    """Opens a model that encodes, scores and searches images and texts.

    Args:
        folder_or_model: a folder that `itrpipe export` wrote; the artifact of a training, `data/DATASET/train/NAME`; or
            a folder of transformers with CLIP, SigLIP or a `VisionTextDualEncoderModel`. Or the id of one on the hub.
        device: `auto` takes CUDA where there is one; `cpu`, or `cuda`.
        revision: branch, tag or commit of a hub id.

    Returns:
        The model, in evaluation mode. Weights are read from safetensors only, and no code that comes with them is run.

    Raises:
        MissingInputError: there is no such folder or hub id, or it lacks a file.
        DataError: a file is damaged.
        UsageError: it is none of these models, or there is no CUDA device.

    Example:
        >>> model = itrpipe.load("exported")  # doctest: +SKIP
        >>> model.search("two dogs on a beach", ["a.jpg", "b.jpg"])  # doctest: +SKIP
        [Match(index=1, score=0.31), Match(index=0, score=0.12)]
    """
    place, name = resolve_device(device), os.fspath(folder_or_model)
    folder = fetch(name, revision)
    if (folder / MANIFEST).is_file():
        return RetrievalModel(*_trained(folder), device=place)
    if not (folder / CONFIG).is_file():
        raise MissingInputError(
            f"{folder} has no {CONFIG}; name the folder of a model, such as one of `itrpipe export`"
        )
    with reading(folder / CONFIG, "a model", "export the model again, or fetch it again"):
        config = read_checked_json(folder / CONFIG)
        exported = isinstance(config, dict) and ("backbone" in config or ABOUT in config)
        opened = _exported(folder) if exported else _joint(folder, name)
    return RetrievalModel(*opened, device=place)


def fetch(model: str, revision: str = "main") -> Path:
    """The folder that a model is, or that of the files of a model of the hub, downloaded where they are not there yet.

    Raises:
        MissingInputError: there is no such hub id, or the hub cannot be reached.
    """
    return local_folder(model) or download(model, revision, _FILES)


def _trained(folder: Path) -> _Opened:
    """An artifact of `train`."""
    manifest = read_manifest(folder)
    if manifest.stage != "train":
        raise UsageError(f"{folder} is an artifact of {manifest.stage} and holds no model; name one of train")
    saved = load_model(folder)
    extract, parser = read_manifest(existing_input(folder, manifest, "extract")), None
    if saved.settings.reads_phrases:
        parser = ParseSettings.recorded(read_manifest(existing_input(folder, manifest, "parse")).settings)
    return saved, manifest.label, _reading(extract.conf, extract.settings), parser


def _exported(folder: Path) -> _Opened:
    """A folder of `itrpipe export`."""
    saved = load_model(folder)
    about = saved.config.get(ABOUT)
    if not isinstance(about, dict) or not isinstance(about.get("run"), str) or "features" not in about:
        raise DataError(
            f"{folder / CONFIG} does not say what the model reads of images; name a folder of `itrpipe export`, or of "
            "a training with its manifest.json"
        )
    parser = ParseSettings.recorded(about.get("parser")) if saved.settings.reads_phrases else None
    features = about["features"]
    # Exports of earlier versions do not say so; their extractor tells itself when it finds no weights.
    elsewhere = not features.get("of_anywhere", True)
    return saved, about["run"], _reading(features["extractor"], features["settings"], elsewhere=elsewhere), parser


def _joint(folder: Path, name: str) -> _Opened:
    """A joint model of transformers."""
    saved, photographs = open_joint(folder, name)
    return saved, name, FeatureReading("pixels", {}, photographs), None


def _reading(name: str, settings: Mapping[str, Any], *, elsewhere: bool = False) -> FeatureReading:
    parts = passes_of(name, feature_settings(settings).model_validate(settings))
    if not parts:
        raise DataError(f"the features {name!r} name no extractor; give the folder as it was exported")
    return FeatureReading(name, parts, elsewhere=elsewhere)
