"""Folders of pretrained models, here or on the Hugging Face hub: whether they are there, and what lies in them.

A model is a folder as `save_pretrained` of transformers writes it. Nothing here imports torch or transformers, because
plans are checked before either is needed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from itrpipe.errors import DataError, MissingInputError, reason_of
from itrpipe.storage.disk import reading

CONFIG = "config.json"
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""Files of which a tokenizer has at least one."""
READERS = {"vision": PROCESSORS, "text": TOKENIZERS}
"""Side of a model -> files of which its folder has at least one."""
_READ = {"vision": "images", "text": "captions"}
_FETCHED = [
    "*.json",
    "*.txt",
    "*.model",
    "*.jinja",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "open_clip*.safetensors",
    "[0-9]_*/*.safetensors",
    "encoder/*.safetensors",
    "vision/*.safetensors",
    "text/*.safetensors",
]
"""Patterns of files to download; folders are those of sentence-transformers and of `itrpipe export`."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
_OF_TIMM = "pretrained_cfg"
_CLIP_OF_SENTENCE_TRANSFORMERS = "0_CLIPModel"
_SECONDS = 10.0
"""How long the hub is waited for."""
_NO_CONNECTION = "no connection, and no earlier download"
_REASONS = {
    "RepositoryNotFoundError": "there is no such model, or it needs a login",
    "RevisionNotFoundError": "it has no revision '{}'",
    "HFValidationError": "this can be no name of a model",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and there is no earlier download",
    "LocalEntryNotFoundError": _NO_CONNECTION,
    "NetworkError": _NO_CONNECTION,
    "TimeoutException": _NO_CONNECTION,
}
"""Errors of the hub's client and of its HTTP library, which have no base in common, and what they mean."""


def local_folder(model: str) -> Path | None:
    """Return the folder that a name of a model stands for; None for a hub id.

    Raises:
        MissingInputError: it reads like a path and is no folder.
        DataError: there is a pipe or a device in the folder.
    """
    path = Path(model).expanduser()
    if os.path.isdir(path):  # unlike a path's own, it takes names of any length
        for file in path.iterdir():
            if file.exists() and not (file.is_file() or file.is_dir()):  # a pipe would be waited for
                raise DataError(f"{file} is no regular file; put the file of the model there")
        clip = path / _CLIP_OF_SENTENCE_TRANSFORMERS
        if clip.is_dir() and not (path / CONFIG).is_file():
            return clip
        return path
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or os.path.exists(path):
        raise MissingInputError(f"{model} is not a folder; name a folder with {CONFIG}, or a hub id")
    return None


def require_model(model: str, revision: str = "main", sides: tuple[str, ...] = ()) -> None:
    """Refuse a folder that is no model, and a hub id that was never fetched and that the hub does not offer now.

    One request tells, and none where the model was fetched before.

    Args:
        model: folder or hub id.
        revision: branch, tag or commit of the hub id.
        sides: what it has to encode, `vision`, `text` or both; of a tokenizer none, and no weights are needed.

    Raises:
        MissingInputError: there is no such model, or its folder lacks a file.
        DataError: its weights are a pickle.
    """
    folder = local_folder(model)
    if folder is None:
        _require_on_hub(model, revision)
    else:
        require_files(folder, sides, weights=bool(sides))


@functools.lru_cache(maxsize=64)  # so that a plan that is checked again asks once
def _require_on_hub(model: str, revision: str) -> None:
    import huggingface_hub

    with fetching(model, revision):
        cached = huggingface_hub.try_to_load_from_cache(model, CONFIG, revision=revision)
        if isinstance(cached, str):
            return
        files = huggingface_hub.HfApi().model_info(model, revision=revision, timeout=_SECONDS).siblings or []
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        raise DataError(
            f"model {model} has no weights in safetensors at revision {revision}, and pickles are never loaded; name "
            "another model, or the revision of a pull request on the hub that adds them, such as refs/pr/1"
        )


def find_folder(
    model: str, revision: str = "main", sides: tuple[str, ...] = (), weights: bool = True
) -> tuple[Path, tuple[str, ...]]:
    """Return the folder with the files of a model, after downloading them where needed, and notes for the user.

    Args:
        model, revision, sides: see `require_model`.
        weights: whether these are needed.

    Raises:
        MissingInputError: there is no such model, it lacks a file, or the hub cannot be reached.
        DataError: its weights are a pickle.
    """
    folder = fetch_folder(model, revision, weights)
    require_files(folder, sides, weights)
    if local_folder(model) is None:
        return folder, (f"{model} is at commit {folder.name}",)
    return folder, ()


def fetch_folder(model: str, revision: str = "main", weights: bool = True) -> Path:
    """Return the folder that a model is, or that of its files of the hub, downloaded where they are not there yet.

    Args:
        model, revision, weights: see `find_folder`.

    Raises:
        MissingInputError: there is no such model, or the hub cannot be reached.
    """
    folder = local_folder(model)
    if folder is not None:
        return folder
    import huggingface_hub

    ignored = [] if weights else ["*.safetensors"]
    with fetching(model, revision), quiet(progress=sys.stderr.isatty()):
        path = huggingface_hub.snapshot_download(
            model, revision=revision, allow_patterns=_FETCHED, ignore_patterns=ignored
        )
    return Path(path)


def require_files(folder: Path, sides: tuple[str, ...], weights: bool = True) -> None:
    """Refuse a folder that lacks a file of a model.

    Raises:
        MissingInputError: it does.
        DataError: its weights are a pickle.
    """
    if not (folder / CONFIG).is_file():
        raise MissingInputError(
            f"{folder} has no {CONFIG}, and so is no model of transformers; name a folder that its "
            "`save_pretrained` or `itrpipe export` has written, or a hub id"
        )
    if weights and not has_any(folder, SAFETENSORS):
        refuse_pickles(folder)
        raise MissingInputError(f"{folder} has no {SAFETENSORS[0]}; download all files of the model again")
    config = read_config(folder / CONFIG)
    if "model_type" not in config and _OF_TIMM not in config:
        raise DataError(f"{folder / CONFIG} names no model_type, and so is of no model of transformers; name another")
    for side in sides:
        what = _READ[side]
        if not reads_side(config, side):
            raise MissingInputError(
                f"{folder} is no encoder of {what}: a network of type '{config.get('model_type', 'timm')}' reads none; "
                "name another model"
            )
        if side == "vision" and _OF_TIMM in config:  # it says how images are prepared
            continue
        if not has_any(folder, READERS[side]):
            raise MissingInputError(
                f"{folder} is no encoder of {what}: it has none of {', '.join(READERS[side])}; name another model"
            )


def reads_side(config: dict[str, Any], side: str) -> bool:
    """Tell whether a network reads images (`vision`) or captions (`text`), as its configuration says.

    A network of images has sizes of these, one of captions a vocabulary, and a joint one a configuration for each side.
    """
    if f"{side}_config" in config:
        return True
    sees = "image_size" in config or "num_channels" in config or _OF_TIMM in config
    if side == "text":
        return not sees
    return sees or "vocab_size" not in config


def refuse_pickles(folder: Path) -> None:
    """Refuse a folder that lacks weights in safetensors and has some as a pickle.

    Raises:
        DataError: it is one.
    """
    for pattern in _PICKLES:
        for path in sorted(folder.glob(pattern)):
            raise DataError(
                f"{path} is a pickle, which can run code and is never loaded; name a model, or a revision of it, "
                "whose weights are safetensors"
            )


def has_any(folder: Path, names: tuple[str, ...]) -> bool:
    """Tell whether a folder has a file of one of these names."""
    return any((folder / name).is_file() for name in names)


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model that has to be there.

    Raises:
        DataError: it is not there, or is damaged.
    """
    with reading(path, "a configuration", "download the model again"):
        content = json.loads(path.read_text("utf-8"))
        if not isinstance(content, dict):
            raise TypeError("it holds no table")
    return content


@contextlib.contextmanager
def fetching(model: str, revision: str) -> Iterator[None]:
    """Turn what the client of the hub raises into one line.

    Raises:
        MissingInputError: there is no such hub id or revision, or the hub cannot be reached.
    """
    try:
        yield
    except Exception as error:
        reason = reason_of(error)
        for kind in type(error).__mro__:
            if kind.__name__ in _REASONS:
                reason = _REASONS[kind.__name__].replace("{}", revision)
                break
        hint = "" if "/" in model else "no folder here has this name, and "
        raise MissingInputError(
            f"model {model}: {hint}the Hugging Face hub does not give it ({reason}); correct the name, or download "
            "the model elsewhere and name its folder"
        ) from None


@contextlib.contextmanager
def quiet(*, progress: bool = False) -> Iterator[None]:
    """Keep the reports of transformers from the terminal, and unless `progress` its bars too."""
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
        if bars:
            logging.enable_progress_bar()
