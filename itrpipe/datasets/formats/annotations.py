"""Recognises the format of a dataset and reads its images and captions: `read_annotations`."""

import re
from pathlib import Path

from itrpipe.config import unknown
from itrpipe.datasets.archives import ARROW, ENDINGS, PARQUET, UNREAD
from itrpipe.datasets.captions import Annotations, ImageRecord, checked_annotations
from itrpipe.datasets.formats.base import Format
from itrpipe.datasets.formats.columns import ColumnSettings
from itrpipe.datasets.formats.published import has_pipe_header, read_coco, read_flickr, read_karpathy
from itrpipe.datasets.formats.shards import find_shards, read_shards
from itrpipe.datasets.formats.table_layouts import CAPTION_FILES, called_tables, find_tables
from itrpipe.datasets.formats.tables import packed_tables, read_tables
from itrpipe.datasets.paths import locate_images
from itrpipe.datasets.source_files import data_files, files_present
from itrpipe.errors import DataError, MissingInputError, NoCaptionsError, UsageError

_PACKED = re.compile(r"\.(tar\.\w+|tgz|zip)$", re.IGNORECASE)
"""Endings of compressed files, which are not read."""


def read_annotations(
    source: Path, format: str = "", restval: str = "train", columns: ColumnSettings | None = None
) -> Annotations:
    """Read a dataset and check that its images and captions fit together.

    Args:
        source: file or folder.
        format: one of `FORMATS`; empty to try which of them recognises the source.
        restval: `train` adds COCO's 30,504 `restval` images of Karpathy's split to train, as all the papers do; `drop`
            leaves them out together with their captions.
        columns: of a table, where they are not recognised.

    Returns:
        Images and captions in the order of the source; `notes` tell the user what was decided.

    Raises:
        MissingInputError: the source or the folder of its images is not there, or no format recognises it.
        UsageError: unknown format, several recognise the source, it holds several data files, or it has no columns.
        DataError: a file is not of its format, a path leaves the folder, or see `captions.checked_annotations`.
    """
    name, form, root = _format_of(source, format)
    columns = columns or ColumnSettings()
    if columns != ColumnSettings() and form.read is not read_tables:
        raise UsageError(f"{source}: has no columns, being of the format {name}; leave --column out")
    paths = [source] if form.find else data_files(source, form.names, by_year=form.by_year)
    records = []
    captions = []
    notes = []
    groups = {}
    restval_ids = set()
    for path in paths:
        content = form.read(path, columns)
        images = content.images
        captions += content.captions
        path = content.path or path
        for note in content.notes:
            notes.append(f"{path}: {note}")

        without_split = [image for image in images if not image.split]
        if without_split:
            if len(without_split) < len(images):
                where = without_split[0].where
                raise DataError(f"{path}: {where} has no split while others have; give all a split or none")
            for image in images:
                if image.group:
                    groups[image.image_id] = image.group
            unit = "group" if groups else "image"
            notes.append(f"{path}: names no splits, so a hash puts each {unit} into one")

        layouts = [[image.path for image in images]]
        files = [image.file for image in images]
        if files != layouts[0]:
            layouts.append(files)
        located = locate_images(root, path, layouts, [image.where for image in images], form.images)
        for image, file in zip(images, located, strict=True):
            split = image.split or ""
            if split == "restval":
                restval_ids.add(image.image_id)
                split = "train"
            records.append(ImageRecord(image.image_id, file, split))
    if restval_ids and restval == "drop":
        notes.append(f"{source}: {len(restval_ids):,} restval images dropped")
        records = [image for image in records if image.image_id not in restval_ids]
        captions = [caption for caption in captions if caption.image_id not in restval_ids]
    elif restval_ids:
        notes.append(f"{source}: {len(restval_ids):,} restval images added to train")
    return checked_annotations(Annotations(records, captions, root, tuple(notes), form.published, groups), source)


def source_root(source: Path, format: str) -> Path:
    """Return the folder that the paths of a dataset's images are relative to; errors as of `read_annotations`."""
    return _format_of(source, format)[2]


def packed_files(source: Path, format: str, columns: ColumnSettings) -> list[Path]:
    """Return the files of a source if its photographs lie in them, beside their captions; else none.

    Raises:
        MissingInputError, UsageError, DataError: see `read_annotations`.
    """
    _, form, _ = _format_of(source, format)
    if form.read is read_shards:
        return find_shards(source)
    if form.read is read_tables:
        return packed_tables(source, columns)
    return []


def _format_of(source: Path, format: str) -> tuple[str, Format, Path]:
    """Return the format of a source with its name, and the folder that the paths of images are relative to."""
    if not source.exists():
        raise MissingInputError(f"{source}: is not there; name a caption file or the folder that holds it")
    name = format or recognise(source)
    if name not in FORMATS:
        raise UsageError(unknown("dataset format", name, FORMATS))
    form = FORMATS[name]
    folder = source if source.is_dir() else source.parent
    if not form.find:
        # COCO's train2017 holds most of val2014.
        folder = data_files(source, form.names, by_year=form.by_year)[0].parent
    if folder.name == "annotations" and form.by_year:
        folder = folder.parent
    return name, form, folder


def recognise(source: Path) -> str:
    """Return the name of the one format that recognises the source.

    Raises:
        MissingInputError: none does; the message lists the files that each looks for.
        NoCaptionsError: there are photographs alone.
        UsageError: several do; the message names them.
    """
    names = []
    for name, format in FORMATS.items():
        files = format.find(source) if format.find else files_present(source, format.names)
        for path in files:
            if path.name != "results.csv" or has_pipe_header(path):  # other tables have that name, too
                names.append(name)
                break
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"{source}: could be {' or '.join(names)}; say which with the setting format")
    if source.is_file():
        is_table = source.suffix.lower() in (".csv", ".tsv", ".jsonl", PARQUET, ARROW)
    else:
        is_table = bool(find_tables(source))
    if is_table:
        return "caption_table"
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    for path in files:
        if _PACKED.search(path.name):
            raise MissingInputError(
                f"{path}: compressed files are not read; unpack it, or write its photographs into a folder, with "
                "captions.csv (file, caption)"
            )
    for path in files:
        if path.suffix.lower() in ENDINGS + UNREAD:
            raise NoCaptionsError(
                f"{source}: holds photographs, such as {path.name}, and no captions; write captions.csv next to "
                "them, with the columns file and caption, or search without captions, with a model that is trained on "
                f"others: `itrpipe index --model NAME --photos {source}`"
            )
    listing = "; ".join(f"{name}: {' or '.join(format.names)}" for name, format in FORMATS.items())
    raise MissingInputError(f"{source}: no known dataset format; looked for {listing}")


FORMATS = {
    "caption_table": Format(
        CAPTION_FILES, read_tables, ("", "images", "Images", "flickr30k-images"), find=called_tables
    ),
    "coco_captions": Format(
        (
            "captions_train20??.json",
            "captions_val20??.json",
            "annotations/captions_train20??.json",
            "annotations/captions_val20??.json",
        ),
        read_coco,
        ("", "images"),
        by_year=True,
        published=True,
    ),
    "flickr_tokens": Format(
        ("Flickr8k.token.txt", "results_20130124.token", "results.csv"),
        read_flickr,
        ("", "images", "flickr30k-images", "flickr30k_images", "Flicker8k_Dataset"),
        published=True,
    ),
    "karpathy": Format(
        ("dataset.json", "dataset_flickr8k.json", "dataset_flickr30k.json", "dataset_coco.json"),
        read_karpathy,
        ("images", "", "flickr30k-images", "Flicker8k_Dataset"),
        published=True,
    ),
    "webdataset": Format(("*.tar",), read_shards, ("",), find=find_shards),
}
"""Formats by their names."""
