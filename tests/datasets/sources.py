"""Tiny sources of every format of datasets: two images of train, one each of val and test; and how one is refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from itrpipe.errors import ItrpipeError


class Row(NamedTuple):
    """One caption of a source."""

    file: str
    caption: str
    split: str = "train"


ROWS = (
    Row("b.bmp", "A man's dog; it runs, twice."),
    Row("sub/d.bmp", 'Ein "Café" .', "test"),
    Row("a.bmp", "two dogs run .", "train"),
    Row("b.bmp", "A dog runs", "train"),
    Row("c.bmp", "犬 and a dog", "val"),
)
Json = dict[str, Any]


def karpathy(rows: Sequence[Row]) -> Json:
    """The content of `dataset.json`."""
    images: dict[str, Json] = {}
    for number, row in enumerate(rows):
        image = images.setdefault(row.file, {"filename": row.file, "split": row.split, "sentences": []})
        image["sentences"].append({"raw": row.caption, "sentid": number, "tokens": []})
    return {"images": [*images.values()], "dataset": "tiny"}


def coco(rows: Sequence[Row]) -> Json:
    """The content of `captions_val2014.json`: all is in the split val."""
    ids = {file: 10 + number for number, file in enumerate(dict.fromkeys(row.file for row in rows))}
    annotations = [{"id": number, "image_id": ids[row.file], "caption": row.caption} for number, row in enumerate(rows)]
    return {"images": [{"id": image, "file_name": file} for file, image in ids.items()], "annotations": annotations}


def delimited(rows: Sequence[Row], delimiter: str = ",") -> str:
    """A table with quoted fields."""
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter).writerows([("file", "caption", "split"), *rows])
    return stream.getvalue()


def tokens(rows: Sequence[Row]) -> str:
    """The content of `Flickr8k.token.txt`."""
    return "".join(f"{row.file}#{number}\t{row.caption}\n" for number, row in enumerate(rows))


def results(rows: Sequence[Row]) -> str:
    """The content of Flickr30k's `results.csv`."""
    body = "".join(f"{row.file}| {number}| {row.caption}\n" for number, row in enumerate(rows))
    return f"image_name| comment_number| comment\n{body}"


def jsonl(rows: Sequence[Row]) -> str:
    """A table of objects, one a line."""
    return "".join(json.dumps(row._asdict()) + "\n" for row in rows)


def refusal(kind: type[ItrpipeError], value: str, read: Callable[..., object], *arguments: Any) -> str:
    """The one line by which something is refused, which holds the value."""
    with pytest.raises(kind) as caught:
        read(*arguments)
    line = str(caught.value)
    assert type(caught.value) is kind
    assert value in line
    assert "\n" not in line
    return line


class Source(NamedTuple):
    """How a source of a format is written.

    Attributes:
        format: that reads it.
        file: name of the data file.
        content: of rows.
        has_splits: whether it names the split of every image.
    """

    format: str
    file: str
    content: Callable[[Sequence[Row]], str | Json]
    has_splits: bool = True

    def text(self, rows: Sequence[Row] = ROWS) -> str:
        """The data file of rows."""
        content = self.content(rows)
        return content if isinstance(content, str) else json.dumps(content)

    def write(self, folder: Path, content: Sequence[Row] | str = ROWS, **more: str) -> Path:
        """Writes the data file, the images of the usual rows and further files; returns the folder."""
        for number, row in enumerate(ROWS):
            path = folder / row.file
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                Image.new("RGB", (4 + number, 3), (number, 0, 0)).save(path)
        for name, each in {self.file: content if isinstance(content, str) else self.text(content), **more}.items():
            (folder / name).write_text(each, encoding="utf-8", newline="")
        return folder


SOURCES = {
    "karpathy": Source("karpathy", "dataset.json", karpathy),
    "coco": Source("coco_captions", "captions_val2014.json", coco, has_splits=False),
    "tokens": Source("flickr_tokens", "Flickr8k.token.txt", tokens, has_splits=False),
    "results": Source("flickr_tokens", "results.csv", results, has_splits=False),
    "csv": Source("caption_table", "captions.csv", delimited),
    "tsv": Source("caption_table", "captions.tsv", lambda rows: delimited(rows, "\t")),
    "jsonl": Source("caption_table", "captions.jsonl", jsonl),
}
