"""Reads images and captions from the rows of tables: `read_tables`."""

import ast
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from itrpipe.datasets.archives import ARROW, PARQUET
from itrpipe.datasets.formats.base import SourceContent, SourceImage, give_ids
from itrpipe.datasets.formats.columns import ROW_ID, Columns, ColumnSettings, address_line, choose_columns
from itrpipe.datasets.formats.splits import split_in_name, split_of_word
from itrpipe.datasets.formats.table_files import ColumnTable, TextTable, open_table
from itrpipe.datasets.formats.table_layouts import CAPTION_FILES, SourceTable, find_tables
from itrpipe.datasets.paths import image_key
from itrpipe.errors import DataError, MissingInputError
from itrpipe.printable import printable

_ADDRESS = re.compile(r"(https?|s3|gs)://", re.IGNORECASE)
_NO_COMMA = re.compile(r"(?<=[\'\"])\s+(?=[\'\"])")
_SHOWN = 60


def read_tables(source: Path, settings: ColumnSettings) -> SourceContent:
    """Read a table of captions, or all those of a source, as `find_tables` finds them.

    A row has a photograph or the path of one, captions, and optionally an id, `split` or `group`; see
    `choose_columns`. Files lie beside the table or above their folder `images/`; those that `metadata.csv` names, in
    its own folder. Photographs inside a table have the path `FILE.parquet/COLUMN/ROW`. An image is called as the table
    names it, see `give_ids`. It has the one split and group that its rows name, and a group is in one split, too.

    Raises:
        DataError: a value is none of its column, rows contradict each other, or none has a photograph and a caption.
        UsageError, MissingInputError: see `find_tables` and `choose_columns`.
    """
    tables = find_tables(source)
    if not tables:
        raise MissingInputError(f"{source}: none of {', '.join(CAPTION_FILES)} is there; name the file or its folder")
    path = tables[0].path if len(tables) == 1 else source
    root = source if source.is_dir() else source.parent
    images = []
    captions = []
    places = {}  # key of an image -> its place in `images`
    left_out = {"no photograph": [], "no caption": []}
    has_splits = False
    kinds = set()
    notes = []
    for table in tables:
        file = open_table(table.path)
        if not file.names:
            continue
        columns = choose_columns(table.path, file.names, file.pictures, settings)
        reader = _RowReader(path, root, table, file, columns)
        kinds.add(reader.is_inside)
        has_splits |= bool(columns.split)
        if columns.note and columns.note not in notes:
            notes.append(columns.note)
        unit = file.unit
        if table.path != path:
            unit = f"{table.path.relative_to(root).as_posix()}: {file.unit}"
        for number, row in file.rows(columns.names()):
            where = f"{unit} {number}"
            texts = reader.captions(where, row)
            if row[columns.image] is None:
                left_out["no photograph"].append(where)
                continue
            if not texts:
                left_out["no caption"].append(where)
                continue
            image = reader.image(where, number, row)
            place = places.setdefault(reader.key(image), len(images))
            if place < len(images):
                images[place] = _merge_rows(path, images[place], image)
            else:
                images.append(image)
            for text in texts:
                captions.append((place, text))
    _refuse_divided_groups(path, images)
    if len(kinds) > 1:
        raise DataError(f"{source}: some of its tables hold photographs, others name files; prepare one kind")
    for missing, rows in left_out.items():
        if rows:
            notes.append(f"{len(rows):,} rows have {missing}, such as {rows[0]}, and are left out")
    if not images:
        raise DataError(f"{path}: holds no images with captions ({'; '.join(notes) or 'no rows'}); name another source")
    content = give_ids(images, captions, notes, are_ids=bool(settings.id), has_splits=has_splits)
    return content._replace(path=path)


def packed_tables(source: Path, settings: ColumnSettings) -> list[Path]:
    """Return the tables of a source if the photographs lie in them; none where a table names files.

    Raises:
        DataError, UsageError, MissingInputError: see `read_tables`.
    """
    paths = []
    for table in find_tables(source):
        if table.path.suffix.lower() not in (PARQUET, ARROW):
            return []
        file = open_table(table.path)
        columns = choose_columns(table.path, file.names, file.pictures, settings)
        if file.names_files(columns.image):
            return []
        paths.append(table.path)
    return paths


@dataclass
class _RowReader:
    """Reads the rows of one table.

    Attributes:
        path: path of the table or of the source, for messages.
        root: folder that the paths of images are relative to.
        table: the file and its split.
        file: the opened file.
        columns: names of its columns by what they hold.
    """

    path: Path
    root: Path
    table: SourceTable
    file: TextTable | ColumnTable
    columns: Columns

    def __post_init__(self) -> None:
        path = self.table.path.relative_to(self.root)
        self._folder = "/".join(path.parts[:-1])
        self._inside = f"{path.as_posix()}/{self.columns.image}"
        self.is_inside = not self.file.names_files(self.columns.image)

    def image(self, where: str, number: str, row: Mapping[str, Any]) -> SourceImage:
        """Return the photograph of a row; its id is the name that the table gives it, or empty.

        Raises:
            DataError: the photograph lies elsewhere, or a value is no text.
        """
        columns = self.columns
        text = self._text(where, columns.image, row[columns.image])
        if not self.is_inside:
            if _ADDRESS.match(text):
                raise DataError(address_line(self.table.path, columns.image))
            if text.startswith("/") and columns.image in self.file.pictures:
                raise DataError(
                    f"{self.path}: {where}: the photograph lies elsewhere ({printable(text)}); write the dataset with "
                    "`save_to_disk` of `datasets`, which takes photographs along"
                )
        name = image_key(text)
        image_id = name
        if columns.id:
            image_id = self._text(where, columns.id, row[columns.id], is_name=True)
        split = self.table.split
        if columns.split:
            split = row[columns.split]
            if split is not None:
                split = split_of_word(self._text(where, columns.split, split).strip())
        group = ""
        if columns.group and row[columns.group] is not None:
            group = self._text(where, columns.group, row[columns.group], is_name=True)
            group = unicodedata.normalize("NFC", group.strip())
        if self.table.is_metadata and split is None and not columns.split:
            split = split_in_name(PurePosixPath(name).parent.as_posix())
        image = SourceImage(image_id, name, split, where, self._folder, group)
        if self.is_inside:
            return image._replace(file=f"{self._inside}/{number}", folder="")
        if self.table.is_metadata:
            return image._replace(file=image.path, folder="")
        return image

    def key(self, image: SourceImage) -> str:
        """Return the key of all rows of a photograph."""
        if self.is_inside and self.columns.id.lower() not in ("", ROW_ID):
            # Splits may number their images from 0.
            return f"{image.split}/{image.image_id}"
        return image.file

    def captions(self, where: str, row: Mapping[str, Any]) -> list[str]:
        """Return the captions of a row; none where all of its cells are null.

        Raises:
            DataError: a cell holds neither a text nor a list of texts.
        """
        texts = []
        for column in self.columns.captions:
            value = row[column]
            if self.file.unit == "line" and isinstance(value, str) and value.startswith("["):
                value = self._parse_list(where, value, column)
            values = value if isinstance(value, list) else [value]
            for item in values:
                # A sentence of Karpathy's is an object with its words.
                text = item.get("raw") if isinstance(item, dict) else item
                if text is not None:
                    texts.append(self._text(where, column, text))
        if len(self.columns.captions) > 1:
            return list(filter(None, texts))  # cells are left empty where a photograph has fewer captions
        return texts

    def _text(self, where: str, column: str, value: Any, *, is_name: bool = False) -> str:
        """Return the value of a cell if it is a text; a name may be a whole number, too."""
        if is_name and type(value) is int:
            return str(value)
        if not isinstance(value, str):
            excerpt = printable(repr(value)[:_SHOWN])
            raise DataError(f"{self.path}: {where} {column} is {excerpt}, expected text")
        return value

    def _parse_list(self, where: str, cell: str, column: str) -> str | list[str]:
        """Return the texts of a cell that holds a list, written as JSON or Python does; any other cell as it is."""
        is_json = True
        try:
            values = json.loads(cell)
        except (ValueError, RecursionError):
            is_json = False
            try:
                values = ast.literal_eval(cell)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return cell
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            return cell
        # Python joins texts that no comma divides, as NumPy writes them.
        if not is_json and _NO_COMMA.search(cell):
            raise DataError(
                f"{self.path}: {where} {column} is a list without commas, {printable(cell[:_SHOWN])}; write it as JSON"
            )
        return values


def _merge_rows(path: Path, first: SourceImage, other: SourceImage) -> SourceImage:
    """Return the one image that two rows name.

    Raises:
        DataError: they give it two splits, groups or ids.
    """
    place = f"{path}: {other.where}: image {other.file}"
    if other.split != first.split:
        raise DataError(f"{place} is in the splits {first.split!r} and {other.split!r}; give it one")
    if other.image_id != first.image_id:
        raise DataError(
            f"{place} has the ids {first.image_id!r} ({first.where}) and {other.image_id!r}; give it one, or name "
            "another column with --column id=COLUMN"
        )
    if first.group and other.group not in ("", first.group):
        raise DataError(f"{place} is in the groups {first.group!r} ({first.where}) and {other.group!r}; give it one")
    if other.group and not first.group:
        return first._replace(group=other.group, where=other.where)
    return first


def _refuse_divided_groups(path: Path, images: Sequence[SourceImage]) -> None:
    """Refuse a group that is in two splits.

    Raises:
        DataError: there is one.
    """
    first_of = {}
    for image in images:
        if not image.group:
            continue
        first = first_of.setdefault(image.group, image)
        if image.split != first.split:
            raise DataError(
                f"{path}: {image.where}: group {image.group!r} is in the splits {first.split!r} ({first.where}) and "
                f"{image.split!r}; put it into one"
            )
