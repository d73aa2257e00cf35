"""Recognises the columns of a table that hold photographs, captions, ids, splits and groups: `choose_columns`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from itrpipe.config import Settings
from itrpipe.errors import DataError, UsageError

_IMAGE = (
    "file",
    "image",
    "file_name",
    "filename",
    "image_file_name",
    "image_file",
    "image_path",
    "image_name",
    "img_path",
    "filepath",
    "file_path",
    "path",
    "img",
    "photo",
    "photograph",
    "picture",
    "image_bytes",
    "bytes",
    "jpg",
    "jpeg",
    "png",
    "webp",
)
_CAPTIONS = (
    "captions",
    "caption",
    "texts",
    "text",
    "sentences",
    "sentence",
    "sentence_list",
    "sentences_raw",
    "raw",
    "title",
    "descriptions",
    "description",
    "comment",
)
_ID = ("image_id", "img_id", "cocoid", "imgid")
ROW_ID = "id"
"""May be the id of a caption, or of a thing with several photographs: it names photographs inside a table, if it is
unique, and joins no rows."""
_ADDRESS = re.compile(r"(.*_)?ur[li]|url_.*")


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class ColumnSettings(Settings):
    """Names of the columns of a table, for those that are not recognised.

    Attributes:
        image: names of files, or photographs.
        captions: one or several.
        id: of the image.
        split: of the image.
        group: of images that get one split.
    """

    image: str = ""
    captions: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    id: str = ""
    split: str = ""
    group: str = ""


class Columns(NamedTuple):
    """Names of the columns of one table, empty where it has none, and a note if other columns could hold captions."""

    image: str
    captions: tuple[str, ...]
    id: str
    split: str
    group: str
    note: str = ""

    def names(self) -> list[str]:
        """Return the names of all these columns, each once."""
        names = dict.fromkeys([self.image, *self.captions, self.id, self.split, self.group])
        names.pop("", None)
        return list(names)


def choose_columns(path: Path, names: Iterable[str], pictures: Mapping[str, bool], settings: ColumnSettings) -> Columns:
    """Recognise the columns of a table by their names.

    Args:
        path: the table, for messages.
        names: names of its columns.
        pictures: columns that hold bytes; true where a path stands beside them, which photographs alone have.
        settings: columns that the user has named.

    Raises:
        UsageError: a column that the user has named is not there.
        DataError: none holds photographs or captions.
    """
    columns = {}  # plain name -> name in the table
    for name in names:
        columns.setdefault(_plain(name), name)
    listing = ", ".join(columns.values())

    def named_column(name: str) -> str:
        if _plain(name) not in columns:
            raise UsageError(f"{path}: has no column {name!r}; it has {listing}")
        return columns[_plain(name)]

    image = named_column(settings.image) if settings.image else _image_column(columns, pictures)
    captions = tuple(map(named_column, settings.captions))
    note = ""
    if not captions:
        candidates = list(_caption_columns(columns))
        if candidates:
            captions = candidates[0]
        if len(candidates) > 1:
            others = ", ".join(map(", ".join, candidates[1:]))
            note = f"captions are read from {', '.join(captions)}, not from {others}: see --column captions=COLUMN"
    lacking = {}
    if not image:
        for name in columns:
            if _ADDRESS.fullmatch(name):
                raise DataError(address_line(path, columns[name]))
        lacking["photographs"] = "--column image=COLUMN"
    if not captions:
        lacking["captions"] = "--column captions=COLUMN"
    if lacking:
        raise DataError(
            f"{path}: no column is known to hold {' or '.join(lacking)} among {listing}; name it with "
            f"{' '.join(lacking.values())}"
        )
    id_column = named_column(settings.id) if settings.id else _id_column(columns, pictures, image)
    split = named_column(settings.split) if settings.split else columns.get("split", "")
    group = named_column(settings.group) if settings.group else columns.get("group", "")
    return Columns(image, captions, id_column, split, group, note)


def address_line(path: Path, column: str) -> str:
    """Return the line that refuses photographs on the web."""
    return (
        f"{path}: column {column} holds addresses, which are not fetched; fetch the photographs, for example with "
        f"`img2dataset --url_list {path.name} --url_col {column} --output_format webdataset`, and prepare its folder"
    )


def _plain(name: str) -> str:
    """Return a column's name in the one form that names are compared in."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _image_column(columns: Mapping[str, str], pictures: Mapping[str, bool]) -> str:
    """Return the column of photographs: bytes rather than names of files; empty where there is none."""
    recognised = [columns[name] for name in _IMAGE if name in columns]
    for column in recognised:
        if column in pictures:
            return column
    with_path = [column for column, has_path in pictures.items() if has_path]
    if len(with_path) == 1:
        return with_path[0]
    return recognised[0] if recognised else ""


def _id_column(columns: Mapping[str, str], pictures: Mapping[str, bool], image: str) -> str:
    """Return the column of ids of photographs; empty where there is none."""
    for name in _ID:
        if name in columns and columns[name] != image:
            return columns[name]
    if image in pictures:
        return columns.get(ROW_ID, "")
    return ""


def _caption_columns(columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the columns that may hold captions, best first; numbered ones, such as `caption_0`, all at once."""
    for word in _CAPTIONS:
        if word in columns:
            yield (columns[word],)
        numbered = {}
        for name, column in columns.items():
            match = re.fullmatch(rf"{word}_?(\d+)", name)
            if match:
                numbered[int(match[1])] = column
        if numbered:
            ordered = dict(sorted(numbered.items()))
            yield tuple(ordered.values())
