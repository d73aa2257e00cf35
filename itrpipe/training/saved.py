"""Write and read checkpoints, from which training goes on at the exact step, and trained models.

Model, optimiser moments, the method's state, random-number states, position in the epoch, running sums and history go
into tensors and one JSON text of a checkpoint; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from itrpipe.config import leaves
from itrpipe.encoders.encoder import TEXT, VISION, Encoder, refuse_not_finite
from itrpipe.encoders.images import ImageReader
from itrpipe.encoders.texts import TextReader
from itrpipe.engine.work import CUDA
from itrpipe.errors import DataError, UsageError
from itrpipe.models.captions import VOCABULARY, CaptionTokens, PieceIds, load_tokens, save_tokens
from itrpipe.models.declaration import BackboneSettings, backbone_family, backbones, network_module
from itrpipe.storage.artifact import partial_of
from itrpipe.storage.disk import (
    CHECKSUM,
    STAMP_HERE,
    check_stamp,
    file_digest,
    link_files,
    read_json,
    reading,
    stamped,
    write_bytes,
    write_json,
)
from itrpipe.training.distributed import AnyMatcher

MODEL = "model.safetensors"
CONFIG = "config.json"
ABOUT, SETTINGS = "itrpipe", "settings"
"""Keys of the `config.json` of an export: where the model comes from; and in it, where the file is that of a joint
model, the settings that build it."""

ADAPTERS = "adapter"
"""Folder of the weights of adapters."""
FROZEN_ENCODER = "encoder"
"""Folder of a frozen encoder beside its vectors."""
_MAY_DIFFER = ("phase", "augment")
"""Settings of a backbone that say nothing of its weights."""
_MOMENTS = "optimizer/"
_REMEDY = "remove {} and run the same command again"


@dataclass
class Position:
    """The place that a run has come to.

    Attributes:
        epoch: epochs finished.
        step: steps finished inside the current epoch.
        updates: optimiser updates finished.
        sums: running sums of losses and statistics since the last validation.
        history: one row per validation.
        best_score, best_row: best validation so far; the row is -1 before the first.
        best_digest: sha256 of the file of its weights.
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best_score: float = float("-inf")
    best_row: int = -1
    best_digest: str = ""


def save_checkpoint(
    path: Path,
    parts: Mapping[str, nn.Module],
    frozen: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
) -> None:
    """Write a checkpoint atomically.

    Args:
        path: of the file.
        parts: the modules that have a state by their names: the model, those of the method, an average of weights. A
            tensor that several of them have is kept once.
        frozen: encoders that stay as they are opened, whose weights are not kept.
        optimizer: its moments are kept.
        position: of the training.
    """
    tensors = {}
    for name, state in states_of(parts, frozen).items():
        for key, tensor in state.items():
            tensors[f"{name}/{key}"] = tensor
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"{_MOMENTS}{number}/{name}"] = torch.as_tensor(value)
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    # Under one key, because safetensors writes several in any order.
    metadata = {"position": json.dumps({**asdict(position), CHECKSUM: STAMP_HERE})}
    write_bytes(path, stamped(save(_on_host(tensors), metadata)))


def load_checkpoint(
    path: Path, parts: Mapping[str, nn.Module], frozen: nn.Module, optimizer: torch.optim.Optimizer
) -> Position:
    """Put parts, optimiser and random-number state back to where the checkpoint was written.

    Raises:
        DataError: the file is damaged or of another model.
    """
    remedy = _REMEDY.format(partial_of(path))
    with reading(path, "a checkpoint of this run", remedy):
        check_stamp(path, remedy)
        states = defaultdict(dict)
        for key, tensor in load_file(path).items():
            place, _, name = key.rpartition("/")
            states[place][name] = tensor
        with safe_open(path, framework="pt") as file:
            position = json.loads(file.metadata()["position"])
        position.pop(CHECKSUM)
        position = Position(**position)
        moments = {}
        for place, state in states.items():
            if place.startswith(_MOMENTS):
                moments[int(place.removeprefix(_MOMENTS))] = state
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        for name, saved in states_of(parts, frozen).items():
            # The tensors that frozen encoders or earlier parts have stay as they are.
            state = parts[name].state_dict()
            elsewhere = {key: tensor for key, tensor in state.items() if key not in saved}
            parts[name].load_state_dict(elsewhere | states[name])
    torch.set_rng_state(states["random"]["cpu"])
    if "cuda" in states["random"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random"]["cuda"])
    return position


def states_of(parts: Mapping[str, nn.Module], frozen: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return the states of parts without that of frozen encoders, each tensor with the first part that has it."""
    states: dict[str, dict[str, Tensor]] = {}
    seen = {id(tensor) for tensor in frozen.state_dict(keep_vars=True).values()}
    for name, part in parts.items():
        state = part.state_dict(keep_vars=True)
        states[name] = {key: tensor for key, tensor in state.items() if id(tensor) not in seen}
        seen |= {id(tensor) for tensor in state.values()}
    return states


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> str:
    """Write weights as safetensors, atomically and byte-deterministically.

    Args:
        path: of the file.
        weights: by their names.

    Returns:
        sha256 of the file, for files that are read again before a manifest lists them.
    """
    content = save(_on_host(weights), {"format": "pt"})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def load_weights(path: Path, model: nn.Module, digest: str) -> None:
    """Load weights written by `save_weights`, which no manifest lists yet.

    Args:
        path: of the file.
        model: to be filled; its frozen encoders are not in the file.
        digest: that the file should have.

    Raises:
        DataError: the file is damaged or of another model.
        UnavailableError: it cannot be read now.
    """
    remedy = _REMEDY.format(partial_of(path))
    with reading(path, "the weights of this model", remedy):
        if file_digest(path) != digest:
            raise DataError(f"{path} does not match its checksum; {remedy}")
        model.load_state_dict(model.state_dict() | load_file(path))


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    on_host = {}
    for name, tensor in tensors.items():
        on_host[name] = tensor.detach().contiguous().cpu()
    return on_host


@dataclass(frozen=True)
class SavedModel:
    """A model as training left it.

    Attributes:
        model: the `Matcher` of a backbone with the weights that validated best, in evaluation mode, on the CPU.
        tokens: turns captions into the ids that it was trained with.
        config: its settings, `image_dim` and `vocabulary_size`; of backbones that open encoders also `global_dim` and
            `boxes`; of an export, under `itrpipe`, where it comes from.
    """

    model: Any
    tokens: CaptionTokens
    config: dict[str, Any]

    @property
    def settings(self) -> Any:
        """Return the settings of the backbone, of its own class."""
        return _backbone(self.config)

    @property
    def embed_dim(self) -> int:
        """Return D of its embeddings, or of its regions and words."""
        return getattr(self.model, "embed_dim", None) or self.config["model"]["embed_dim"]

    @property
    def images(self) -> ImageReader | None:
        """Return the reader that makes frames of photographs; None where the model reads features."""
        vision = getattr(self.model, VISION, None)
        return vision.images if isinstance(vision, Encoder) else None


def chosen_precision(precision: str, device: torch.device) -> str:
    """Return `fp32` or `bf16` as the settings have it; `auto` becomes that of the device.

    On a processor it is single precision even where bfloat16 is faster, so that all processors train the same model.
    """
    if precision != "auto":
        return precision
    if device.type == CUDA and torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp32"


def build_model(
    settings: Mapping[str, Any], image_dim: int, vocabulary_size: int, encoders: Any | None = None
) -> AnyMatcher:
    """Return the backbone that `settings` describes, freshly initialised.

    Args:
        settings: dumped settings of `itrpipe train`, as in `config.json`.
        image_dim: D_in, width of a region feature.
        vocabulary_size: number of token ids.
        encoders: opened by the module of the backbone, of those that have some.
    """
    arguments = [_backbone(settings), image_dim, vocabulary_size]
    if encoders is not None:
        arguments.append(encoders)
    return network_module(settings["backbone"]).build(*arguments)


def save_model(folder: Path, model: AnyMatcher, frozen: Mapping[str, Path]) -> None:
    """Write a trained model: encoders of transformers each as a folder of theirs, and the weights of all else.

    Args:
        folder: of the artifact; `MODEL` in it is written anew.
        model: whose weights they are.
        frozen: name of an encoder that stays as it is -> artifact that has read everything with it and keeps it. Its
            files are linked, so that all trainings of two heads take the space of one encoder.

    Raises:
        DiskFullError: no space is left.
    """
    for name, encoder in encoders_of(model).items():
        shutil.rmtree(folder / name, ignore_errors=True)  # of a run that was killed here
        if name in frozen and not encoder.is_joint:
            link_files(frozen[name] / FROZEN_ENCODER, folder / name)
        else:
            encoder.save(folder / name)
    save_weights(folder / MODEL, own_state(model))


def save_adapters(folder: Path, model: AnyMatcher, settings: Any) -> None:
    """Write the weights of adapters as peft does, beside the model that they are to be merged into.

    Args:
        folder: of the artifact; `ADAPTERS` in it is written anew, with a folder for each encoder where there are two.
        model: with adapters.
        settings: `TrainSettings` of the training.
    """
    from peft import LoraConfig
    from peft.tuners.tuners_utils import BaseTunerLayer

    bases = {} if settings.start_from else settings.model.pretrained()
    shutil.rmtree(folder / ADAPTERS, ignore_errors=True)  # of a run that was killed here
    for name, encoder in encoders_of(model).items():
        adapted = [place for place, layer in encoder.network.named_modules() if isinstance(layer, BaseTunerLayer)]
        if not adapted:  # a frozen one
            continue
        tensors = {}
        for key, weights in encoder.network.state_dict().items():
            if ".lora_" in key:
                tensors[f"base_model.model.{key.replace('.default.', '.')}"] = weights
        config = LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            base_model_name_or_path=bases.get(name, settings.model.joint()),
            inference_mode=True,
        )
        place = folder / ADAPTERS
        if not encoder.is_joint:
            place /= name
        place.mkdir(parents=True)
        write_json(place / "adapter_config.json", config.to_dict() | {"target_modules": adapted})
        save_weights(place / "adapter_model.safetensors", tensors)


def encoders_of(model: nn.Module) -> dict[str, Encoder]:
    """Return the encoders of transformers that a model is made of, by the names of their folders."""
    encoders = {}
    for name, part in model.named_modules():
        if isinstance(part, Encoder):
            encoders[name.rpartition(".")[2]] = part
    return encoders


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model beside those of encoders of transformers."""
    encoders = tuple(f"{name}." for name, part in model.named_modules() if isinstance(part, Encoder))
    outside_encoders = {}
    for name, weights in model.state_dict().items():
        if not name.startswith(encoders):
            outside_encoders[name] = weights
    return outside_encoders


def save_description(
    folder: Path,
    model: AnyMatcher,
    tokens: CaptionTokens,
    settings: Mapping[str, Any],
    sizes: Mapping[str, Any],
) -> None:
    """Write the reader of a model's captions beside its weights, and all that is needed to build it again.

    Args:
        folder: of the artifact.
        model: as trained.
        tokens: reads captions.
        settings: dumped settings of `itrpipe train`.
        sizes: of the features, by the names that `load_model` reads.
    """
    if _text_reader(model) is None or not isinstance(tokens, PieceIds):  # else it lies with the encoder
        save_tokens(folder, tokens)
    write_json(folder / CONFIG, {**settings, **sizes, "vocabulary_size": len(tokens)})


def start_from(folder: Path, model: AnyMatcher, settings: Mapping[str, Any], tokens: CaptionTokens) -> None:
    """Give a model the weights of a trained one.

    Raises:
        UsageError: settings that decide the meaning of its weights differ.
        DataError: it has another vocabulary, or its files are damaged or hold values that are not finite.
    """
    config = read_json(folder / CONFIG)
    trained_with = dict(leaves(config["model"]))
    for key, value in leaves(settings["model"]):
        if key.partition(".")[0] in _MAY_DIFFER:
            continue
        trained = trained_with.get(key)
        if trained != value:
            raise UsageError(
                f"{folder} was trained with model.{key} = {trained}, which model.{key} = {value} cannot start from; "
                "give both runs the same value"
            )
    saved = load_model(folder)
    if saved.tokens != tokens:
        raise DataError(f"{folder} was trained with another vocabulary; give both runs the same min_word_count")
    model.load_state_dict(saved.model.state_dict())


def load_model(folder: Path) -> SavedModel:
    """Read a trained or exported model, in our layout or as a joint model of transformers.

    Raises:
        DataError: one of the files is damaged, holds values that are not finite, or they do not belong together.
    """
    path = folder / CONFIG
    with reading(path, "settings of itrpipe", "run `itrpipe train` or `itrpipe export` again"):
        config = read_json(path)
        about = config.get(ABOUT, {})
        is_joint = SETTINGS in about
        if is_joint:  # in the configuration of a joint model
            config = {**about.pop(SETTINGS), ABOUT: about}
        family = backbone_family(config["backbone"])
    if family not in backbones():
        raise DataError(f"{path}: there is no backbone {family!r}; install the package that brings it")
    settings = _backbone(config)
    encoders = None
    if settings.opens_encoders:
        network = network_module(config["backbone"])
        encoders = network.open_encoders(settings, config["global_dim"], config["boxes"], folder)
    model = build_model(config, config["image_dim"], config["vocabulary_size"], encoders)
    tokens: CaptionTokens
    reader = _text_reader(model)
    if reader is None or reader.tokenizer is None:
        tokens = load_tokens(folder, settings)
    else:
        tokens = PieceIds.of(model.text, settings)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    if len(tokens) != config["vocabulary_size"]:
        raise DataError(f"{path} and {VOCABULARY} do not belong together; run `itrpipe train` again")
    if not is_joint:  # else the encoder holds all weights
        with reading(folder / MODEL, "the weights of this model", "run `itrpipe train` again"):
            state = load_file(folder / MODEL)
            if state.keys() != own_state(model).keys():
                raise ValueError(f"its weights are {len(state)} and the model has {len(own_state(model))} or others")
            model.load_state_dict(state, strict=False)
    refuse_not_finite(folder / MODEL, model, "run `itrpipe train` again, with a lower learning_rate")
    model.eval()
    return SavedModel(model, tokens, config)


def max_tokens_of(model: AnyMatcher) -> int:
    """Return the longest caption in tokens that a model takes, where its text encoder has a limit."""
    reader = _text_reader(model) or getattr(model, TEXT, None)
    return getattr(reader, "max_tokens", sys.maxsize)


def _text_reader(model: AnyMatcher) -> TextReader | None:
    """Return the reader of captions of an encoder of transformers; None of other models."""
    text = getattr(model, TEXT, None)
    return text.texts if isinstance(text, Encoder) else None


def _backbone(settings: Mapping[str, Any]) -> BackboneSettings:
    return backbones()[backbone_family(settings["backbone"])].model_validate(settings["model"])
