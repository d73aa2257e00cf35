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
from typing import TYPE_CHECKING

import numpy as np

from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.records import SPLITS, Annotations, ImageRecord
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.storage.disk import reading_error
from itrpipe.storage.integrity import checked

if TYPE_CHECKING:
    import pyarrow as pa

IMAGES_FILE = "images.parquet"
CAPTIONS_FILE = "captions.parquet"
_REMEDY = "run itrpipe prepare again"
_CAPTIONS_AT_ONCE = 65_536


def write_prepared(
    folder: Path, annotations: Annotations, facts: Mapping[str, ImageFacts], tokens: Sequence[list[str]]
) -> None:
    """Write both files.

    Args:
        folder: exists; files of the same names are replaced.
        annotations: checked, so that every caption has its image.
        facts: of `image_check.check_images`, for every image.
        tokens: the words of each caption, in the order of `annotations.captions`.

    Raises:
        DataError: an image has no facts.
    """
    images = sorted(annotations.images, key=lambda image: SPLITS.index(image.split))
    missing = [image.file for image in images if image.file not in facts]
    if missing:
        raise DataError(f"{annotations.root}: {len(missing):,} images were not checked ({missing[0]}, ...); check them")
    _write(folder / IMAGES_FILE, _image_table(images, facts))
    _write(folder / CAPTIONS_FILE, _caption_table(images, annotations, tokens))


def write_without_photographs(folder: Path, splits: Mapping[str, tuple[pa.Table, pa.Table]]) -> None:
    """Write both files of a dataset of which there are ids and captions, and no files of images.

    Args:
        folder: exists; files of the same names are replaced.
        splits: name -> images with `image_id`; and captions with `caption_id`, `image_id`, `text` and `tokens`, in the
            order of their images.
    """
    import pyarrow as pa

    tables = []
    for side, schema in enumerate((_image_schema(), _caption_schema())):
        parts = []
        for name in sorted(splits, key=SPLITS.index):
            known, count = splits[name][side], len(splits[name][side])
            told = {"split": pa.array([name] * count, pa.string())}
            unknown = {"file": "", "sha256": "", "width": 0, "height": 0}
            told |= {key: pa.array([value] * count) for key, value in unknown.items()}
            columns = {field.name: told.get(field.name, None) for field in schema}
            parts.append(pa.table({key: known[key] if value is None else value for key, value in columns.items()}))
        tables.append(pa.concat_tables([part.cast(schema) for part in parts]).combine_chunks())
    _write(folder / IMAGES_FILE, tables[0])
    _write(folder / CAPTIONS_FILE, tables[1])


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
        """Ids of the images, text [N]."""
        return _texts(self.images, "image_id")

    @cached_property
    def files(self) -> list[str]:
        """Paths of the images relative to the root of the source, N of them."""
        return self.images["file"].to_pylist()

    @cached_property
    def caption_ids(self) -> np.ndarray:
        """Ids of the captions, text [T]."""
        return _texts(self.captions, "caption_id")

    @cached_property
    def texts(self) -> list[str]:
        """The captions as published, T of them."""
        return self.captions["text"].to_pylist()

    @cached_property
    def tokens(self) -> pa.ListArray:
        """The words of each caption, an Arrow array of T lists, as `Vocabulary` takes it."""
        return self.captions["tokens"].combine_chunks()

    @cached_property
    def caption_image(self) -> np.ndarray:
        """Row of each caption's image within this split, int64 [T], 0..N-1, never falling."""
        return self.image_rows().to_numpy().astype(np.int64)

    @cached_property
    def captions_of_image(self) -> np.ndarray:
        """Offsets int64 [N + 1]: the captions of image i are rows `offsets[i]` to `offsets[i + 1] - 1`."""
        return np.searchsorted(self.caption_image, np.arange(len(self.images) + 1)).astype(np.int64)

    def without(self, image_ids: Sequence[str]) -> Split:
        """Return the split without some images and their captions.

        Raises:
            DataError: no image would be left.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        kept = ~pc.field("image_id").isin(pa.array(image_ids, pa.string()))
        images = self.images.filter(kept)
        if not len(images):
            raise DataError(f"split {self.name!r}: none of its {len(self.images):,} images is left; extract them first")
        return Split(self.name, images, self.captions.filter(kept))

    def share(self, share: float) -> Split:
        """Return so many of the images with their captions; smaller shares lie within larger ones, for every seed.

        Args:
            share: of the images, 0..1; one of them at least.
        """
        if share == 1.0:
            return self
        order = np.random.default_rng(0).permutation(len(self.image_ids))
        return self.without(self.image_ids[order[max(1, round(share * len(order))) :]].tolist())

    def image_rows(self) -> pa.ChunkedArray:
        """Return `caption_image` as Arrow looks it up: null where the image is not there."""
        import pyarrow.compute as pc

        known = pc.SetLookupOptions(value_set=self.images["image_id"].combine_chunks())
        return pc.call_function("index_in", [self.captions["image_id"]], known)


class PreparedDataset:
    """Images and captions of all splits, as `write_prepared` wrote them."""

    def __init__(self, folder: Path, splits: dict[str, Split]) -> None:
        """Take the splits that hold images; use `open` to read them."""
        self.folder = folder
        self._splits = splits

    @classmethod
    def open(cls, folder: Path, *, tokens: bool = True) -> PreparedDataset:
        """Read and check both files.

        Args:
            folder: the artifact.
            tokens: whether the words of captions are read; without them a dataset takes half the memory.

        Raises:
            MissingInputError: a file is not there.
            DataError: a file is truncated or damaged, lacks a column, or the two contradict each other.
        """
        images = _read(folder / IMAGES_FILE, _image_schema())
        captions = _read(folder / CAPTIONS_FILE, _caption_schema(), None if tokens else "tokens")
        splits = {
            name: split
            for name in SPLITS
            if len((split := Split(name, _rows_of(images, name), _rows_of(captions, name))).images)
        }
        _check(folder, images, captions, splits)
        return cls(folder, splits)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that hold images, in the order of `SPLITS`."""
        return tuple(self._splits)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the number of images and of captions by split."""
        return {name: (len(split.images), len(split.captions)) for name, split in self._splits.items()}

    def image_ids(self) -> list[str]:
        """Return the ids of the images of all splits, N of them."""
        return [image_id for split in self._splits.values() for image_id in split.image_ids.tolist()]

    def files(self) -> list[str]:
        """Return the paths of the images of all splits, relative to the root of the source."""
        return [file for split in self._splits.values() for file in split.files]

    def sizes(self) -> np.ndarray:
        """Return height and width in pixels of the images of all splits, int64 [N, 2]."""
        columns = [
            np.concatenate([split.images[side].to_numpy() for split in self._splits.values()])
            for side in ("height", "width")
        ]
        return np.stack(columns, axis=1).astype(np.int64)

    def split(self, name: str) -> Split:
        """Return one split.

        Raises:
            UsageError: the dataset has no images of that split.
        """
        if name not in self._splits:
            raise UsageError(f"{self.folder}: has no split {name!r}; it has {', '.join(self._splits)}")
        return self._splits[name]


def captions_of(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    """Id and text of the captions of a split, in their order, without all of them in memory.

    Args:
        folder: artifact of `prepare`.
        split: name.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    path = folder / CAPTIONS_FILE
    try:
        with pq.ParquetFile(checked(path), page_checksum_verification=True) as file:
            for batch in file.iter_batches(_CAPTIONS_AT_ONCE, columns=["caption_id", "split", "text"]):
                own = batch.filter(pc.equal(batch["split"], split))  # pyright: ignore[reportAttributeAccessIssue]
                yield from zip(own["caption_id"].to_pylist(), own["text"].to_pylist(), strict=True)
    except (OSError, pa.ArrowException) as error:
        damage = DataError(f"{path}: is truncated or damaged ({' '.join(str(error).split())}); {_REMEDY}")
        raise reading_error(error, path, damage) from error


def _image_schema() -> pa.Schema:
    import pyarrow as pa

    text = [(name, pa.string()) for name in ("image_id", "file", "split")]
    return pa.schema([*text, ("width", pa.int32()), ("height", pa.int32()), ("sha256", pa.string())])


def _caption_schema() -> pa.Schema:
    import pyarrow as pa

    text = [(name, pa.string()) for name in ("caption_id", "image_id", "split", "text")]
    return pa.schema([*text, ("tokens", pa.list_(pa.string()))])


def _image_table(images: Sequence[ImageRecord], facts: Mapping[str, ImageFacts]) -> pa.Table:
    import pyarrow as pa

    columns = {
        "image_id": [image.image_id for image in images],
        "file": [image.file for image in images],
        "split": [image.split for image in images],
        "width": [facts[image.file].width for image in images],
        "height": [facts[image.file].height for image in images],
        "sha256": [facts[image.file].sha256 for image in images],
    }
    return pa.table(columns, schema=_image_schema())


def _caption_table(images: Sequence[ImageRecord], annotations: Annotations, tokens: Sequence[list[str]]) -> pa.Table:
    import pyarrow as pa

    position = {image.image_id: row for row, image in enumerate(images)}
    rows = zip(annotations.captions, tokens, strict=True)
    ordered = sorted(rows, key=lambda row: position[row[0].image_id])
    columns = {
        "caption_id": [caption.caption_id for caption, _ in ordered],
        "image_id": [caption.image_id for caption, _ in ordered],
        "split": [images[position[caption.image_id]].split for caption, _ in ordered],
        "text": [caption.text for caption, _ in ordered],
        "tokens": [words for _, words in ordered],
    }
    return pa.table(columns, schema=_caption_schema())


def _write(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    # Without checksums a flipped bit in a caption would read as another caption.
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)


def _read(path: Path, schema: pa.Schema, unread: str | None = None) -> pa.Table:
    """Read one file but for one of its columns, and check its pages and its columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise MissingInputError(f"{path}: is not there; run itrpipe prepare")
    try:
        found = pq.read_schema(checked(path))
        names = [name for name in found.names if name != unread]
        table = pq.read_table(path, columns=names, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        damage = DataError(f"{path}: is truncated or damaged ({' '.join(str(error).split())}); {_REMEDY}")
        raise reading_error(error, path, damage) from error
    if not found.equals(schema):
        columns = ", ".join(f"{field.name} {field.type}" for field in found)
        raise DataError(f"{path}: has other columns than this version writes ({columns}); {_REMEDY}")
    return table


def _rows_of(table: pa.Table, split: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.field("split") == split)


def _check(folder: Path, images: pa.Table, captions: pa.Table, splits: Mapping[str, Split]) -> None:
    """Refuse files that do not belong together."""
    if not splits:
        raise DataError(f"{folder / IMAGES_FILE}: holds no images; {_REMEDY}")
    rows = sum(len(split.images) for split in splits.values()), sum(len(split.captions) for split in splits.values())
    if rows != (len(images), len(captions)):
        raise DataError(f"{folder}: has rows of other splits than {', '.join(splits)}; {_REMEDY}")
    for split in splits.values():
        if split.image_rows().null_count:
            raise DataError(f"{folder}: {split.name} has captions of images that {IMAGES_FILE} lacks; {_REMEDY}")
        if np.any(np.diff(split.caption_image) < 0):
            raise DataError(f"{folder}: captions of {split.name} are not in the order of their images; {_REMEDY}")


def _texts(table: pa.Table, column: str) -> np.ndarray:
    return np.array(table[column].to_pylist(), dtype=str)
