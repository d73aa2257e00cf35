"""Caption files of published datasets: Karpathy's JSON, COCO's own, and those of Flickr8k and Flickr30k."""

import re
from pathlib import Path, PurePosixPath
from typing import NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from itrpipe.datasets.archives import ENDINGS
from itrpipe.datasets.captions import CaptionRecord
from itrpipe.datasets.formats.base import SourceContent, SourceImage
from itrpipe.datasets.formats.columns import ColumnSettings
from itrpipe.datasets.paths import image_key
from itrpipe.datasets.source_files import STRICT, Id, files_present, load_json, text_lines
from itrpipe.errors import DataError


@STRICT
class _Sentence(TypedDict):
    sentid: Id
    raw: str


@STRICT
class _KarpathyImage(TypedDict):
    filename: str
    split: str
    sentences: list[_Sentence]
    filepath: NotRequired[str]
    cocoid: NotRequired[Id | None]


@STRICT
class _KarpathyFile(TypedDict):
    images: list[_KarpathyImage]


def read_karpathy(path: Path, columns: ColumnSettings) -> SourceContent:
    """Read Karpathy's files: images with their split, their sentences and, of COCO, its id and folder.

    The images lie in `images/` or beside the JSON, in `flickr30k-images/` or in `Flicker8k_Dataset/`; those of COCO in
    `train2014/` and `val2014/` below any of these, or all together in one of them. Image ids are file stems, or COCO's
    own where the file has them; caption ids are `sentid`.

    Source: A. Karpathy and L. Fei-Fei, Deep visual-semantic alignments, 2015 (splits).
    """
    images = []
    captions = []
    for index, record in enumerate(load_json(path, TypeAdapter(_KarpathyFile))["images"]):
        file = record["filename"]
        image_id = record.get("cocoid")
        if image_id is None:
            image_id = image_key(PurePosixPath(file).stem)
        images.append(SourceImage(image_id, file, record["split"], f"image {index}", record.get("filepath", "")))
        for sentence in record["sentences"]:
            captions.append(CaptionRecord(sentence["sentid"], image_id, sentence["raw"]))
    return SourceContent(images, captions)


@STRICT
class _CocoImage(TypedDict):
    id: Id
    file_name: str


@STRICT
class _CocoCaption(TypedDict):
    id: Id
    image_id: Id
    caption: str


@STRICT
class _CocoFile(TypedDict):
    images: list[_CocoImage]
    annotations: list[_CocoCaption]


def read_coco(path: Path, columns: ColumnSettings) -> SourceContent:
    """Read one of COCO's own caption files, of train or val, as its name says.

    The images lie in `train2014/` and `val2014/` (or the year of the file name), or in `images/` with or without these
    folders, below the folder that holds `annotations/`. Ids are COCO's numbers as text. COCO publishes no captions of
    its test images, so val is all that can be evaluated on.
    """
    content = load_json(path, TypeAdapter(_CocoFile))
    folder = path.stem.removeprefix("captions_")
    split = folder[:-4]  # without the year
    images = []
    for index, image in enumerate(content["images"]):
        images.append(SourceImage(image["id"], image["file_name"], split, f"image {index}", folder))
    captions = []
    for caption in content["annotations"]:
        captions.append(CaptionRecord(caption["id"], caption["image_id"], caption["caption"]))
    return SourceContent(images, captions, ["COCO publishes no test captions, so there is no test split"])


_SPLIT_LISTS = {
    "train": ("Flickr_8k.trainImages.txt", "train.txt"),
    "val": ("Flickr_8k.devImages.txt", "val.txt"),
    "test": ("Flickr_8k.testImages.txt", "test.txt"),
}
_TOKEN_LINE = re.compile(r"(?P<name>[^#\t]+)#(?P<number>\d+)\t(?P<caption>.*)")
# The second bar is optional: the published results.csv lacks it in one row (image 2199200615.jpg).
_PIPE_LINE = re.compile(r"(?P<name>[^|]+)\|\s*(?P<number>\d+)\s*(?:\|\s*|\s)(?P<caption>.*)")


def has_pipe_header(path: Path) -> bool:
    """Return whether a file begins as Flickr30k's `results.csv`, a name that other tables have, too."""
    return re.match(r"image_name\s*\|", next(text_lines(path), "")) is not None


def read_flickr(path: Path, columns: ColumnSettings) -> SourceContent:
    """Read Flickr8k's and Flickr30k's own caption files.

    `Flickr8k.token.txt` and `results_20130124.token` hold `name.jpg#number<TAB>caption` per line; `results.csv` holds
    `image_name| comment_number| comment` under that header. Split lists lie beside them: the names of Flickr8k's
    (`Flickr_8k.trainImages.txt`, `.devImages.txt`, `.testImages.txt`) or `train.txt`, `val.txt`, `test.txt`, one
    image a line, with or without `.jpg`. Images that no list names are left out, which a note counts. Image ids are
    file stems, caption ids `name.jpg#number`.
    """
    has_pipes = has_pipe_header(path)
    if has_pipes:
        pattern = _PIPE_LINE
        form = "name.jpg| number| caption"
    else:
        pattern = _TOKEN_LINE
        form = "name.jpg#number<TAB>caption"
    images = {}
    captions = []
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip() or (has_pipes and number == 1):
            continue
        match = pattern.fullmatch(line.strip("\r\n"))
        if match is None:
            raise DataError(
                f"{path}: line {number} is {line.strip()[:60]!r}, expected {form}; correct or delete the line"
            )
        file = image_key(match["name"])
        image_id = PurePosixPath(file).stem
        images.setdefault(file, SourceImage(image_id, file, None, f"line {number}"))
        captions.append(CaptionRecord(f"{file}#{match['number']}", image_id, match["caption"].strip()))
    folder = path.parent
    lists = {}  # split -> name of its list
    splits = {}
    for split, names in _SPLIT_LISTS.items():
        files = files_present(folder, names)
        if not files:
            continue
        path = files[0]
        lists[split] = path.name
        for line in text_lines(path):
            if not line.strip():
                continue
            image_id = image_key(line)
            if image_id.lower().endswith(ENDINGS):
                image_id = PurePosixPath(image_id).stem
            other = splits.setdefault(image_id, split)
            if other != split:
                raise DataError(f"{path}: image {image_id} is in {lists[other]} too; keep it in one list")
    if not lists:
        return SourceContent(list(images.values()), captions)
    listed = []
    for image in images.values():
        if image.image_id in splits:
            listed.append(image._replace(split=splits[image.image_id]))
    captions = [caption for caption in captions if caption.image_id in splits]
    unlisted = len(images) - len(listed)
    notes = []
    if unlisted:
        notes.append(f"{unlisted:,} images in none of {', '.join(lists.values())} left out")
    return SourceContent(listed, captions, notes)
