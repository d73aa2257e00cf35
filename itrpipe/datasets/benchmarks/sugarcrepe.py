"""Reader of SugarCrepe: seven JSON files of captions with one hard negative each, on images of COCO's val2017.

Source: SugarCrepe (Hsieh et al., NeurIPS 2023 Datasets and Benchmarks).
"""

from __future__ import annotations

from pathlib import Path

from itrpipe.datasets.benchmarks.base import Benchmark, Pair, sentence, with_images
from itrpipe.datasets.source_files import load_json_object, required

CATEGORIES = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
IMAGE_FOLDERS = ("val2017", "images", "")
MEASURES = ("pairs",)


def read(folder: Path) -> Benchmark:
    """Reads `replace_obj.json` and the others: {"0": {"filename", "caption", "negative_caption"}, …}.

    Args:
        folder: holds all seven files, and the images in `val2017/`, in `images/` or beside them.

    Raises:
        MissingInputError: a file or an image is not there.
        DataError: a file is malformed, or a path leaves the folder.
    """
    return with_images(folder, folder, [pair for name in CATEGORIES for pair in _pairs(folder, name)], IMAGE_FOLDERS)


def _pairs(folder: Path, name: str) -> list[Pair]:
    path, pairs = folder / f"{name}.json", []
    for index, record in load_json_object(path).items():
        where = f"record {index}"
        file = required(record, "filename", str, path, where)
        caption, negative = (sentence(record, key, path, where) for key in ("caption", "negative_caption"))
        pairs.append(Pair(f"{name}/{index}", file, caption, negative, name))
    return pairs
