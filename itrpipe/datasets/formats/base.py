"""Records that every reader of a format returns, and the ids of photographs that no format gives one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from itrpipe.datasets.captions import CaptionRecord
from itrpipe.datasets.formats.columns import ColumnSettings


class FoundImage(NamedTuple):
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

    @property
    def path(self) -> str:
        """Return the file in its folder."""
        return f"{self.folder}/{self.file}" if self.folder else self.file


class Read(NamedTuple):
    """Content of a data file.

    Attributes:
        images: in the order of the file.
        captions: in the order of the file.
        notes: for the user.
        path: the one file that was read of several that could have been, for messages.
    """

    images: list[FoundImage]
    captions: list[CaptionRecord]
    notes: Sequence[str] = ()
    path: Path | None = None


class Format(NamedTuple):
    """A format of datasets.

    Attributes:
        names: of its data files, or patterns of them, by which it is recognised.
        read: reads one of them, as the settings of columns say.
        images: folders in which the images may lie, below that of the data files.
        by_year: whether there may be several of one year, each with a split.
        find: finds the data files of a source that are called as the format's are, where `names` do not tell them. All
            of them are read together, of the source.
        published: whether it is that of datasets with published results, whose images all stay.
    """

    names: tuple[str, ...]
    read: Callable[[Path, ColumnSettings], Read]
    images: tuple[str, ...]
    by_year: bool = False
    find: Callable[[Path], list[Path]] | None = None
    published: bool = False


def identified(
    images: Sequence[FoundImage],
    captions: Sequence[tuple[int, str]],
    notes: Sequence[str],
    *,
    are_ids: bool = False,
    has_splits: bool = False,
) -> Read:
    """Give images and captions their ids, the same ones in whatever format the photographs are packed.

    An image is called as its source names it, if all images have a name that no other has; else each is called by its
    path. Caption number 2 of `a.jpg` is `a.jpg#2`. Where names of files put all into train, it is no split: datasets
    that have no splits are published so.

    Args:
        images: their names as ids; empty where there is none.
        captions: row of the image, and text.
        notes: for the user.
        are_ids: whether the user says that the names are ids.
        has_splits: whether the source itself says which split an image is in.
    """
    names = {image.image_id for image in images}
    named = list(images)
    if not are_ids and ("" in names or len(names) < len(images)):
        named = [image._replace(image_id=image.path) for image in images]
    if not has_splits and {image.split for image in images} == {"train"}:
        named = [image._replace(split=None) for image in named]
        notes = [*notes, "all of it is called train, which is no split"]
    numbers = [0] * len(named)
    records = []
    for row, text in captions:
        image_id = named[row].image_id
        records.append(CaptionRecord(f"{image_id}#{numbers[row]}", image_id, text))
        numbers[row] += 1
    return Read(named, records, notes)
