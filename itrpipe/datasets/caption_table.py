"""Reader of a folder of images with one table of captions: `captions.csv`, `.tsv`, `.jsonl` or `.txt`.

One row per caption: `file`, `filename` or `image` (path of the image), `caption`, and optionally `split`; further
columns are not read. CSV and TSV quote as the csv module does: a field with a separator, a quote or a line end
stands in double quotes, and quotes within it are doubled. A CSV whose header has semicolons and no comma is separated
by semicolons, as spreadsheets write it in many countries.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from itrpipe.datasets.hash_split import DEFAULT_FRACTIONS, Fractions, describe, hash_split
from itrpipe.datasets.noted import NotedAnnotations
from itrpipe.datasets.paths import image_key, locate_images
from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.datasets.source_files import files_present, json_lines, one_file, text_lines
from itrpipe.errors import DataError, UsageError

NAMES = ("captions.csv", "captions.tsv", "captions.jsonl", "captions.txt")
LOOKED_FOR = " or ".join(NAMES)
IMAGE_FOLDERS = ("", "images", "Images")
_EXAMPLES = 3
_FILE_COLUMNS, _CAPTION_COLUMNS = ("file", "filename", "image"), ("caption",)


class _Row(NamedTuple):
    line: int
    file: str
    caption: str
    split: str | None


def recognises(source: Path) -> bool:
    """Whether the source is such a table or a folder that holds one."""
    return bool(files_present(source, NAMES))


def read(source: Path, *, split_fractions: Fractions = DEFAULT_FRACTIONS, split_seed: int = 0) -> NotedAnnotations:
    """Read a table of captions; the images lie beside it or in `images/`.

    Args:
        source: the table, or a folder holding exactly one.
        split_fractions: shares of train, val and test; read only if the table has no `split` column.
        split_seed: seed of that split.

    Returns:
        The image id is the path in the one form of `image_key`, the caption id the number of the row from 0. Without
        a `split` column the note states the rule by which the images were split.

    Raises:
        UsageError: several tables in the folder, an unknown file type, or impossible fractions.
        MissingInputError: no table, or the images' folder is not there.
        DataError: a column is missing, a row is malformed, an image has two splits, or a path leaves the folder.
    """
    path = one_file(source, NAMES)
    rows = list(_rows(path))
    if empty := [row.line for row in rows if not row.caption.strip()]:
        where = f"{', '.join(map(str, empty[:_EXAMPLES]))}{', ...' if len(empty) > _EXAMPLES else ''}"
        raise DataError(f"{path}: {len(empty):,} empty captions (on line {where}); write them, or remove what has none")
    lines: dict[str, int] = {}
    for row in rows:
        lines.setdefault(row.file, row.line)
    names = list(lines)
    files = locate_images(path.parent, path, [names], [f"line {line}" for line in lines.values()], IMAGE_FOLDERS)
    splits, notes = _splits(path, rows, split_fractions, split_seed)
    images = [ImageRecord(name, file, splits[name]) for name, file in zip(names, files, strict=True)]
    captions = [CaptionRecord(str(number), row.file, row.caption) for number, row in enumerate(rows)]
    return NotedAnnotations(images, captions, path.parent, notes)


def _splits(
    path: Path, rows: Sequence[_Row], fractions: Fractions, seed: int
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the split of every image and, where the table has none, the note that says so."""
    if all(row.split is None for row in rows):
        splits = hash_split((row.file for row in rows), fractions, seed)
        return splits, (describe(splits, fractions, seed, path),)
    splits = {}
    for row in rows:
        if row.split is None:
            raise DataError(f"{path}: line {row.line} has no split while others have; give all rows a split or none")
        if splits.setdefault(row.file, row.split) != row.split:
            both = f"{splits[row.file]!r} and {row.split!r}"
            raise DataError(f"{path}: line {row.line}: image {row.file} is in the splits {both}; give it one")
    return splits, ()


def _rows(path: Path) -> Iterator[_Row]:
    """Yield the rows of a table of any type, by its suffix; `.txt`, as Flickr8k has it, is one of commas."""
    readers = {".csv": _delimited_rows, ".txt": _delimited_rows, ".tsv": _delimited_rows, ".jsonl": _json_rows}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: unknown type of table {path.suffix!r}; expected {', '.join(readers)}")
    return reader(path)


def _delimited_rows(path: Path) -> Iterator[_Row]:
    # strict: an unbalanced quote would otherwise swallow the rows up to the next quote without a word.
    lines = iter(text_lines(path))
    first = next(lines, "")
    separator = "\t" if path.suffix.lower() == ".tsv" else ";" if ";" in first and "," not in first else ","
    reader = csv.reader(itertools.chain([first], lines), delimiter=separator, strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        file, caption = _columns(path, header)
        split = header.index("split") if "split" in header else None
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                expected = f"{len(header)} of the header ({', '.join(header)})"
                raise DataError(
                    f"{path}: line {reader.line_num} has {len(fields)} fields, not the {expected}; quote it"
                )
            yield _Row(
                reader.line_num,
                image_key(fields[file]),
                fields[caption],
                None if split is None else fields[split].strip(),
            )
    except csv.Error as error:
        remedy = 'quote fields that hold a separator or a quote: "a ""quoted"" word"'
        raise DataError(f"{path}: line {reader.line_num}: {error}; {remedy}") from error


def _json_rows(path: Path) -> Iterator[_Row]:
    for number, record in json_lines(path):
        keys = list(record)
        file, caption = (keys[place] for place in _columns(path, keys, number))
        for key in (file, caption, "split"):
            if not isinstance(record.get(key, ""), str):
                raise DataError(
                    f"{path}: line {number}: {key!r} is of type {type(record[key]).__name__}, expected text"
                )
        yield _Row(number, image_key(record[file]), record[caption], record.get("split"))


def _columns(path: Path, found: list[str], line: int = 1) -> tuple[int, int]:
    """Return the positions of file and caption among the columns found."""
    places = [_place(path, found, names, line) for names in (_FILE_COLUMNS, _CAPTION_COLUMNS)]
    missing = [
        f"no column {' or '.join(names)}"
        for names, place in zip((_FILE_COLUMNS, _CAPTION_COLUMNS), places, strict=True)
        if place is None
    ]
    file, caption = places
    if file is None or caption is None:
        columns, remedy = ", ".join(found) or "none", "rename or add it"
        if len(missing) > 1:
            remedy = "rename or add them" if path.suffix == ".jsonl" else "let line 1 name the columns: file,caption"
        raise DataError(f"{path}: line {line}: {' and '.join(missing)}; found: {columns}; {remedy}")
    return file, caption


def _place(path: Path, found: list[str], names: Sequence[str], line: int) -> int | None:
    """Return the position of the first of `names` among the columns found, None where there is none."""
    for name in names:
        if found.count(name) > 1:
            raise DataError(f"{path}: line {line}: {found.count(name)} columns are called {name}; rename all but one")
        if name in found:
            return found.index(name)
    return None
