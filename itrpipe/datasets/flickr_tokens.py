"""Reader of Flickr8k's and Flickr30k's own caption files.

`Flickr8k.token.txt` and `results_20130124.token` hold `name.jpg#number<TAB>caption` per line; `results.csv` holds
`image_name| comment_number| comment` under that header. Split lists lie beside them: the names of Flickr8k's
(`Flickr_8k.trainImages.txt`, `.devImages.txt`, `.testImages.txt`) or `train.txt`, `val.txt`, `test.txt`, one
image a line, with or without `.jpg`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from itrpipe.datasets.hash_split import DEFAULT_FRACTIONS, Fractions, describe, hash_split
from itrpipe.datasets.noted import NotedAnnotations
from itrpipe.datasets.paths import image_key, locate_images
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.datasets.source_files import files_present, one_file, text_lines
from itrpipe.errors import DataError

NAMES = ("Flickr8k.token.txt", "results_20130124.token", "results.csv")
LOOKED_FOR = " or ".join(NAMES)
IMAGE_FOLDERS = ("", "images", "flickr30k-images", "flickr30k_images", "Flicker8k_Dataset")
SPLIT_LISTS = {
    "train": ("Flickr_8k.trainImages.txt", "train.txt"),
    "val": ("Flickr_8k.devImages.txt", "val.txt"),
    "test": ("Flickr_8k.testImages.txt", "test.txt"),
}
_TOKEN_LINE = re.compile(r"(?P<name>[^#\t]+)#(?P<number>\d+)\t(?P<caption>.*)")
# The second bar is optional: the published results.csv lacks it in one row (image 2199200615.jpg).
_PIPE_LINE = re.compile(r"(?P<name>[^|]+)\|\s*(?P<number>\d+)\s*(?:\|\s*|\s)(?P<caption>.*)")
_PIPE_HEADER = re.compile(r"image_name\s*\|")


class _Line(NamedTuple):
    line: int
    name: str
    number: str
    caption: str


def recognises(source: Path) -> bool:
    """Whether the source is such a file or a folder that holds one; a results.csv must have Flickr's header."""
    found = files_present(source, NAMES)
    return any(path.suffix != ".csv" or _has_pipe_header(path) for path in found)


def read(source: Path, *, split_fractions: Fractions = DEFAULT_FRACTIONS, split_seed: int = 0) -> NotedAnnotations:
    """Read Flickr's own caption files.

    Args:
        source: the file, or a folder holding exactly one.
        split_fractions: shares of train, val and test; read only if no split list lies beside the file.
        split_seed: seed of that split.

    Returns:
        The image id is the file stem, the caption id `name.jpg#number`. Images that no split list names are
        left out, which a note counts; without split lists a note states the rule of the split.

    Raises:
        UsageError: several caption files in the folder, or impossible fractions.
        MissingInputError: no caption file, or the images' folder is not there.
        DataError: a malformed line, an image in two split lists, or an image path that leaves the folder.
    """
    path = one_file(source, NAMES)
    lines = list(_lines(path))
    first_line: dict[str, int] = {}
    for line in lines:
        first_line.setdefault(line.name, line.line)
    splits, note = _splits(path, list(first_line), split_fractions, split_seed)
    names = [name for name in first_line if _stem(name) in splits]
    records = [f"line {first_line[name]}" for name in names]
    files = locate_images(path.parent, path, [names], records, IMAGE_FOLDERS)
    images = [ImageRecord(_stem(name), file, splits[_stem(name)]) for name, file in zip(names, files, strict=True)]
    captions = [
        CaptionRecord(f"{line.name}#{line.number}", _stem(line.name), line.caption)
        for line in lines
        if _stem(line.name) in splits
    ]
    return NotedAnnotations(images, captions, path.parent, (note,) if note else ())


def _lines(path: Path) -> Iterator[_Line]:
    pipes = _has_pipe_header(path)
    pattern = _PIPE_LINE if pipes else _TOKEN_LINE
    form = "name.jpg| number| caption" if pipes else "name.jpg#number<TAB>caption"
    for number, text in enumerate(text_lines(path), start=1):
        if not text.strip() or (pipes and number == 1):
            continue
        match = pattern.fullmatch(text.strip("\r\n"))
        if match is None:
            raise DataError(
                f"{path}: line {number} is {text.strip()[:60]!r}, expected {form}; correct or delete the line"
            )
        yield _Line(number, image_key(match["name"]), match["number"], match["caption"].strip())


def _has_pipe_header(path: Path) -> bool:
    return _PIPE_HEADER.match(next(text_lines(path), "")) is not None


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _splits(path: Path, names: list[str], fractions: Fractions, seed: int) -> tuple[dict[str, str], str]:
    """Return the split of every image by its stem, and a note or the empty string."""
    lists = {split: found[0] for split, files in SPLIT_LISTS.items() if (found := files_present(path.parent, files))}
    if not lists:
        splits = hash_split(map(_stem, names), fractions, seed)
        return splits, describe(splits, fractions, seed, path)
    splits: dict[str, str] = {}
    for split, file in lists.items():
        for image_id in (_list_stem(line) for line in text_lines(file) if line.strip()):
            if splits.setdefault(image_id, split) != split:
                raise DataError(
                    f"{file}: image {image_id} is in {lists[splits[image_id]].name} too; keep it in one list"
                )
    unlisted = sum(_stem(name) not in splits for name in names)
    read = ", ".join(file.name for file in lists.values())
    return splits, f"{path}: {unlisted:,} images in none of {read} left out" if unlisted else ""


def _list_stem(line: str) -> str:
    name = image_key(line)
    return _stem(name) if name.lower().endswith((".jpg", ".jpeg", ".png")) else name
