"""The files that a model is opened from, as they were trained, without paths of the machine that trained it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from itrpipe.artifacts import Manifest, damage_remedy
from itrpipe.disk import file_digest, require_space
from itrpipe.errors import DataError


def copy_files(trained: Path, manifest: Manifest, names: Iterable[str], folder: Path) -> None:
    """Copies files of an artifact byte by byte and compares them with what its manifest says of them.

    Args:
        trained: the artifact.
        manifest: its manifest.
        names: of its files.
        folder: to copy to.

    Raises:
        DataError: a file is not the one that was written.
        DiskFullError: no space is left.
    """
    names = list(names)
    require_space(folder, sum(manifest.outputs[name].bytes for name in names), "the copy of the model")
    for name in names:
        copied = folder / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(trained / name, copied)
        if file_digest(copied) != manifest.outputs[name].sha256:
            raise DataError(
                f"{trained / name} does not match its recorded sha256; {damage_remedy(trained, thorough=True)}"
            )


def without_home(value: Any) -> Any:
    """Settings or a command with `~` for the user's home folder, whose name is nobody else's business.

    Args:
        value: text, or what JSON has, with text anywhere in it.
    """
    home = str(Path.home()).rstrip("/")
    if isinstance(value, str):
        return value.replace(f"{home}/", "~/") if home else value
    if isinstance(value, Mapping):
        return {key: without_home(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_home(each) for each in value]
    return value
