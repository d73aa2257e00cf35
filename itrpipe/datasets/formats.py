"""The published formats of datasets, and tables of one's own: how each is recognised and read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

from pydantic import AliasChoices, Field, StringConstraints, TypeAdapter

from itrpipe.config import did_you_mean
from itrpipe.datasets.captions import (
    SPLITS,
    Annotations,
    CaptionRecord,
    ImageRecord,
    checked_annotations,
    hash_split,
)
from itrpipe.datasets.paths import image_key, locate_images
from itrpipe.datasets.source_files import Id, Record, files_present, load_json, one_file, rows, text_lines
from itrpipe.errors import DataError, MissingInputError, UsageError

_PHOTOGRAPHS = (".jpg", ".jpeg", ".png", ".webp")


class Choices(NamedTuple):
    """What a user decides where the files do not.

    Attributes:
        restval: `train` adds COCO's 30,504 `restval` images of Karpathy's split to train, as all the papers do; `drop`
            leaves them out together with their captions.
        val: share of val in datasets without splits.
        test: share of test in such.
        seed: of the split of such by hash.
    """

    restval: str = "train"
    val: float = 0.1
    test: float = 0.1
    seed: int = 0


USUAL = Choices()


class Format(NamedTuple):
    """A format of datasets.

    Attributes:
        names: of its data files, or patterns of them, by which it is recognised.
        read: images and captions in the order of the source.
        folders: below the source, in which its data files may lie.
    """

    names: tuple[str, ...]
    read: Callable[[Path, Choices], Annotations]
    folders: tuple[str, ...] = ("",)

    def files(self, source: Path) -> list[Path]:
        """The data files that a source is or holds; a results.csv must have Flickr's header."""
        found = next(filter(None, (files_present(source / folder, self.names) for folder in self.folders)), [])
        return [path for path in found if path.name != "results.csv" or _has_pipe_header(path)]


class _Image(NamedTuple):
    """An image as a data file names it: `where` is its place there, `folder` one that its file may lie in."""

    image_id: str
    file: str
    split: str
    where: str
    folder: str = ""


class _Row(NamedTuple):
    """A caption as a line names it; `file` is a key of `image_key`, `split` None where the file names none."""

    line: str
    file: str
    image_id: str
    caption_id: str
    text: str
    split: str | None = None


def read_annotations(source: Path, format: str = "", choices: Choices = USUAL) -> Annotations:
    """Reads a dataset and checks that its images and captions fit together.

    Args:
        source: file or folder.
        format: one of `FORMATS`; empty to try which of them recognises the source.
        choices: what the files may not settle.

    Returns:
        Images and captions in the order of the source, and what the user has to know in `notes`.

    Raises:
        MissingInputError: the source or the folder of its images is not there, or no format recognises it.
        UsageError: unknown format, several recognise the source, or it holds several data files.
        DataError: a file is not of its format, a path leaves the folder, or see `captions.checked_annotations`.
    """
    if not source.exists():
        raise MissingInputError(f"{source}: is not there; name a caption file or the folder that holds it")
    name = format or recognise(source)
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS)
        raise UsageError(f"unknown dataset format {name!r}; there are {', '.join(FORMATS)}{hint}")
    return checked_annotations(FORMATS[name].read(source, choices), source)


def recognise(source: Path) -> str:
    """Returns the name of the one format that recognises the source.

    Raises:
        MissingInputError: none does; the message lists what each looks for.
        UsageError: several do; the message names them.
    """
    names = [name for name, format in FORMATS.items() if format.files(source)]
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"{source}: could be {' or '.join(names)}; say which with the setting format")
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    tables = [path for path in files if path.suffix in (".csv", ".tsv", ".jsonl") and path.is_file()]
    if len(tables) == 1:
        raise MissingInputError(
            f"{tables[0]}: a table of captions is called captions{tables[0].suffix} and lies beside the photographs or "
            "above their folder images/; rename it, or move it there"
        )
    photograph = next((path for path in files if path.suffix.lower() in _PHOTOGRAPHS), None)
    if photograph is not None and source.is_dir():
        raise MissingInputError(
            f"{source}: holds photographs, such as {photograph.name}, and no captions; write captions.csv beside "
            "them, with the columns file and caption, or search without captions, with a model that is trained on "
            f"others: `itrpipe index --model NAME --photos {source}`"
        )
    looked = "; ".join(f"{name}: {' or '.join(format.names)}" for name, format in FORMATS.items())
    raise MissingInputError(f"{source}: no known dataset format; looked for {looked}")


def _located(
    source: Path,
    root: Path,
    images: Sequence[_Image],
    captions: list[CaptionRecord],
    folders: Sequence[str],
    notes: tuple[str, ...] = (),
) -> Annotations:
    """The dataset with its images where they lie below the root: in a folder of their own each, or together."""
    layouts = [[image.file for image in images]]
    if any(image.folder for image in images):
        layouts.insert(0, [f"{image.folder}/{image.file}" if image.folder else image.file for image in images])
    files = locate_images(root, source, layouts, [image.where for image in images], folders)
    records = [ImageRecord(image.image_id, file, image.split) for image, file in zip(images, files, strict=True)]
    return Annotations(records, captions, root, notes)


def _of_rows(
    path: Path, found: Sequence[_Row], choices: Choices, folders: Sequence[str], note: str = ""
) -> Annotations:
    """The dataset that rows of captions name; where they name no splits, its images are split by hash."""
    bare = [row.line for row in found if row.split is None]
    if 0 < len(bare) < len(found):
        raise DataError(f"{path}: line {bare[0]} has no split while others have; give all rows a split or none")
    first: dict[str, _Row] = {}
    for row in found:
        split = first.setdefault(row.file, row).split
        if split != row.split:
            both = f"{split!r} and {row.split!r}"
            raise DataError(f"{path}: line {row.line}: image {row.file} is in the splits {both}; give it one")
    splits = {row.image_id: row.split or "" for row in first.values()}
    if bare:
        splits = hash_split(splits, choices.val, choices.test, choices.seed)
        counts, fractions = Counter(splits.values()), (1 - choices.val - choices.test, choices.val, choices.test)
        shares = dict(zip(SPLITS, fractions, strict=True))
        rule = f"{', '.join(f'{name} {share:g}' for name, share in shares.items())}, seed {choices.seed}"
        numbers = " / ".join(f"{counts[name]:,}" for name in SPLITS)
        note = f"{path}: names no splits; images split by hash of their id ({rule}): {numbers} images"
        if empty := [name for name, share in shares.items() if share and not counts[name]]:
            note += f". No image is left for {' and '.join(empty)}; add photographs, or give a column split"
    images = [_Image(row.image_id, file, splits[row.image_id], f"line {row.line}") for file, row in first.items()]
    captions = [CaptionRecord(row.caption_id, row.image_id, row.text) for row in found]
    return _located(path, path.parent, images, captions, folders, (note,) if note else ())


class _Sentence(Record):
    sentid: Id
    raw: str


class _KarpathyImage(Record):
    filename: str
    split: str
    sentences: list[_Sentence]
    filepath: str = ""
    cocoid: Id | None = None


class _KarpathyFile(Record):
    images: list[_KarpathyImage]


def _read_karpathy(source: Path, choices: Choices) -> Annotations:
    """Reads Karpathy's files: images with their split, their sentences and, of COCO, its id and folder.

    The images lie in `images/` or beside the JSON, in `flickr30k-images/` or in `Flicker8k_Dataset/`; those of COCO in
    `train2014/` and `val2014/` below any of these, or all together in one of them. Image ids are file stems, or COCO's
    own where the file has them; caption ids are `sentid`.

    Source: A. Karpathy and L. Fei-Fei, Deep visual-semantic alignments, 2015 (splits).
    """
    path = one_file(source, FORMATS["karpathy"].names)
    images, captions, restvals = [], [], 0
    for index, record in enumerate(load_json(path, TypeAdapter(_KarpathyFile)).images):
        restvals += record.split == "restval"
        if record.split == "restval" and choices.restval == "drop":
            continue
        split = "train" if record.split == "restval" else record.split
        image_id = record.cocoid if record.cocoid is not None else image_key(PurePosixPath(record.filename).stem)
        images.append(_Image(image_id, record.filename, split, f"image {index}", record.filepath))
        captions += [CaptionRecord(each.sentid, image_id, each.raw) for each in record.sentences]
    fate = "dropped" if choices.restval == "drop" else "added to train"
    notes = (f"{path}: {restvals:,} restval images {fate}",) if restvals else ()
    return _located(path, path.parent, images, captions, ("images", "", "flickr30k-images", "Flicker8k_Dataset"), notes)


class _CocoImage(Record):
    id: Id
    file_name: str


class _CocoCaption(Record):
    id: Id
    image_id: Id
    caption: str


class _CocoFile(Record):
    images: list[_CocoImage]
    annotations: list[_CocoCaption]


def _read_coco(source: Path, choices: Choices) -> Annotations:
    """Reads COCO's own caption files: train, val, or both, whose split is in their name.

    The images lie in `train2014/` and `val2014/` (or the year of the file name), or in `images/` with or without these
    folders, below the folder that holds `annotations/`. Ids are COCO's numbers as text. COCO publishes no captions of
    its test images, so val is all that can be evaluated on.
    """
    format = FORMATS["coco_captions"]
    found = {path: path.stem.removeprefix("captions_") for path in format.files(source)}
    if not found:
        raise MissingInputError(f"{source}: no COCO captions; looked for {' or '.join(format.names)}")
    if len(years := sorted({own[-4:] for own in found.values()})) > 1:
        # The years cut one pool of images differently: train2017 holds most of val2014.
        raise UsageError(f"{source}: holds captions of {' and '.join(years)}; name one file as the source")
    folder = next(iter(found)).parent
    root = folder.parent if folder.name == "annotations" else folder
    note = f"{source}: COCO publishes no test captions, so there is no test split; splits are those of the file names"
    whole = Annotations([], [], root, (note,))
    for path, own in found.items():
        content = load_json(path, TypeAdapter(_CocoFile))
        images = [
            _Image(each.id, each.file_name, own[:-4], f"image {number}", own)
            for number, each in enumerate(content.images)
        ]
        captions = [CaptionRecord(each.id, each.image_id, each.caption) for each in content.annotations]
        part = _located(path, root, images, captions, ("", "images"))
        whole = replace(whole, images=whole.images + part.images, captions=whole.captions + part.captions)
    return whole


_SPLIT_LISTS = {
    "train": ("Flickr_8k.trainImages.txt", "train.txt"),
    "val": ("Flickr_8k.devImages.txt", "val.txt"),
    "test": ("Flickr_8k.testImages.txt", "test.txt"),
}
_TOKEN_LINE = re.compile(r"(?P<name>[^#\t]+)#(?P<number>\d+)\t(?P<caption>.*)")
# The second bar is optional: the published results.csv lacks it in one row (image 2199200615.jpg).
_PIPE_LINE = re.compile(r"(?P<name>[^|]+)\|\s*(?P<number>\d+)\s*(?:\|\s*|\s)(?P<caption>.*)")


def _has_pipe_header(path: Path) -> bool:
    return re.match(r"image_name\s*\|", next(text_lines(path), "")) is not None


def _flickr_rows(path: Path) -> Iterator[_Row]:
    pipes = _has_pipe_header(path)
    pattern = _PIPE_LINE if pipes else _TOKEN_LINE
    form = "name.jpg| number| caption" if pipes else "name.jpg#number<TAB>caption"
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip() or (pipes and number == 1):
            continue
        match = pattern.fullmatch(line.strip("\r\n"))
        if match is None:
            raise DataError(
                f"{path}: line {number} is {line.strip()[:60]!r}, expected {form}; correct or delete the line"
            )
        file = image_key(match["name"])
        yield _Row(str(number), file, PurePosixPath(file).stem, f"{file}#{match['number']}", match["caption"].strip())


def _read_flickr(source: Path, choices: Choices) -> Annotations:
    """Reads Flickr8k's and Flickr30k's own caption files.

    `Flickr8k.token.txt` and `results_20130124.token` hold `name.jpg#number<TAB>caption` per line; `results.csv` holds
    `image_name| comment_number| comment` under that header. Split lists lie beside them: the names of Flickr8k's
    (`Flickr_8k.trainImages.txt`, `.devImages.txt`, `.testImages.txt`) or `train.txt`, `val.txt`, `test.txt`, one
    image a line, with or without `.jpg`. Images that no list names are left out, which a note counts. Image ids are
    file stems, caption ids `name.jpg#number`.
    """
    path = one_file(source, FORMATS["flickr_tokens"].names)
    found, note = list(_flickr_rows(path)), ""
    lists = {split: own[0] for split, names in _SPLIT_LISTS.items() if (own := files_present(path.parent, names))}
    if lists:
        splits: dict[str, str] = {}
        for split, file in lists.items():
            for name in map(image_key, filter(str.strip, text_lines(file))):
                image_id = PurePosixPath(name).stem if name.lower().endswith((".jpg", ".jpeg", ".png")) else name
                if splits.setdefault(image_id, split) != split:
                    other = lists[splits[image_id]].name
                    raise DataError(f"{file}: image {image_id} is in {other} too; keep it in one list")
        if unlisted := {row.file for row in found if row.image_id not in splits}:
            read = ", ".join(file.name for file in lists.values())
            note = f"{path}: {len(unlisted):,} images in none of {read} left out"
        found = [row._replace(split=splits[row.image_id]) for row in found if row.image_id in splits]
    folders = ("", "images", "flickr30k-images", "flickr30k_images", "Flicker8k_Dataset")
    return _of_rows(path, found, choices, folders, note)


class _TableRow(Record):
    file: str = Field(validation_alias=AliasChoices("file", "filename", "image"))
    caption: str
    split: Annotated[str, StringConstraints(strip_whitespace=True)] | None = None


def _read_table(source: Path, choices: Choices) -> Annotations:
    """Reads a table of captions beside its images or above their folder `images/`; see `source_files.rows`.

    A row has `file`, `filename` or `image` (path of the image), `caption`, and optionally `split`. The image id is the
    path in the one form of `image_key`, the caption id the number of the row from 0.
    """
    path = one_file(source, FORMATS["caption_table"].names)
    found = []
    for number, (line, row) in enumerate(rows(path, TypeAdapter(_TableRow))):
        file = image_key(row.file)
        found.append(_Row(line, file, file, str(number), row.caption, row.split))
    return _of_rows(path, found, choices, ("", "images", "Images"))


FORMATS = {
    "caption_table": Format(("captions.csv", "captions.tsv", "captions.jsonl", "captions.txt"), _read_table),
    "coco_captions": Format(
        ("captions_train20??.json", "captions_val20??.json"),
        _read_coco,
        ("", "annotations"),
    ),
    "flickr_tokens": Format(("Flickr8k.token.txt", "results_20130124.token", "results.csv"), _read_flickr),
    "karpathy": Format(
        ("dataset.json", "dataset_flickr8k.json", "dataset_flickr30k.json", "dataset_coco.json"), _read_karpathy
    ),
}
