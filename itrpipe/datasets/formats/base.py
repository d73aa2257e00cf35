"""Records that every reader of a format returns, and the ids of photographs that no format gives one."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from itrpipe.datasets.captions import CaptionRecord
from itrpipe.datasets.formats.columns import ColumnSettings


class SourceImage(NamedTuple):
    """An image as a data file names it.

    Attributes:
        image_id: unique in the dataset.
        file: path as it is written there.
        split: None where the data file names none.
        where: place in the data file, such as `line 5`.
        folder: folder that the file may lie in.
        group: name of a group of images that get one split; empty where the image is in none.
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


class SourceContent(NamedTuple):
    """Images and captions of a data file.

    Attributes:
        images: in the order of the file.
        captions: in the order of the file.
        notes: for the user.
        path: file that was read, where several could have been, for messages.
    """

    images: list[SourceImage]
    captions: list[CaptionRecord]
    notes: Sequence[str] = ()
    path: Path | None = None


class Format(NamedTuple):
    """A format of datasets.

    Attributes:
        names: names or patterns of its data files, by which it is recognised.
        read: function that reads a data file; settings may name the columns of a table.
        images: folders in which the images may lie, below that of the data files.
        by_year: whether there may be several data files of one year, each with a split.
        find: function that finds the data files of a source, where `names` do not tell them. They are read together, by
            one call of `read` with the source.
        published: whether results on such datasets are published, so that all images stay.
    """

    names: tuple[str, ...]
    read: Callable[[Path, ColumnSettings], SourceContent]
    images: tuple[str, ...]
    by_year: bool = False
    find: Callable[[Path], list[Path]] | None = None
    published: bool = False


def give_ids(
    images: Sequence[SourceImage],
    captions: Sequence[tuple[int, str]],
    notes: Sequence[str],
    *,
    are_ids: bool = False,
    has_splits: bool = False,
) -> SourceContent:
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
    identified = list(images)
    if not are_ids and ("" in names or len(names) < len(images)):
        identified = [image._replace(image_id=image.path) for image in images]
    if not has_splits and {image.split for image in images} == {"train"}:
        identified = [image._replace(split=None) for image in identified]
        notes = [*notes, "all of it is called train, which is no split"]
    caption_counts = Counter()
    records = []
    for row, text in captions:
        image_id = identified[row].image_id
        records.append(CaptionRecord(f"{image_id}#{caption_counts[row]}", image_id, text))
        caption_counts[row] += 1
    return SourceContent(identified, records, notes)
