"""A trained model as files: its weights, its vocabulary, and the settings and sizes to build it around them again."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itrpipe.config import leaves
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.disk import read_json, write_json
from itrpipe.errors import DataError, UsageError
from itrpipe.models.settings import backbone_family, backbones
from itrpipe.training.checkpoint import load_weights, save_weights
from itrpipe.training.encode import AnyMatcher

MODEL, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocab.json"

PHASE = "phase"


@dataclass(frozen=True)
class SavedModel:
    """A model as training left it.

    Attributes:
        model: with the weights that validated best, in evaluation mode, on the CPU.
        vocabulary: that it was trained with.
        config: its settings, `image_dim` and `vocabulary_size`.
    """

    model: AnyMatcher
    vocabulary: Vocabulary
    config: dict[str, Any]


def build_model(settings: Mapping[str, Any], image_dim: int, vocabulary_size: int) -> AnyMatcher:
    """Makes the backbone that `settings` describes, freshly initialised.

    Args:
        settings: dumped settings of `itrpipe train`, as in `config.json`.
        image_dim: D_in, width of a region feature.
        vocabulary_size: number of token ids.
    """
    backbone = backbone_family(settings["backbone"])
    module = importlib.import_module(f"itrpipe.models.{backbone}")
    return module.build(backbones()[backbone].model_validate(settings["model"]), image_dim, vocabulary_size)


def save_model(
    folder: Path, model: AnyMatcher, vocabulary: Vocabulary, settings: Mapping[str, Any], image_dim: int
) -> None:
    """Writes the three files of a trained model."""
    save_weights(folder / MODEL, model)
    vocabulary.save(folder / VOCABULARY)
    write_json(folder / CONFIG, {**settings, "image_dim": image_dim, "vocabulary_size": len(vocabulary)})


def start_from(folder: Path, model: AnyMatcher, settings: Mapping[str, Any], vocabulary: Vocabulary) -> None:
    """Gives a model the weights of a trained one.

    Raises:
        UsageError: the trained model is of other settings; which part of a model is trained may differ.
        DataError: it has another vocabulary, or its files are damaged.
    """
    config = read_json(folder / CONFIG)
    for key, value in leaves(settings["model"]):
        if key != PHASE and (trained := config["model"].get(key)) != value:
            raise UsageError(
                f"{folder} was trained with model.{key} = {trained}, which model.{key} = {value} cannot start from; "
                "give both runs the same value"
            )
    if Vocabulary.load(folder / VOCABULARY) != vocabulary:
        raise DataError(f"{folder} was trained with another vocabulary; give both runs the same min_word_count")
    load_weights(folder / MODEL, model)


def load_model(folder: Path) -> SavedModel:
    """Reads what `save_model` wrote.

    Raises:
        DataError: one of the files is damaged or they do not belong together.
    """
    config, vocabulary = read_json(folder / CONFIG), Vocabulary.load(folder / VOCABULARY)
    if not isinstance(config, dict) or len(vocabulary) != config.get("vocabulary_size"):
        raise DataError(f"{folder / CONFIG} and {VOCABULARY} do not belong together; run `itrpipe train` again")
    model = build_model(config, config["image_dim"], config["vocabulary_size"])
    load_weights(folder / MODEL, model)
    model.eval()
    return SavedModel(model, vocabulary, config)
