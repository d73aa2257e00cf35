"""Which files hold embeddings that another program has made. Read without anything heavy, as plans are made."""

from __future__ import annotations

from pathlib import Path

from itrpipe.config import Settings
from itrpipe.errors import MissingInputError

GIVEN = "given"
"""Configuration of `train` for such embeddings, and the first word of their names."""
NOT_HERE = (
    "the model that made given embeddings is not here; only mine-negatives, export-negatives, evaluate and report do "
    "without it"
)


def is_given(backbone: str) -> bool:
    """Whether a name is that of embeddings from files: `given`, `given-NAME`."""
    return backbone == GIVEN or backbone.startswith(f"{GIVEN}-")


class GivenFiles(Settings):
    """The files of one split, by absolute path.

    Attributes:
        images, texts: files of the embeddings, one and the same where it holds both; empty where nothing was given.
        owners: file that says which image each text describes; empty where another file says so.
    """

    images: str = ""
    texts: str = ""
    owners: str = ""

    @property
    def paths(self) -> dict[str, Path]:
        """What is read for what: the files that were named, and the ids that lie beside arrays.

        Raises:
            MissingInputError: one of them is not there.
        """
        named = {name: Path(value) for name in ("images", "texts", "owners") if (value := getattr(self, name))}
        for name, path in named.items():
            if not path.exists():
                option = "--owners" if name == "owners" else "--embeddings"
                raise MissingInputError(f"{option} {path} does not exist; restore it or name another file")
        beside = {f"{name} ids": ids_beside(path) for name, path in named.items() if name != "owners"}
        return named | {name: path for name, path in beside.items() if path.is_file()}


def ids_beside(path: Path) -> Path:
    """Where the ids of an array's rows lie, if they are kept: `images.ids.json` beside `images.npy`."""
    return path.with_suffix(".ids.json")
