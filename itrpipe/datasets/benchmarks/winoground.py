"""Reader of Winoground: two images and two captions of the same words; each caption is false of the other image.

An example becomes two pairs of one group: image 0 with caption 0 and the negative 1, image 1 with caption 1 and the
negative 0. Their four scores are all that its measures need.

Source: Winoground (Thrush et al., CVPR 2022).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from itrpipe.datasets.benchmarks.base import Benchmark, Pair, sentence, with_images
from itrpipe.datasets.source_files import json_lines, required
from itrpipe.errors import DataError

EXAMPLES = "examples.jsonl"
IMAGE_FOLDERS = ("images", "")
MEASURES = ("examples",)


def read(folder: Path) -> Benchmark:
    """Reads `examples.jsonl`: id, image_0, image_1 (names without .png), caption_0, caption_1, collapsed_tag.

    Args:
        folder: holds that file, and the images in `images/` or beside it.

    Raises:
        MissingInputError: the file or an image is not there.
        DataError: the file is malformed, or a path leaves the folder.
    """
    path, pairs = folder / EXAMPLES, []
    seen: set[str] = set()
    for number, record in json_lines(path):
        where = f"line {number}"
        example = str(required(record, "id", (int, str), path, where))
        if example in seen:
            raise DataError(f"{path}: {where}: id {example} is given twice; an example stands in one line")
        seen.add(example)
        tag = required(record, "collapsed_tag", str, path, where)
        texts = [sentence(record, f"caption_{side}", path, where) for side in (0, 1)]
        for side in (0, 1):
            file = _with_suffix(required(record, f"image_{side}", str, path, where))
            pairs.append(Pair(f"{example}/{side}", file, texts[side], texts[1 - side], tag, example))
    return with_images(folder, path, pairs, IMAGE_FOLDERS)


def _with_suffix(name: str) -> str:
    return name if PurePosixPath(name).suffix else f"{name}.png"
