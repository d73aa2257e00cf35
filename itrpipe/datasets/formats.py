"""The published formats of datasets, and tables of one's own: how each is recognised and read."""

import os
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple, NotRequired

from pydantic import AliasChoices, Field, StringConstraints, TypeAdapter
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from itrpipe.config import unknown
from itrpipe.datasets.archives import ENDINGS, TAR, UNREAD
from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord, checked_annotations
from itrpipe.datasets.paths import image_key, locate_images
from itrpipe.datasets.source_files import (
    STRICT,
    Id,
    data_files,
    files_present,
    load_json,
    rows,
    text_lines,
    validated,
)
from itrpipe.datasets.tars import read_tar_member, tar_members
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.storage.disk import reading

_PACKED = re.compile(r"\.(tar\.\w+|tgz|zip|parquet|arrow)$", re.IGNORECASE)
"""Endings of files that datasets are published in, and that are not read."""


class _Image(NamedTuple):
    """An image as a data file names it.

    Attributes:
        image_id: unique in the dataset.
        file: path as it is written there.
        split: None where the data file names none.
        where: it stands in the data file.
        folder: one that the file may lie in.
        group: of images that get one split; empty where the image is in none.
    """

    image_id: str
    file: str
    split: str | None
    where: str
    folder: str = ""
    group: str = ""


class _Read(NamedTuple):
    """Content of a data file."""

    images: list[_Image]
    captions: list[CaptionRecord]
    note: str = ""


class Format(NamedTuple):
    """A format of datasets.

    Attributes:
        names: of its data files, or patterns of them, by which it is recognised.
        read: reads one of them.
        images: folders in which the images may lie, below that of the data files.
        by_year: whether there may be several of one year, each with a split.
        archives: whether all of them are read together.
        published: whether it is that of datasets with published results, whose images all stay.
    """

    names: tuple[str, ...]
    read: Callable[[Path, str], _Read]
    images: tuple[str, ...]
    by_year: bool = False
    archives: bool = False
    published: bool = False


def read_annotations(source: Path, format: str = "", restval: str = "train") -> Annotations:
    """Reads a dataset and checks that its images and captions fit together.

    Args:
        source: file or folder.
        format: one of `FORMATS`; empty to try which of them recognises the source.
        restval: `train` adds COCO's 30,504 `restval` images of Karpathy's split to train, as all the papers do; `drop`
            leaves them out together with their captions.

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
        raise UsageError(unknown("dataset format", name, FORMATS))
    form = FORMATS[name]
    if form.archives:
        paths, folder = [source], source if source.is_dir() else source.parent
    else:
        paths = data_files(source, form.names, by_year=form.by_year)  # COCO's train2017 holds most of val2014
        folder = paths[0].parent
    root = folder.parent if folder.name == "annotations" and form.by_year else folder
    records = []
    captions = []
    notes = []
    places = {}
    groups = {}
    for path in paths:
        images, own_captions, note = form.read(path, restval)
        captions += own_captions
        bare = [image for image in images if not image.split]
        if bare:
            if len(bare) < len(images):
                raise DataError(f"{path}: {bare[0].where} has no split while others have; give all a split or none")
            groups |= {image.image_id: image.group for image in images if image.group}
            drawn = "group" if groups else "image"
            decision = f"names no splits, so a hash puts each {drawn} into one"
            note = f"{note}; {decision}" if note else decision
        if note:
            notes.append(f"{path}: {note}")
        layouts = [[image.file for image in images]]
        if all(image.folder for image in images):
            layouts.insert(0, [f"{image.folder}/{image.file}" for image in images])
        located = locate_images(root, path, layouts, [image.where for image in images], form.images)
        for image, file in zip(images, located, strict=True):
            record = ImageRecord(image.image_id, file, image.split or "")
            records.append(record)
            if form.published:
                places[record.image_id] = record.image_id
            elif image.split:
                places[record.image_id] = record.split
    return checked_annotations(Annotations(records, captions, root, tuple(notes), places, groups), source)


def recognise(source: Path) -> str:
    """Returns the name of the one format that recognises the source.

    Raises:
        MissingInputError: none does; the message lists what each looks for.
        UsageError: several do; the message names them.
    """
    names = []
    for name, format in FORMATS.items():
        files = files_present(source, format.names)
        if format.archives:
            files = _shards(source)
        if any(path.name != "results.csv" or _has_pipe_header(path) for path in files):  # which others have, too
            names.append(name)
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"{source}: could be {' or '.join(names)}; say which with the setting format")
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    tables = [path for path in files if path.suffix in (".csv", ".tsv", ".jsonl") and path.is_file()]
    if len(tables) == 1:
        raise MissingInputError(
            f"{tables[0]}: a table of captions is called captions{tables[0].suffix} and lies next to the photographs "
            "or above their folder images/; rename it, or move it there"
        )
    for path in [source] if source.is_file() else sorted(source.rglob("*")):
        if _PACKED.search(path.name):
            raise MissingInputError(
                f"{path}: compressed files, Parquet and Arrow are not read; unpack it, or write its photographs into a "
                "folder, with captions.csv (file, caption)"
            )
    for path in files:
        if path.suffix.lower() in ENDINGS + UNREAD:
            raise MissingInputError(
                f"{source}: holds photographs, such as {path.name}, and no captions; write captions.csv next to "
                "them, with the columns file and caption, or search without captions, with a model that is trained on "
                f"others: `itrpipe index --model NAME --photos {source}`"
            )
    looked = "; ".join(f"{name}: {' or '.join(format.names)}" for name, format in FORMATS.items())
    raise MissingInputError(f"{source}: no known dataset format; looked for {looked}")


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


def _read_karpathy(path: Path, restval: str) -> _Read:
    """Reads Karpathy's files: images with their split, their sentences and, of COCO, its id and folder.

    The images lie in `images/` or beside the JSON, in `flickr30k-images/` or in `Flicker8k_Dataset/`; those of COCO in
    `train2014/` and `val2014/` below any of these, or all together in one of them. Image ids are file stems, or COCO's
    own where the file has them; caption ids are `sentid`.

    Source: A. Karpathy and L. Fei-Fei, Deep visual-semantic alignments, 2015 (splits).
    """
    images, captions, restvals, note = [], [], 0, ""
    for index, record in enumerate(load_json(path, TypeAdapter(_KarpathyFile))["images"]):
        split, file = record["split"], record["filename"]
        if split == "restval":
            restvals += 1
            note = f"{restvals:,} restval images {'dropped' if restval == 'drop' else 'added to train'}"
            if restval == "drop":
                continue
            split = "train"
        image_id = record.get("cocoid")
        if image_id is None:
            image_id = image_key(PurePosixPath(file).stem)
        images.append(_Image(image_id, file, split, f"image {index}", record.get("filepath", "")))
        for sentence in record["sentences"]:
            captions.append(CaptionRecord(sentence["sentid"], image_id, sentence["raw"]))
    return _Read(images, captions, note)


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


def _read_coco(path: Path, restval: str) -> _Read:
    """Reads one of COCO's own caption files, of train or val, as its name says.

    The images lie in `train2014/` and `val2014/` (or the year of the file name), or in `images/` with or without these
    folders, below the folder that holds `annotations/`. Ids are COCO's numbers as text. COCO publishes no captions of
    its test images, so val is all that can be evaluated on.
    """
    content, folder = load_json(path, TypeAdapter(_CocoFile)), path.stem.removeprefix("captions_")
    images = []
    for index, image in enumerate(content["images"]):
        images.append(_Image(image["id"], image["file_name"], folder[:-4], f"image {index}", folder))
    captions = [CaptionRecord(each["id"], each["image_id"], each["caption"]) for each in content["annotations"]]
    return _Read(images, captions, "COCO publishes no test captions, so there is no test split")


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


def _read_flickr(path: Path, restval: str) -> _Read:
    """Reads Flickr8k's and Flickr30k's own caption files.

    `Flickr8k.token.txt` and `results_20130124.token` hold `name.jpg#number<TAB>caption` per line; `results.csv` holds
    `image_name| comment_number| comment` under that header. Split lists lie beside them: the names of Flickr8k's
    (`Flickr_8k.trainImages.txt`, `.devImages.txt`, `.testImages.txt`) or `train.txt`, `val.txt`, `test.txt`, one
    image a line, with or without `.jpg`. Images that no list names are left out, which a note counts. Image ids are
    file stems, caption ids `name.jpg#number`.
    """
    pipes = _has_pipe_header(path)
    pattern = _PIPE_LINE if pipes else _TOKEN_LINE
    form = "name.jpg| number| caption" if pipes else "name.jpg#number<TAB>caption"
    images = {}
    captions = []
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip() or (pipes and number == 1):
            continue
        match = pattern.fullmatch(line.strip("\r\n"))
        if match is None:
            raise DataError(
                f"{path}: line {number} is {line.strip()[:60]!r}, expected {form}; correct or delete the line"
            )
        file = image_key(match["name"])
        image_id = PurePosixPath(file).stem
        images.setdefault(file, _Image(image_id, file, None, f"line {number}"))
        captions.append(CaptionRecord(f"{file}#{match['number']}", image_id, match["caption"].strip()))
    lists = {}
    splits = {}
    for split, names in _SPLIT_LISTS.items():
        for file in files_present(path.parent, names)[:1]:
            lists[split] = file
            for name in map(image_key, filter(str.strip, text_lines(file))):
                image_id = PurePosixPath(name).stem if name.lower().endswith(ENDINGS) else name
                other = splits.setdefault(image_id, split)
                if other != split:
                    raise DataError(f"{file}: image {image_id} is in {lists[other].name} too; keep it in one list")
    if not lists:
        return _Read([*images.values()], captions)
    listed = [image._replace(split=splits[image.image_id]) for image in images.values() if image.image_id in splits]
    captions = [caption for caption in captions if caption.image_id in splits]
    unlisted, note = len(images) - len(listed), ""
    if unlisted:
        note = f"{unlisted:,} images in none of {', '.join(file.name for file in lists.values())} left out"
    return _Read(listed, captions, note)


_Stripped = Annotated[str, StringConstraints(strip_whitespace=True)]


@STRICT
class _TableRow(TypedDict):
    file: Annotated[str, Field(validation_alias=AliasChoices("file", "filename", "image"))]
    caption: str
    split: NotRequired[_Stripped | None]
    group: NotRequired[_Stripped | None]


def _read_table(path: Path, restval: str) -> _Read:
    """Reads a table of captions beside its images or above their folder `images/`; see `source_files.rows`.

    A row has `file`, `filename` or `image` (path of the image), `caption`, and optionally `split` or `group`. The image
    id is the path in the one form of `image_key`, the caption id the number of the row from 0. An image has the one
    split and group that its rows name, and a group is in one split, too.
    """
    images = {}
    captions = []
    for number, (line, row) in enumerate(rows(path, TypeAdapter(_TableRow))):
        file = image_key(row["file"])
        group = unicodedata.normalize("NFC", row.get("group") or "")
        image = _Image(file, file, row.get("split"), f"line {line}", group=group)
        first = images.setdefault(file, image)
        where = f"{path}: {image.where}: image {file}"
        if image.split != first.split:
            raise DataError(f"{where} is in the splits {first.split!r} and {image.split!r}; give it one")
        if group and not first.group:
            images[file] = image
        elif group not in ("", first.group):
            raise DataError(f"{where} is in the groups {first.group!r} ({first.where}) and {group!r}; give it one")
        captions.append(CaptionRecord(str(number), file, row["caption"]))
    of_group = {}
    for image in images.values():
        first = of_group.setdefault(image.group, image)
        if image.group and image.split != first.split:
            raise DataError(
                f"{path}: {image.where}: group {image.group!r} is in the splits {first.split!r} ({first.where}) and "
                f"{image.split!r}; put it into one"
            )
    return _Read([*images.values()], captions)


_SPLIT_WORDS = re.compile(
    r"(?<![^\W\d_])(?:(?P<train>train(?:ing)?)|(?P<val>val(?:id(?:ation)?)?|dev)|(?P<test>test(?:ing)?))+(?![^\W\d_])",
    re.IGNORECASE,
)
"""Words of the splits between characters that are no letters; also several in one."""


def _shards(source: Path) -> list[Path]:
    """Returns the tar files below a folder, but for hidden ones, or the one that the source is."""
    if source.is_file():
        return [source] if source.suffix.lower() == TAR else []
    found = []
    for folder, folders, names in os.walk(source):
        found += [Path(folder, name) for name in names if name.lower().endswith(TAR)]
        for name in folders:
            path = Path(folder, name)
            # Such a link is not followed, but refused where it leads to tar files.
            if path.is_symlink() and not path.resolve().is_relative_to(source.resolve()):
                found += path.glob("*.[tT][aA][rR]")
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def _read_shards(source: Path, restval: str) -> _Read:
    """Reads WebDataset's tar files, all below a folder, or one.

    Files of a sample have one key, which ends at the first full stop: an image, and its caption, which is all of
    `KEY.txt`, or in `KEY.json` is `caption`, or several are `captions`. The name of a shard, or of a folder that it
    lies in, has the name of its split between other characters than letters, as `cc3m-train-00000.tar` or
    `validation/0.tar`. Ids are `SHARD/KEY`.
    """
    images = []
    captions = []
    left_out = {}
    root = source if source.is_dir() else source.parent
    for archive in _shards(source):
        name = archive.relative_to(root).as_posix()
        splits = set()
        for match in _SPLIT_WORDS.finditer(name):
            splits.update(split for split, word in match.groupdict().items() if word)
        if len(splits) > 1:
            raise DataError(f"{archive}: its name is that of several splits; rename it, such as train-00000.tar")
        split = splits.pop() if splits else None
        with reading(archive, "a tar file", "fetch or make it again"):
            try:
                names = tar_members(archive)
            except DataError as error:
                raise DataError(f"{archive} {error}") from error
        samples: dict[str, dict[str, str]] = {}  # key -> ending -> name
        for member in names:
            folder, _, file = member.rpartition("/")
            key, _, ending = file.partition(".")
            samples.setdefault(f"{folder}/{key}".lstrip("/"), {})[f".{ending.lower()}"] = member
        for key, files in samples.items():
            image_id = f"{name[: -len(TAR)]}/{key}"
            file = next((files[ending] for ending in ENDINGS if ending in files), "")
            texts = _captions_of_sample(archive, files) if file else []
            if not texts:
                lacks = f"have no photograph ({', '.join(ENDINGS)})"
                if file:
                    lacks = "have a photograph and no caption; write it into KEY.txt, or into KEY.json as caption"
                elif any(ending.endswith(ENDINGS) for ending in files):
                    lacks = "have names with further full stops; a key ends at the first one, so rename them"
                left_out.setdefault(lacks, []).append(image_id)
                continue
            images.append(_Image(image_id, f"{name}/{file}", split, f"{name}: {key}"))
            captions += [CaptionRecord(f"{image_id}#{row}", image_id, text) for row, text in enumerate(texts)]
    note = "; ".join(f"{len(keys):,} samples, such as {keys[0]}, {lacks}" for lacks, keys in left_out.items())
    if note and not images:
        raise DataError(f"{source}: no sample has a photograph and a caption: {note}")
    return _Read(images, captions, f"left out: {note}" if note else "")


@STRICT
class _Sample(TypedDict):
    caption: NotRequired[str | None]
    captions: NotRequired[list[str] | None]


_SAMPLE = TypeAdapter(_Sample)


def _captions_of_sample(archive: Path, files: Mapping[str, str]) -> list[str]:
    """Returns the captions of a sample; blank ones are none."""
    for ending in (".txt", ".json"):
        if ending not in files:
            continue
        where = archive / files[ending]
        with reading(where, "captions in UTF-8", "make the file again"):
            content = read_tar_member(archive, files[ending]).decode("utf-8-sig")
        if ending == ".txt":
            # The end of a file's last line is no part of its text.
            texts = [re.sub(r"\r?\n\Z", "", content)]
        else:
            sample = validated(_SAMPLE.validate_json, content, where)
            texts = sample.get("captions") or [sample.get("caption") or ""]
        if any(text.strip() for text in texts):
            return texts
    return []


FORMATS = {
    "caption_table": Format(
        ("captions.csv", "captions.tsv", "captions.jsonl", "captions.txt"), _read_table, ("", "images", "Images")
    ),
    "coco_captions": Format(
        tuple(f"{folder}captions_{split}20??.json" for folder in ("", "annotations/") for split in ("train", "val")),
        _read_coco,
        ("", "images"),
        by_year=True,
        published=True,
    ),
    "flickr_tokens": Format(
        ("Flickr8k.token.txt", "results_20130124.token", "results.csv"),
        _read_flickr,
        ("", "images", "flickr30k-images", "flickr30k_images", "Flicker8k_Dataset"),
        published=True,
    ),
    "karpathy": Format(
        ("dataset.json", "dataset_flickr8k.json", "dataset_flickr30k.json", "dataset_coco.json"),
        _read_karpathy,
        ("images", "", "flickr30k-images", "Flicker8k_Dataset"),
        published=True,
    ),
    "webdataset": Format(("*.tar",), _read_shards, ("",), archives=True),
}
