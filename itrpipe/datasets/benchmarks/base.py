"""What the readers of all benchmarks give: pairs of a caption and a sentence that is false of its image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.datasets.caption_check import shows_something
from itrpipe.datasets.paths import locate_images
from itrpipe.datasets.source_files import required
from itrpipe.errors import DataError, MissingInputError

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, of which the last two are excluded."""


class Pair(NamedTuple):
    """A caption and its hard negative.

    Attributes:
        id: unique within the benchmark.
        file: path of the image relative to the root.
        caption: is true of the image.
        negative: is not.
        category: of which results are reported; empty where there are none.
        group: what a macro accuracy is the mean over, or which pairs make one example; empty: none.
        box: part of the image that is looked at; None: all of it.
    """

    id: str
    file: str
    caption: str
    negative: str
    category: str = ""
    group: str = ""
    box: Box | None = None


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as read, before any image was opened.

    Attributes:
        root: folder that every file is relative to and may not leave.
        pairs: in the order of the source.
    """

    root: Path
    pairs: list[Pair]


def with_images(root: Path, source: Path, pairs: Sequence[Pair], folders: Sequence[str]) -> Benchmark:
    """Finds the image files of pairs.

    Args:
        root: folder that no image may leave.
        source: the data file, for messages.
        pairs: whose files are as the source names them.
        folders: below the root, to look in; the first that has one of the images is taken.

    Raises:
        DataError: there is no pair, or a path leaves the root.
        MissingInputError: images are not there.
    """
    if not pairs:
        raise DataError(f"{source}: holds no pair of captions; is this the right file?")
    first = {pair.file: f"pair {pair.id}" for pair in reversed(pairs)}
    named = list(dict.fromkeys(pair.file for pair in pairs))
    files = locate_images(root, source, [named], [first[file] for file in named], folders)
    missing = [file for file in files if not (root / file).is_file()]
    if missing:
        raise MissingInputError(
            f"{source}: {len(missing):,} of {len(files):,} images are not there, such as {root / missing[0]}; a "
            "benchmark needs all of them"
        )
    place = dict(zip(named, files, strict=True))
    return Benchmark(root, [pair._replace(file=place[pair.file]) for pair in pairs])


def sentence(record: Any, key: str, path: Path, where: str) -> str:
    """A text of a record.

    Raises:
        DataError: there is none, or it shows nothing or is not valid Unicode.
    """
    return readable(required(record, key, str, path, where), key, path, where)


def readable(text: Any, key: str, path: Path, where: str) -> str:
    """The text itself; errors as in `sentence`."""
    if not isinstance(text, str):
        raise DataError(f"{path}: {where}: {key!r} is a {type(text).__name__}, expected text")
    if not shows_something(text) or any("\ud800" <= each <= "\udfff" or each == "\0" for each in text):
        raise DataError(f"{path}: {where}: {key!r} is {text[:40]!r}, which is no sentence; correct it")
    return text
