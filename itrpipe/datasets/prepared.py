"""The artifact of `itrpipe prepare`: images and captions in two Parquet files, in an order that never changes.

`images.parquet` holds one row per image, `captions.parquet` one per caption. Images stand in the order of
the splits (train, val, test) and within a split in the order of the source; captions in the order of their
images and for one image in the order of the source. So the captions of an image follow each other, and
row i of `captions_of_image` is a slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.datasets.captions import SPLITS, Annotations
from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.errors import DataError, UsageError
from itrpipe.storage.arrays import Rows
from itrpipe.storage.tables import TableFile, read_table, rows_of, table_writer

IMAGES_FILE = "images.parquet"
CAPTIONS_FILE = "captions.parquet"
_REMEDY = "run itrpipe prepare again"
LEAKED = "{:,} pictures are in two splits, so that scores may be too high; leaks.tsv of the dataset lists them"
_ROWS_AT_ONCE = 16_384
_TEXT, _INT, _WORDS = pa.string(), pa.int32(), pa.list_(pa.string())
_IMAGES = pa.schema({"image_id": _TEXT, "file": _TEXT, "split": _TEXT, "width": _INT, "height": _INT, "sha256": _TEXT})
_CAPTIONS = pa.schema({"caption_id": _TEXT, "image_id": _TEXT, "split": _TEXT, "text": _TEXT, "tokens": _WORDS})


def write_prepared(folder: Path, annotations: Annotations, facts: Mapping[str, ImageFacts]) -> None:
    """Write both files.

    Args:
        folder: exists; files of the same names are replaced.
        annotations: checked, so that every caption has its image.
        facts: of `image_check.check_images`, for every image.
    """
    images = {name: [] for name in _IMAGES.names}
    for image in annotations.images:
        image_facts = facts[image.file]
        images["image_id"].append(image.image_id)
        images["file"].append(image.file)
        images["split"].append(image.split)
        images["width"].append(image_facts.width)
        images["height"].append(image_facts.height)
        images["sha256"].append(image_facts.sha256)
    caption_ids, owners, texts = zip(*annotations.captions, strict=True)
    owner_rows = rows_of(pa.array(owners), pa.array(images["image_id"]))
    write_tables(folder, images, caption_ids, texts, owner_rows)


def write_tables(
    folder: Path, images: Mapping[str, list[Any]], caption_ids: Sequence[str], texts: Sequence[str], owners: np.ndarray
) -> None:
    """Write both files of columns in any order.

    Args:
        folder: exists; files of the same names are replaced.
        images: columns of N images; `file`, `sha256`, `width` and `height` may be missing.
        caption_ids: ids of T captions.
        texts: text of each; its words are written with it.
        owners: row of the image of each caption, int [T].
    """
    columns = dict(images)
    for name, unknown in {"file": "", "sha256": "", "width": 0, "height": 0}.items():
        columns.setdefault(name, [unknown] * len(images["image_id"]))
    image_table = pa.table(columns, schema=_IMAGES)
    image_order = np.argsort(list(map(SPLITS.index, images["split"])), kind="stable")
    new_row = np.argsort(image_order)  # of each image
    caption_order = np.argsort(new_row[owners], kind="stable")
    ids = pa.array(caption_ids, _TEXT)
    sentences = pa.array(texts, _TEXT)
    # Some rows at a time: copies of whole columns, and the words of all captions, would not fit into memory.
    with table_writer(folder / IMAGES_FILE, _IMAGES) as writer:
        for start in range(0, len(image_order), _ROWS_AT_ONCE):
            writer.write_table(image_table.take(image_order[start : start + _ROWS_AT_ONCE]))
    with table_writer(folder / CAPTIONS_FILE, _CAPTIONS) as writer:
        for start in range(0, len(caption_order), _ROWS_AT_ONCE):
            rows = caption_order[start : start + _ROWS_AT_ONCE]
            block = sentences.take(pa.array(rows))
            caption_columns = {
                "caption_id": ids.take(pa.array(rows)),
                "image_id": image_table["image_id"].take(owners[rows]),
                "split": image_table["split"].take(owners[rows]),
                "text": block,
                "tokens": list(map(tokenize, block.to_pylist())),
            }
            writer.write_table(pa.table(caption_columns, schema=_CAPTIONS))


@dataclass(frozen=True)
class Split:
    """One split of a prepared dataset: N images and their T captions.

    Attributes:
        name: one of `SPLITS`.
        images: rows of `images.parquet`.
        captions: rows of `captions.parquet`.
    """

    name: str
    images: pa.Table
    captions: pa.Table

    @cached_property
    def image_ids(self) -> np.ndarray:
        """Return the ids of the images, text [N]."""
        return np.array(self.images["image_id"].to_pylist(), dtype=str)

    @cached_property
    def files(self) -> list[str]:
        """Return the paths of the images relative to the root of the source, N of them."""
        return self.images["file"].to_pylist()

    @cached_property
    def sizes(self) -> np.ndarray:
        """Return height and width of the images in pixels, int64 [N, 2]."""
        columns = self.images["height"].to_numpy(), self.images["width"].to_numpy()
        return np.stack(columns, axis=1).astype(np.int64)

    @cached_property
    def caption_ids(self) -> np.ndarray:
        """Return the ids of the captions, text [T]."""
        return np.array(self.captions["caption_id"].to_pylist(), dtype=str)

    @cached_property
    def texts(self) -> list[str]:
        """Return the captions as published, T of them."""
        return self.captions["text"].to_pylist()

    @cached_property
    def tokens(self) -> pa.ListArray:
        """Return the words of each caption, an Arrow array of T lists, as `Vocabulary` takes it."""
        return self.captions["tokens"].combine_chunks()

    @cached_property
    def caption_image(self) -> np.ndarray:
        """Return the row of each caption's image within this split, int64 [T], 0..N-1, never falling."""
        return rows_of(self.captions["image_id"], self.images["image_id"])

    @cached_property
    def captions_of_image(self) -> np.ndarray:
        """Return offsets, int64 [N + 1]: the captions of image i are rows `offsets[i]` to `offsets[i + 1] - 1`."""
        image_rows = np.arange(len(self.images) + 1)
        return np.searchsorted(self.caption_image, image_rows).astype(np.int64)

    def without(self, image_ids: Sequence[str]) -> Split:
        """Return the split without some images and their captions.

        Raises:
            DataError: no image would be left.
        """
        is_kept = ~pc.field("image_id").isin(pa.array(image_ids, pa.string()))
        images = self.images.filter(is_kept)
        if not len(images):
            raise DataError(f"split {self.name!r}: none of its {len(self.images):,} images is left; extract them first")
        captions = self.captions.filter(is_kept)
        return Split(self.name, images, captions)

    def share(self, share: float) -> Split:
        """Return a share of the images with their captions; smaller shares lie within larger ones, for every seed.

        Args:
            share: part of the images to keep, 0..1; one image at least.
        """
        if share == 1.0:
            return self
        count = max(1, round(share * len(self.image_ids)))
        order = np.random.default_rng(0).permutation(len(self.image_ids))
        return self.without(self.image_ids[order[count:]].tolist())


@dataclass(frozen=True)
class PreparedDataset:
    """Images and captions of all splits, as `write_prepared` wrote them.

    Attributes:
        folder: the artifact.
        splits: those that hold images, by name, in the order of `SPLITS`.
    """

    folder: Path
    splits: dict[str, Split]

    @classmethod
    def open(cls, folder: Path, *, tokens: bool = True) -> PreparedDataset:
        """Read and check both files.

        Args:
            folder: the artifact.
            tokens: whether the words of captions are read; without them a dataset takes half the memory.

        Raises:
            MissingInputError: a file is not there.
            DataError: a file is truncated or damaged, or lacks a column.
        """
        images = read_table(folder / IMAGES_FILE, _IMAGES, _REMEDY)
        names = _CAPTIONS.names if tokens else _CAPTIONS.names[:-1]
        captions = read_table(folder / CAPTIONS_FILE, _CAPTIONS, _REMEDY, names)
        splits = {}
        for name in SPLITS:
            is_in_split = pc.field("split") == name
            split = Split(name, images.filter(is_in_split), captions.filter(is_in_split))
            if len(split.images):
                splits[name] = split
        return cls(folder, splits)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the number of images and of captions by split."""
        counts = {}
        for name, split in self.splits.items():
            counts[name] = len(split.images), len(split.captions)
        return counts

    def column(self, name: str) -> list[Any]:
        """Return a column of `images.parquet`, such as `image_id` or `file`, over the images of all splits."""
        values = []
        for split in self.splits.values():
            values += split.images[name].to_pylist()
        return values

    def sizes(self) -> np.ndarray:
        """Return height and width in pixels of the images of all splits, int64 [N, 2]."""
        return np.concatenate([split.sizes for split in self.splits.values()])

    def split(self, name: str) -> Split:
        """Return one split.

        Raises:
            UsageError: the dataset has no images of that split.
        """
        if name not in self.splits:
            raise UsageError(f"{self.folder}: has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]


def texts_of(folder: Path, split: str, caption_ids: Rows) -> Iterator[str]:
    """Yield the texts of captions of a split, without all of them in memory.

    Args:
        folder: artifact of `prepare`.
        split: name.
        caption_ids: UTF-8 ids of captions of the split, in its order; those of images without features may be missing.

    Raises:
        DataError: the file is damaged.
    """
    file = TableFile(folder / CAPTIONS_FILE, _CAPTIONS, _REMEDY)
    start = 0
    for table in file.row_groups(["caption_id", "split", "text"]):
        rows = table.filter(pc.field("split") == split)
        ids = caption_ids.read(start, start + len(rows)).tolist()
        next_ids = pa.array(ids, pa.binary()).cast(_TEXT)
        has_id = pc.is_in(rows["caption_id"], next_ids)  # pyright: ignore
        texts = rows["text"].filter(has_id).to_pylist()
        start += len(texts)
        yield from texts


def given_split(
    captions: Sequence[str], image_ids: Sequence[str] = ("none",), name: str = "given", what: str = "text {}"
) -> Split:
    """Make a split of some images, and of captions of the first of them; caption ids are `given`, `given1`, …

    Args:
        captions: T sentences.
        image_ids: ids of the images; where captions belong to none, any id.
        name: name of the split, for messages.
        what: option of a caption, for the message, where `{}` stands for its row.

    Raises:
        UsageError: a caption has no word, or it or an id is no Unicode.
    """
    for row, caption in enumerate(captions):
        if not isinstance(caption, str) or not tokenize(caption):
            raise UsageError(f"{what.format(row)} is {caption!r}; give a sentence")
    for text in (*image_ids, *captions):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{text!r} is not valid UTF-8; write it otherwise") from None
    columns = {
        "caption_id": [f"given{row or ''}" for row in range(len(captions))],
        "image_id": [image_ids[0]] * len(captions),
        "split": [name] * len(captions),
        "text": captions,
        "tokens": list(map(tokenize, captions)),
    }
    images = pa.table({"image_id": pa.array(image_ids, _TEXT)})
    return Split(name, images, pa.table(columns, schema=_CAPTIONS))
