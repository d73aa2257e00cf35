"""Reader of COCO's own caption files: `captions_train2014.json`, `captions_val2014.json` and later years.

Each file has `images` (`id`, `file_name`) and `annotations` (`id`, `image_id`, `caption`); the split is in the
file name. COCO publishes no captions of its test images, so val is all that can be evaluated on.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.datasets.noted import NotedAnnotations
from itrpipe.datasets.paths import locate_images
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.datasets.source_files import load_json_object, required
from itrpipe.errors import MissingInputError, UsageError

LOOKED_FOR = "captions_train<year>.json or captions_val<year>.json, in the folder or in its annotations/"
_NAME = re.compile(r"captions_(train|val)(\d{4})\.json")


class _CaptionFile(NamedTuple):
    path: Path
    split: str
    year: str


def recognises(source: Path) -> bool:
    """Whether the source is such a file, or holds one itself or in `annotations/`."""
    return bool(_caption_files(source))


def read(source: Path) -> NotedAnnotations:
    """Read COCO's train captions, val captions, or both.

    The images lie in `train2014/` and `val2014/` (or the year of the file name), or in `images/` with or
    without these folders, below the folder that holds `annotations/`.

    Args:
        source: one file, a folder with files of one year, or a folder with `annotations/`.

    Returns:
        Image and caption ids are COCO's numbers as text; the note says that there is no test split.

    Raises:
        UsageError: the folder holds captions of several years.
        MissingInputError: no caption file, or the images' folder is not there.
        DataError: not COCO's form, or an image path leaves the folder.
    """
    found = _caption_files(source)
    if not found:
        raise MissingInputError(f"{source}: no COCO captions; looked for {LOOKED_FOR}")
    years = sorted({file.year for file in found})
    if len(years) > 1:
        # The years cut one pool of images differently: train2017 holds most of val2014.
        raise UsageError(f"{source}: holds captions of {' and '.join(years)}; name one file as the source")
    folder = found[0].path.parent
    root = folder.parent if folder.name == "annotations" else folder
    images: list[ImageRecord] = []
    captions: list[CaptionRecord] = []
    for file in found:
        content = load_json_object(file.path)
        images += _images(content, file, root)
        captions += _captions(content, file.path)
    note = f"{source}: COCO publishes no test captions, so there is no test split; splits are those of the file names"
    return NotedAnnotations(images, captions, root, (note,))


def _caption_files(source: Path) -> list[_CaptionFile]:
    """Return the caption files a source stands for, train before val."""
    if source.is_file():
        return _named([source])
    for folder in (source, source / "annotations"):
        if folder.is_dir() and (found := _named(sorted(folder.iterdir()))):
            return found
    return []


def _named(paths: list[Path]) -> list[_CaptionFile]:
    matches = [(path, _NAME.fullmatch(path.name)) for path in paths]
    return [_CaptionFile(path, match[1], match[2]) for path, match in matches if match and path.is_file()]


def _images(content: dict[str, Any], file: _CaptionFile, root: Path) -> list[ImageRecord]:
    """Return the images of one file, found on disk."""
    path = file.path
    records = required(content, "images", list, path, "top level")
    where = [f"image {index}" for index in range(len(records))]
    ids = [required(record, "id", (int, str), path, label) for record, label in zip(records, where, strict=True)]
    plain = [required(record, "file_name", str, path, label) for record, label in zip(records, where, strict=True)]
    nested = [f"{file.split}{file.year}/{name}" for name in plain]
    located = locate_images(root, path, [nested, plain], where, ("", "images"))
    return [ImageRecord(str(image_id), name, file.split) for image_id, name in zip(ids, located, strict=True)]


def _captions(content: dict[str, Any], path: Path) -> list[CaptionRecord]:
    captions: list[CaptionRecord] = []
    for index, record in enumerate(required(content, "annotations", list, path, "top level")):
        where = f"annotation {index}"
        caption_id = required(record, "id", (int, str), path, where)
        image_id = required(record, "image_id", (int, str), path, where)
        captions.append(CaptionRecord(str(caption_id), str(image_id), required(record, "caption", str, path, where)))
    return captions
