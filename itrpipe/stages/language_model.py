"""The language model that `itrpipe synthesize` and `itrpipe evaluate` measure sentences with, by hub id or folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.errors import MissingInputError
from itrpipe.sources import DigestCache
from itrpipe.stages import train
from itrpipe.stages.base import Job

if TYPE_CHECKING:
    from itrpipe.synthesis.language_model import LanguageModel

LANGUAGE_MODEL = "language_model"
"""The setting of both stages."""


def local_language_model(name: str) -> dict[str, Path]:
    """`language_model` -> its folder where the name is one of this machine; nothing for a hub id, or without a name."""
    folder = Path(name).expanduser()
    return {LANGUAGE_MODEL: folder} if name and (folder.is_absolute() or folder.exists()) else {}


def folder_digests(folders: Mapping[str, Path], cache: DigestCache) -> dict[str, str]:
    """Setting -> digest of the files of the folder that it names.

    Raises:
        MissingInputError: one of them is no folder.
    """
    digests = {}
    for name, folder in folders.items():
        if not folder.is_dir():
            raise MissingInputError(f"{name}: {folder} is not a folder; name the folder that holds its files")
        digests[name] = cache.combined([file for file in folder.iterdir() if file.is_file()], folder, f"hashing {name}")
    return digests


def open_language_model(job: Job) -> LanguageModel:
    """The model that a job's settings name, on the job's device; what a user should know of it becomes a warning.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or two do not belong together.
        UsageError: it is another kind of model.
    """
    from itrpipe.synthesis.language_model import LanguageModel

    model = LanguageModel(job.settings.language_model, train.resolve_device(job.execution.device))
    for note in model.notes:
        job.warn(note)
    return model
