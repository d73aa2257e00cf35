"""A trained model as files: its weights, its vocabulary, and the settings and sizes to build it around them again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from itrpipe.config import leaves
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError, UsageError
from itrpipe.features.hub import refuse_not_finite
from itrpipe.models.declaration import BackboneSettings
from itrpipe.models.registry import backbone_family, backbones, network_module
from itrpipe.storage.disk import write_json
from itrpipe.storage.integrity import checked, read_checked_json
from itrpipe.training.captions import VOCABULARY, CaptionTokens, load_tokens, save_tokens
from itrpipe.training.checkpoint import load_weights, save_weights
from itrpipe.training.encode import AnyMatcher

MODEL, CONFIG = "model.safetensors", "config.json"
ABOUT, SETTINGS = "itrpipe", "settings"
"""Keys of the `config.json` of an export: what building the model does not need, and in it, where the file is that of a
class of transformers, all that does."""

PHASE, NETWORKS = "phase", "networks"


@dataclass(frozen=True)
class SavedModel:
    """A model as training left it.

    Attributes:
        model: with the weights that validated best, in evaluation mode, on the CPU.
        tokens: turns captions into the ids that it was trained with.
        config: its settings, `image_dim` and `vocabulary_size`; of encoders of transformers also `networks`; of an
            export, under `itrpipe`, where it comes from.
    """

    model: AnyMatcher
    tokens: CaptionTokens
    config: dict[str, Any]

    @property
    def settings(self) -> BackboneSettings:
        """Settings of the backbone."""
        return _backbone(self.config)

    @property
    def embed_dim(self) -> int:
        """D of its embeddings, or of its regions and words."""
        return getattr(self.model, "embed_dim", None) or self.config["model"]["embed_dim"]

    @property
    def frame(self) -> tuple[int, int] | None:
        """Height and width of the images that it reads; None where it reads features."""
        return getattr(getattr(self.model, "vision", None), "frame", None)

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of a model that has no tokenizer of its own."""
        assert isinstance(self.tokens, Vocabulary)
        return self.tokens


def build_model(
    settings: Mapping[str, Any], image_dim: int, vocabulary_size: int, encoders: Any | None = None
) -> AnyMatcher:
    """Makes the backbone that `settings` describes, freshly initialised.

    Args:
        settings: dumped settings of `itrpipe train`, as in `config.json`.
        image_dim: D_in, width of a region feature.
        vocabulary_size: number of token ids.
        encoders: opened by the module of the backbone, of those that have some.
    """
    opened = () if encoders is None else (encoders,)
    return network_module(settings["backbone"]).build(_backbone(settings), image_dim, vocabulary_size, *opened)


def save_model(
    folder: Path, model: AnyMatcher, tokens: CaptionTokens, settings: Mapping[str, Any], image_dim: int
) -> None:
    """Writes a trained model: weights, what reads captions, and all that is needed to build it again."""
    save_weights(folder / MODEL, model)
    save_tokens(folder, tokens)
    networks = {NETWORKS: description} if (description := model.description()) else {}
    sizes = {"image_dim": image_dim, "vocabulary_size": len(tokens)}
    write_json(folder / CONFIG, {**settings, **sizes, **networks})


def start_from(folder: Path, model: AnyMatcher, settings: Mapping[str, Any], tokens: CaptionTokens) -> None:
    """Gives a model the weights of a trained one.

    Raises:
        UsageError: the trained model is of other settings; which part of a model is trained may differ.
        DataError: it has another vocabulary, or its files are damaged or hold values that are not finite.
    """
    config = read_checked_json(folder / CONFIG)
    for key, value in leaves(settings["model"]):
        if key != PHASE and (trained := config["model"].get(key)) != value:
            raise UsageError(
                f"{folder} was trained with model.{key} = {trained}, which model.{key} = {value} cannot start from; "
                "give both runs the same value"
            )
    if load_tokens(folder, _backbone(settings), max_tokens_of(model)) != tokens:
        raise DataError(f"{folder} was trained with another vocabulary; give both runs the same min_word_count")
    _load_finite(folder, model)


def load_model(folder: Path) -> SavedModel:
    """Reads what `save_model` wrote, or what `itrpipe export` did, in our layout or in that of transformers.

    Raises:
        DataError: one of the files is damaged, holds values that are not finite, or they do not belong together.
    """
    config, native = _settings_in(folder / CONFIG)
    encoders = network_module(config["backbone"]).restored(config[NETWORKS]) if NETWORKS in config else None
    model = build_model(config, config["image_dim"], config["vocabulary_size"], encoders)
    tokens = load_tokens(folder, _backbone(config), max_tokens_of(model))
    if len(tokens) != config["vocabulary_size"]:
        raise DataError(f"{folder / CONFIG} and {VOCABULARY} do not belong together; run `itrpipe train` again")
    _load_finite(folder, model, native=native)
    model.eval()
    return SavedModel(model, tokens, config)


def _settings_in(path: Path) -> tuple[dict[str, Any], bool]:
    """Settings of a model, and whether they stand in the configuration of a class of transformers."""
    config = read_checked_json(path)
    about = config.get(ABOUT) if isinstance(config, dict) else None
    native = False
    if isinstance(about, dict) and isinstance(about.get(SETTINGS), dict):
        config, native = {**about[SETTINGS], ABOUT: {key: about[key] for key in about if key != SETTINGS}}, True
    if not isinstance(config, dict) or "backbone" not in config:
        raise DataError(f"{path} holds no settings of itrpipe; run `itrpipe train` or `itrpipe export` again")
    if backbone_family(str(config["backbone"])) not in backbones():
        raise DataError(f"{path}: there is no backbone {config['backbone']!r}; install the package that brings it")
    return config, native


def _load_finite(folder: Path, model: AnyMatcher, *, native: bool = False) -> None:
    if native:
        from itrpipe.models.dual_encoder.native import load_joint  # transformers is large

        checked(folder / MODEL)
        load_joint(folder, cast(Any, model))
    else:
        load_weights(folder / MODEL, model)
    refuse_not_finite(folder / MODEL, model.state_dict(), "run `itrpipe train` again, with a lower learning_rate")


def max_tokens_of(model: AnyMatcher) -> int:
    """Longest caption in tokens that a model takes, where its text encoder has a limit."""
    return getattr(getattr(model, "text", None), "max_tokens", sys.maxsize)


def _backbone(settings: Mapping[str, Any]) -> BackboneSettings:
    return backbones()[backbone_family(settings["backbone"])].model_validate(settings["model"])
