"""Files of a model of transformers: in a folder of this machine, or downloaded from the hub."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from transformers.utils import logging

from itrpipe.errors import MissingInputError
from itrpipe.features.hub import CONFIG, fetching, require_hub_id

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SHARDS = {SAFETENSORS: "model-*-of-*.safetensors", PICKLES: "pytorch_model-*-of-*.bin"}


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
    folder, notes = Path(model).expanduser(), ()
    if not os.path.isdir(folder):
        require_hub_id(model)
        folder = download(model, revision, (CONFIG, *required, *further))
        if weights:
            folder = download(model, folder.name, (*SAFETENSORS, _SHARDS[SAFETENSORS]))
            if not has_any(folder, SAFETENSORS):
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
    with fetching(model, revision), quiet(progress=sys.stderr.isatty()):
        return Path(huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=list(names)))


@contextmanager
def quiet(*, progress: bool = False) -> Iterator[None]:
    """Keeps the reports of transformers from the terminal, and unless `progress` its bars too."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars and not progress:
            logging.enable_progress_bar()
