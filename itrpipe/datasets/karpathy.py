"""Reader of Karpathy's dataset files: one JSON with images, their split and their sentences.

Published as `dataset_flickr8k.json`, `dataset_flickr30k.json` and `dataset_coco.json`, or as `dataset.json`
inside a folder of its own. Each image has `filename`, `split` and `sentences` (`raw`, `sentid`); those of
COCO also have `cocoid` and `filepath` (`train2014` or `val2014`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from itrpipe.datasets.noted import NotedAnnotations
from itrpipe.datasets.paths import image_key, locate_images
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.datasets.source_files import files_present, load_json_object, one_file, required
from itrpipe.errors import UsageError

NAMES = ("dataset.json", "dataset_flickr8k.json", "dataset_flickr30k.json", "dataset_coco.json")
LOOKED_FOR = " or ".join(NAMES)
IMAGE_FOLDERS = ("images", "", "flickr30k-images", "Flicker8k_Dataset")
RESTVAL = ("train", "drop")


def recognises(source: Path) -> bool:
    """Whether the source is a file, or a folder holding a file, with one of Karpathy's names."""
    return bool(files_present(source, NAMES))


def read(source: Path, *, restval: str = "train") -> NotedAnnotations:
    """Read a dataset in Karpathy's form.

    The images lie in `images/` or beside the JSON, in `flickr30k-images/` or in `Flicker8k_Dataset/`; those
    of COCO in `train2014/` and `val2014/` below any of these, or all together in one of them.

    Args:
        source: the JSON file, or a folder holding exactly one of them.
        restval: `train` adds COCO's 30,504 `restval` images to train, as all the papers do; `drop` leaves
            them out together with their captions.

    Returns:
        Image ids are file stems, or COCO's own ids where the file has them; caption ids are `sentid`.

    Raises:
        UsageError: unknown `restval`, or several JSON files in the folder.
        MissingInputError: no JSON file, or the images' folder is not there.
        DataError: not Karpathy's form, or an image path leaves the folder.

    Source: A. Karpathy and L. Fei-Fei, Deep visual-semantic alignments, 2015 (splits).
    """
    if restval not in RESTVAL:
        raise UsageError(f"restval is {restval!r}, expected {' or '.join(RESTVAL)}")
    path = one_file(source, NAMES)
    records = required(load_json_object(path), "images", list, path, "top level")
    images: list[ImageRecord] = []
    captions: list[CaptionRecord] = []
    restvals = 0
    for index, (record, file) in enumerate(zip(records, _files(path, records), strict=True)):
        where = f"image {index}"
        split = required(record, "split", str, path, where)
        restvals += split == "restval"
        if split == "restval" and restval == "drop":
            continue
        split = "train" if split == "restval" else split
        images.append(ImageRecord(_image_id(record, file, path, where), file, split))
        captions.extend(_sentences(record, images[-1].image_id, path, where))
    fate = "added to train" if restval == "train" else "dropped"
    notes = (f"{path}: {restvals:,} restval images {fate}",) if restvals else ()
    return NotedAnnotations(images, captions, path.parent, notes)


def _files(path: Path, records: list[Any]) -> list[str]:
    """Return the path of every image relative to the folder of the JSON file."""
    where = [f"image {index}" for index in range(len(records))]
    plain = [required(record, "filename", str, path, label) for record, label in zip(records, where, strict=True)]
    if not any("filepath" in record for record in records):
        return locate_images(path.parent, path, [plain], where, IMAGE_FOLDERS)
    folders = [required(record, "filepath", str, path, label) for record, label in zip(records, where, strict=True)]
    nested = [f"{folder}/{file}" for folder, file in zip(folders, plain, strict=True)]
    return locate_images(path.parent, path, [nested, plain], where, IMAGE_FOLDERS)


def _image_id(record: dict[str, Any], file: str, path: Path, where: str) -> str:
    if "cocoid" in record:
        return str(required(record, "cocoid", (int, str), path, where))
    return image_key(PurePosixPath(file).stem)


def _sentences(record: dict[str, Any], image_id: str, path: Path, where: str) -> Iterator[CaptionRecord]:
    for sentence in required(record, "sentences", list, path, where):
        caption_id = required(sentence, "sentid", (int, str), path, f"a sentence of {where}")
        text = required(sentence, "raw", str, path, f"sentence {caption_id} of {where}")
        yield CaptionRecord(str(caption_id), image_id, text)
