"""What a format is: files with their tables, written one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from itrpipe.exporting.folder import FinishedFiles
from itrpipe.exporting.negatives.mined import Mined
from itrpipe.exporting.negatives.strings import joined


@dataclass(frozen=True)
class Choices:
    """How negatives are written.

    Attributes:
        directions: of `t2i` (captions with images) and `i2t` (images with captions).
        writer: what wrote the sentences, such as `phrases`; empty without sentences.
        image_root: stands before every path of an image; empty: paths are relative to the folder of the images.
        images: that folder.
        with_scores: also ids, ranks and scores, where the format leaves them out otherwise.
        shard_rows: rows of a file; 0: as many as suit the format.
    """

    directions: tuple[str, ...]
    writer: str
    image_root: str
    images: Path
    with_scores: bool = False
    shard_rows: int = 0


@dataclass(frozen=True)
class Table:
    """Files of equal columns.

    Attributes:
        config: name for `datasets.load_dataset`.
        pattern: of its files.
        rows: in all.
        left_out: captions without a row, because they have too few negatives.
        about: its columns.
        builder: further settings of the front matter.
    """

    config: str
    pattern: str
    rows: int
    left_out: int
    about: str
    builder: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Shard:
    """A file to be made: its name, its rows, and what writes it to a path."""

    name: str
    rows: int
    write: Callable[[Path], None]


class Format(ABC):
    """One format.

    Args:
        mined: what is written.
        choices: how.

    Attributes:
        shard_rows: rows of a file, unless the choices say otherwise.
        chunk: rows that are made together.
        joined: name of the file that `finish` makes of all others; empty where others read these.
    """

    shard_rows: ClassVar[int] = 50_000
    chunk: ClassVar[int] = 8_192
    joined: ClassVar[str] = ""

    def __init__(self, mined: Mined, choices: Choices) -> None:
        self.mined, self.choices = mined, choices

    @property
    @abstractmethod
    def tables(self) -> list[Table]:
        """What a reader finds, the table to read by default first."""

    @abstractmethod
    def shards(self) -> list[Shard]:
        """The files to write."""

    def finish(self, files: FinishedFiles) -> None:
        """Makes of the files what others read; here, they are read as they are."""
        return

    @cached_property
    def paths(self) -> pa.Array:
        """Path of every image, as other programs are to open it."""
        root = self.choices.image_root.rstrip("/")
        return joined(f"{root}/", self.mined.files) if self.choices.image_root else self.mined.files

    def cut(self, folder: str, suffix: str, rows: np.ndarray, write: Callable[[np.ndarray, Path], Any]) -> list[Shard]:
        """Files of so many rows each, named as on the Hugging Face hub.

        Args:
            folder: that they lie in; empty for the exported folder itself.
            suffix: of their names.
            rows: what is written, in order.
            write: writes some of them to a path.
        """
        size = self.choices.shard_rows or self.shard_rows
        count = max(1, -(-len(rows) // size))
        prefix = f"{folder}/" if folder else ""
        names = [f"{prefix}train-{number:05}-of-{count:05}.{suffix}" for number in range(count)]
        parts = [rows[number * size : (number + 1) * size] for number in range(count)]
        return [Shard(name, len(part), partial(_written, write, part)) for name, part in zip(names, parts, strict=True)]


def _written(write: Callable[[np.ndarray, Path], Any], rows: np.ndarray, path: Path) -> None:
    write(rows, path)


def pieces(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Rows, some at a time."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
