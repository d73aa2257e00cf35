"""Reader of people's own benchmarks: `benchmark.jsonl`, `benchmark.json` or `benchmark.csv` in a folder of images.

A row has `file` (path of the image), `caption`, `negative` and optionally `category`. In JSON `negative` may be a list;
in CSV a caption with several negatives has several rows. Further columns are not read.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from itrpipe.datasets.benchmarks.base import Benchmark, Pair, readable, sentence, with_images
from itrpipe.datasets.source_files import json_lines, load_json_list, one_file, required, text_lines
from itrpipe.errors import DataError

NAMES = ("benchmark.jsonl", "benchmark.json", "benchmark.csv")
IMAGE_FOLDERS = ("", "images")
MEASURES = ("pairs",)


def read(folder: Path) -> Benchmark:
    """Reads the table; the images lie beside it or in `images/`.

    Args:
        folder: holds exactly one such table.

    Raises:
        UsageError: it holds several.
        MissingInputError: it holds none, or an image is not there.
        DataError: the table is malformed, or a path leaves the folder.
    """
    path = one_file(folder, NAMES)
    pairs = [pair for where, record in _ROWS[path.suffix](path) for pair in _pairs(record, path, where)]
    return with_images(folder, path, pairs, IMAGE_FOLDERS)


def _pairs(record: Any, path: Path, where: str) -> Iterator[Pair]:
    file, caption = required(record, "file", str, path, where), sentence(record, "caption", path, where)
    category = readable(record["category"], "category", path, where) if record.get("category") else ""
    negative = required(record, "negative", (str, list), path, where)
    several = negative if isinstance(negative, list) else [negative]
    if not several:
        raise DataError(f"{path}: {where}: 'negative' is empty; give one sentence at least")
    for number, text in enumerate(several):
        name = f"{where.rpartition(' ')[2]}.{number}" if isinstance(negative, list) else where.rpartition(" ")[2]
        yield Pair(name, file, caption, readable(text, "negative", path, where), category)


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, record in json_lines(path):
        yield f"line {number}", record


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    for number, record in enumerate(load_json_list(path)):
        yield f"record {number}", record


def _csv(path: Path) -> Iterator[tuple[str, Any]]:
    # strict: an unbalanced quote would otherwise swallow the rows up to the next quote without a word.
    reader = csv.DictReader(text_lines(path), strict=True)
    try:
        for record in reader:
            if None in record or None in record.values():
                raise DataError(
                    f"{path}: line {reader.line_num} has not the {len(reader.fieldnames or ())} fields of the header; "
                    "quote those with commas"
                )
            yield f"line {reader.line_num}", record
    except csv.Error as error:
        remedy = 'quote fields that hold a comma or a quote: "a ""quoted"" word"'
        raise DataError(f"{path}: line {reader.line_num}: {error}; {remedy}") from error


_ROWS = {".jsonl": _json_lines, ".json": _json, ".csv": _csv}
