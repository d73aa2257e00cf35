"""The files that a model is opened from, as they were trained."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from itrpipe.errors import DataError
from itrpipe.storage.artifact import Manifest, damage_remedy
from itrpipe.storage.disk import file_digest, require_space


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
