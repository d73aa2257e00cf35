"""Columns of a table: which of them hold photographs, captions, ids, splits and groups."""

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


def _names(value: Any) -> Any:
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
    captions: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    id: str = ""
    split: str = ""
    group: str = ""


class Columns(NamedTuple):
    """Columns of one table by what they hold, empty where it has none, and a note if others could hold captions."""

    image: str
    captions: tuple[str, ...]
    id: str
    split: str
    group: str
    note: str = ""

    def names(self) -> list[str]:
        """Return the names of all these columns, each once."""
        return [*filter(None, dict.fromkeys([self.image, *self.captions, self.id, self.split, self.group]))]


def choose_columns(path: Path, names: Iterable[str], pictures: Mapping[str, bool], settings: ColumnSettings) -> Columns:
    """Recognise the columns of a table by their names.

    Args:
        path: the table, for messages.
        names: of its columns.
        pictures: columns that hold bytes; true where a path stands beside them, which photographs alone have.
        settings: columns that the user has named.

    Raises:
        UsageError: a column that the user has named is not there.
        DataError: none holds photographs or captions.
    """
    plain = {}
    for name in names:
        plain.setdefault(_plain(name), name)

    def chosen(name: str, default: str = "") -> str:
        if not name:
            return default
        if _plain(name) not in plain:
            raise UsageError(f"{path}: has no column {name!r}; it has {', '.join(plain.values())}")
        return plain[_plain(name)]

    image = chosen(settings.image, _image_column(plain, pictures))
    captions = tuple(map(chosen, settings.captions))
    candidates = [*_caption_columns(plain)]
    others = ""
    if candidates and not captions:
        captions = candidates[0]
        others = ", ".join(map(", ".join, candidates[1:]))
    lacking = {}
    if not image:
        for name in plain:
            if _ADDRESS.fullmatch(name):
                raise DataError(address_line(path, plain[name]))
        lacking["photographs"] = "--column image=COLUMN"
    if not captions:
        lacking["captions"] = "--column captions=COLUMN"
    if lacking:
        raise DataError(
            f"{path}: no column is known to hold {' or '.join(lacking)} among {', '.join(plain.values())}; name it "
            f"with {' '.join(lacking.values())}"
        )
    note = ""
    if others:
        note = f"captions are read from {', '.join(captions)}, not from {others}: see --column captions=COLUMN"
    ids = [plain[name] for name in _ID if name in plain and plain[name] != image]
    if image in pictures and ROW_ID in plain:
        ids.append(plain[ROW_ID])
    return Columns(
        image,
        captions,
        chosen(settings.id, [*ids, ""][0]),
        chosen(settings.split, plain.get("split", "")),
        chosen(settings.group, plain.get("group", "")),
        note,
    )


def address_line(path: Path, column: str) -> str:
    """Return the line that refuses photographs on the web."""
    return (
        f"{path}: column {column} holds addresses, which are not fetched; fetch the photographs, for example with "
        f"`img2dataset --url_list {path.name} --url_col {column} --output_format webdataset`, and prepare its folder"
    )


def _plain(name: str) -> str:
    """Return a column's name in the one form that names are compared in."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _image_column(plain: Mapping[str, str], pictures: Mapping[str, bool]) -> str:
    """Return the column of photographs: bytes rather than names of files; empty where there is none."""
    known = [plain[name] for name in _IMAGE if name in plain]
    inside = [name for name in known if name in pictures]
    if inside:
        return inside[0]
    with_path = [name for name, has_path in pictures.items() if has_path]
    if len(with_path) == 1:
        return with_path[0]
    return known[0] if known else ""


def _caption_columns(plain: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the columns that may hold captions, best first; those that are numbered, as `caption_0`, all at once."""
    for word in _CAPTIONS:
        if word in plain:
            yield (plain[word],)
        numbered = {}
        for name in plain:
            match = re.fullmatch(rf"{word}_?(\d+)", name)
            if match:
                numbered[int(match[1])] = plain[name]
        if numbered:
            yield tuple(numbered[number] for number in sorted(numbered))
