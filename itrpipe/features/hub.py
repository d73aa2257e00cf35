"""Models and weights in files, in folders and on the Hugging Face hub: whether they are there, and what they hold.

Code that a file of weights holds is never run. Read without torch; what needs more imports it when it is called.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from itrpipe.errors import DataError, MissingInputError, UsageError, reason_of
from itrpipe.storage.disk import reading

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG = "config.json"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SHARDS = {SAFETENSORS: "model-*-of-*.safetensors", PICKLES: "pytorch_model-*-of-*.bin"}
RANDOM_NOTE = "random weights: these features are noise"
TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""Files of which a tokenizer has at least one."""
SUFFIXES = (".bin", ".pth", ".pt", ".safetensors")
# Counters of batches serve training only; not every file has them.
_COUNTER = ".num_batches_tracked"
_MODULE = "0_CLIPModel"
_READ_MODULES = {"CLIPModel", "Transformer", "Pooling", "Normalize"}
"""Of sentence-transformers, that change nothing in what is read of a folder."""
_SECONDS = 10.0
"""How long the hub is waited for."""
_NO_CONNECTION = "no connection, and no earlier download"
_REASONS = {
    "RepositoryNotFoundError": "there is no such model, or it needs a login",
    "RevisionNotFoundError": "it has no revision '{}'",
    "HFValidationError": "this can be no name of a model",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and there is no earlier download",
    **dict.fromkeys(("LocalEntryNotFoundError", "NetworkError", "TimeoutException"), _NO_CONNECTION),
}
"""Errors of the hub's client and of its HTTP library, which have no base in common, and what they mean."""


@dataclass(frozen=True)
class Kind:
    """One kind of network.

    Attributes:
        network: class of transformers.
        part: the sub-configuration of this network where a checkpoint holds more than that, else empty.
        own: its own vector of an image or a caption: it has none; it is `trained` with it, as CLIP and SigLIP are; it
            always gives an `output` of a pooler; or it can have a `pooler` with weights of its own, which is left out
            unless it is asked for.
        projection: module that becomes the identity where a checkpoint lacks it.
        any_frame: whether a vision network takes frames of other sizes than its `image_size`.
    """

    network: str
    part: str = ""
    own: Literal["", "trained", "output", "pooler"] = ""
    projection: str = ""
    any_frame: bool = False

    def options(self, pooled: bool) -> dict[str, Any]:
        """Of the network's constructor, with its pooler or without."""
        return {"add_pooling_layer": False} if self.own == "pooler" and not pooled else {}


PATCHES = {
    "vit": Kind("ViTModel", own="pooler"),
    "vit_msn": Kind("ViTMSNModel"),
    "deit": Kind("DeiTModel", own="pooler"),
    "beit": Kind("BeitModel", own="output"),
    "dinov2": Kind("Dinov2Model", own="output", any_frame=True),
    "dinov2_with_registers": Kind("Dinov2WithRegistersModel", own="output", any_frame=True),
    "dinov3_vit": Kind("DINOv3ViTModel", own="output", any_frame=True),
    "clip": Kind("CLIPVisionModelWithProjection", "vision_config", own="trained"),
    "clip_vision_model": Kind("CLIPVisionModelWithProjection", own="trained", projection="visual_projection"),
    "siglip": Kind("SiglipVisionModel", "vision_config", own="trained"),
    "siglip_vision_model": Kind("SiglipVisionModel", own="trained"),
}
"""Model type -> vision transformer."""
MAPS = {
    "resnet": Kind("ResNetModel", any_frame=True),
    "regnet": Kind("RegNetModel", any_frame=True),
    "convnext": Kind("ConvNextModel", any_frame=True),
    "convnextv2": Kind("ConvNextV2Model", any_frame=True),
}
"""Model type -> convolutional network."""


VISION_KINDS = PATCHES | MAPS
"""Model type -> network of images."""
TEXT_KINDS: dict[str, Kind] = {
    "bert": Kind("BertModel", own="pooler"),
    "roberta": Kind("RobertaModel", own="pooler"),
    "xlm-roberta": Kind("XLMRobertaModel", own="pooler"),
    "camembert": Kind("CamembertModel", own="pooler"),
    "mpnet": Kind("MPNetModel", own="pooler"),
    "distilbert": Kind("DistilBertModel"),
    "electra": Kind("ElectraModel"),
    "deberta-v2": Kind("DebertaV2Model"),
    "modernbert": Kind("ModernBertModel"),
    "clip": Kind("CLIPTextModelWithProjection", "text_config", own="trained"),
    "clip_text_model": Kind("CLIPTextModelWithProjection", own="trained", projection="text_projection"),
    "siglip": Kind("SiglipTextModel", "text_config", own="trained"),
    "siglip_text_model": Kind("SiglipTextModel", own="trained"),
}
"""Model type -> network of captions."""

_ENCODERS = {"vision": (VISION_KINDS, PROCESSOR_FILES), "text": (TEXT_KINDS, TOKENIZERS)}
"""Side -> the kinds of networks that can encode it, and files of which there must be one."""


def local_folder(model: str) -> Path | None:
    """The folder that a name of a model stands for; None for a hub id.

    Raises:
        MissingInputError: it reads like a path, or is a file.
        DataError: there is a pipe or a device in the folder.
    """
    path = Path(model).expanduser()
    if os.path.isdir(path):
        for file in path.iterdir():
            if file.exists() and not (file.is_file() or file.is_dir()):  # a pipe would be waited for
                raise DataError(f"{file} is no regular file; put the file of the model there")
        modules = path / "modules.json"
        listed = modules.read_text("utf-8", errors="replace") if modules.is_file() else ""
        if further := set(re.findall(r'"type":\s*"[^"]*\.(\w+)"', listed)) - _READ_MODULES:
            raise MissingInputError(
                f"{model} has a module {' and '.join(sorted(further))} of sentence-transformers, which is not read; "
                "mine with its vectors instead: itrpipe mine-negatives --embeddings"
            )
        own = path / _MODULE  # where sentence-transformers has put a CLIP
        return own if own.is_dir() and not (path / CONFIG).is_file() else path
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or os.path.exists(path):
        raise MissingInputError(f"{model} is not a folder; name a folder with {CONFIG}, or a hub id")
    return None


def require_reachable(model: str, revision: str = "main") -> None:
    """Refuses a folder that is no model, and a name that was never fetched and that the hub does not offer now.

    One request tells, and none where it was fetched before.

    Args:
        model: folder or hub id.
        revision: of the hub id.

    Raises:
        MissingInputError: likewise.
    """
    folder = local_folder(model)
    if folder is None:
        _ask(model, revision)
    elif not (folder / CONFIG).is_file():
        raise MissingInputError(
            f"{model} has no {CONFIG}, and so is no model of transformers; name a folder that its `save_pretrained` or "
            "`itrpipe export` has written, or a hub id"
        )


def require_encoder(side: str, model: str, revision: str = "main") -> None:
    """Refuses what is no encoder of images or captions; of a folder here its files are looked at too.

    Args:
        side: `vision` or `text`.
        model, revision: as of `require_reachable`.

    Raises:
        MissingInputError: as of `require_reachable`, or the folder lacks a file.
        DataError, UsageError: as of `read_kind`.
    """
    require_reachable(model, revision)
    folder = local_folder(model)
    if folder is not None:
        kinds, required = _ENCODERS[side]
        read_kind(folder, kinds)
        find_folder(model, revision, weights=True, required=required)


def read_kind(folder: Path, kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of the network in a folder.

    Raises:
        DataError: the configuration is damaged, or the network has no layer.
        UsageError: the model type is not among the kinds.
    """
    path = folder / CONFIG
    with reading(path, "a configuration", "download the model again"):
        config = json.loads(path.read_text("utf-8"))
        name = str(config.get("model_type"))
        if name not in kinds:
            raise UsageError(
                f"{path}: model type '{name}' is not supported, supported are {', '.join(kinds)}; choose another model."
            )
        kind = kinds[name]
        part = config.get(kind.part, {}) if kind.part else config
        layers = part.get("num_hidden_layers", 1)
        if layers < 1:
            raise DataError(f"{path}: num_hidden_layers = {layers}, which is no network; download the model again.")
    return kind


@functools.lru_cache(maxsize=64)
def _ask(model: str, revision: str) -> None:
    """Remembers what can be fetched, so that a plan that is checked again asks once; what cannot is an error."""
    import huggingface_hub

    with fetching(model, revision):
        if not isinstance(huggingface_hub.try_to_load_from_cache(model, CONFIG, revision=revision), str):
            huggingface_hub.HfApi().model_info(model, revision=revision, timeout=_SECONDS)


@contextlib.contextmanager
def fetching(model: str, revision: str) -> Iterator[None]:
    """Turns what the client of the hub raises into one line.

    Raises:
        MissingInputError: there is no such hub id or revision, or the hub cannot be reached.
    """
    try:
        yield
    except Exception as error:
        told = (_REASONS.get(kind.__name__) for kind in type(error).__mro__)
        reason = next(filter(None, told), reason_of(error)).replace("{}", revision)
        here = "" if "/" in model else "no folder here has this name, and "
        raise MissingInputError(
            f"model {model}: {here}the Hugging Face hub does not give it ({reason}); correct the name, or download "
            "the model elsewhere and name its folder"
        ) from None


def find_folder(
    model: str,
    revision: str,
    *,
    weights: bool,
    required: tuple[str, ...] = PROCESSOR_FILES,
    further: tuple[str, ...] = (),
) -> tuple[Path, tuple[str, ...]]:
    """Returns the folder with a model's files, after downloading them where needed, and notes.

    Args:
        model: hub id or folder.
        revision: of the hub id.
        weights: whether these are wanted too.
        required: files beside the configuration of which there must be one.
        further: files that are wanted where there are some.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
    """
    folder = local_folder(model)
    notes = ()
    if folder is None:
        wanted = (*SAFETENSORS, _SHARDS[SAFETENSORS]) if weights else ()
        folder = download(model, revision, (CONFIG, *required, *further, *wanted))
        if weights and not has_any(folder, SAFETENSORS):
            folder = download(model, folder.name, (*PICKLES, _SHARDS[PICKLES]))
        notes = (f"{model} is at commit {folder.name}",)
    for names in ((CONFIG,), required, *([SAFETENSORS + PICKLES] if weights else [])):
        if not has_any(folder, names):
            raise MissingInputError(f"{folder} has no {' nor '.join(names)}; download all files of the model again.")
    return folder, notes


def has_any(folder: Path, names: tuple[str, ...]) -> bool:
    """Whether a folder has a file of one of these names."""
    return any((folder / name).is_file() for name in names)


def download(model: str, revision: str, names: tuple[str, ...]) -> Path:
    """Returns the folder of the hub's cache, named by the commit, that holds those of the files that there are.

    Args:
        model: hub id.
        revision: branch, tag or commit.
        names: of files, or patterns of them.

    Raises:
        MissingInputError: there is no such hub id or revision, or the hub cannot be reached.
    """
    import huggingface_hub

    with fetching(model, revision), quiet(progress=sys.stderr.isatty()):
        return Path(huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=list(names)))


@contextlib.contextmanager
def quiet(*, progress: bool = False) -> Iterator[None]:
    """Keeps the reports of transformers from the terminal, and unless `progress` its bars too."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars and not progress:
            logging.enable_progress_bar()


def local_weights(weights: str) -> Path | None:
    """The file of weights that a setting names, itself or by the folder that holds it; None where there is neither.

    Raises:
        MissingInputError: the folder holds no such file, or the setting can name nothing else.
        DataError: the file has another suffix than `SUFFIXES`, or the folder holds several.
    """
    path = Path(weights).expanduser()
    if not path.exists():
        if path.suffix in SUFFIXES or path.is_absolute():
            raise MissingInputError(f"{path} does not exist; name a file of weights, or a folder that holds one.")
        return None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file for file in files if file.suffix in SUFFIXES]
    if len(found) != 1:
        kind = DataError if found or not path.is_dir() else MissingInputError
        raise kind(f"{path} holds {len(found)} files of weights; name one that ends in {', '.join(SUFFIXES)}.")
    return found[0]


@contextlib.contextmanager
def reading_weights(where: Path, remedy: str) -> Iterator[None]:
    """`reading` of weights, in files that may hold more than tensors.

    Raises:
        DataError: they do, or are damaged.
    """
    with reading(where, "weights", remedy):
        try:
            yield
        except pickle.UnpicklingError:  # its message advises to run whatever the file holds
            raise DataError(
                f"{where} is damaged or holds objects besides tensors, which are never loaded; {remedy}"
            ) from None


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Draws weights that are the same every time, and leaves the caller's random numbers as they are."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of the CPU alone, which is what is forked
        yield


def read_state(path: Path) -> dict[str, Tensor]:
    """Reads a state dict, alone in its file or under the key `model`; code in the file is never run.

    Raises:
        DataError: the file is damaged, or holds something else.
    """
    import torch
    from safetensors.torch import load_file

    with reading_weights(path, "get it again, or name a plain state dict"):
        safe = path.suffix == ".safetensors"
        content: Any = load_file(path) if safe else torch.load(path, "cpu", weights_only=True)
        content = dict(content.get("model", content))
        for key, value in content.items():
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"'{key}' is not a tensor")
    return {str(key): value for key, value in content.items()}


def fill(network: nn.Module, path: Path, state: Mapping[str, Tensor], remedy: str) -> tuple[str, ...]:
    """Gives a network all its tensors, in float32; it may have been made without memory for them.

    Args:
        network: it gets the tensors themselves, where they are float32 already.
        path: where they are from, for messages.
        state: the tensors of the file, by their names in the network.
        remedy: for messages.

    Returns:
        A note on tensors that the network does not have, if there are some.

    Raises:
        DataError: a tensor is missing, has another shape, or holds no finite numbers.
    """
    import torch

    tensors = {name: torch.tensor(0) for name in network.state_dict() if name.endswith(_COUNTER)}
    tensors |= {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    with reading(path, "weights", remedy):
        missing, further = network.load_state_dict(tensors, strict=False, assign=True)
    if missing:
        raise DataError(f"{path} lacks '{missing[0]}', {len(missing)} tensors in all; {remedy}.")
    refuse_not_finite(path, network.state_dict(), remedy)
    further = [name for name in further if not name.endswith(_COUNTER)]
    return (f"{path}: '{further[0]}', one of {len(further)} tensors, is none of this network",) if further else ()


def refuse_not_finite(where: Path, state: Mapping[str, Tensor], remedy: str) -> None:
    """Refuses weights that would make every score NaN, before anything is computed with them.

    Args:
        where: file or folder of the weights.
        state: name -> tensor; whole numbers are passed over.
        remedy: for the message.

    Raises:
        DataError: a tensor holds NaN or infinity.
    """
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            bad = tensor.numel() - int(tensor.isfinite().sum())
            raise DataError(f"{where}: '{name}' holds {bad:,} values that are no finite numbers; {remedy}")
