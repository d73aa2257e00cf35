"""The files of `itrpipe export-negatives`: mined negatives in the files of other trainers.

A row is a pair of a caption and its image with the negatives of one direction, and every format is made of such rows:

`sentence-transformers`: Parquet with the columns anchor, positive, negative_1 …. Images are columns of the type
`datasets.Image`, which name files, or hold the bytes of an image that has no file of its own. Trainers take every
column for an input, and only rows with all negatives, so other columns come on request and rows with fewer are left
out, as `sentence_transformers.util.mine_hard_negatives` does.

`negclip`: the table that NegCLIP trains with, which open_clip reads as well: `filepath` (of the image), `title` (the
caption), `neg_caption` (hard captions of the image) and `neg_image` (rows of this table, from 0, whose images are hard
for the caption). NegCLIP draws one of each, so both have an entry in every row. Both are Python literals.

`jsonl`: a query, its positive and its negatives in full, in the words of tevatron's text format. What is not there is
null.

`tevatron`: the same by ids, and the documents, as tevatron trains retrievers of images and texts: it reads no images
out of `positive_passages`.

`webdataset`: tar shards, a sample a caption: `KEY.jpg` (or `.png`, where all files are such), `KEY.txt` (the caption,
as open_clip reads it) and `KEY.json`, which has its negatives.

A photograph inside a tar file has no path that other programs can open. Formats that hold no images name copies of such
photographs, which are written below `COPIES`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from itrpipe.datasets.pictures import open_picture, picture_rgb, read_image
from itrpipe.errors import DataError
from itrpipe.exporting.negatives import Document, MinedPairs
from itrpipe.mining.lists import NO_ROW, PROBABILITY, slices
from itrpipe.storage.disk import reading

_MISSING = re.compile(r"|#N/A N/A|#N/A|#NA|-?1\.#IND|-?1\.#QNAN|-?NaN|-?nan|<NA>|N/A|NA|NULL|None|n/a|null")
"""Captions that pandas reads as missing values, however they are quoted."""
_ENDINGS = {".png": "png", ".webp": "webp"}
"""Ending of a file -> that of its member; else `jpg`."""
_QUALITY = 95
"""JPEG quality of mirrored photographs, which are encoded again."""
_ROWS_AT_ONCE = 8_192
_IMAGES_AT_ONCE = 256


# -- Rows of the formats


def _write_parquet(
    mined: MinedPairs,
    direction: str,
    path: Path,
    captions: np.ndarray,
) -> None:
    schema = _parquet_schema(mined, direction)
    at_once = _ROWS_AT_ONCE
    if any(image["image"] is None for image in mined.images):
        at_once = _IMAGES_AT_ONCE
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for part in slices(len(captions), at_once):
            rows = []
            for caption in captions[part].tolist():
                query, positive, negatives = mined.row(direction, caption)
                row = {"anchor_id": query["docid"], "positive_id": positive["docid"]}
                row |= _side_by_side("negative_ids", negatives)
                for name, document in zip(schema.names, (query, positive, *negatives), strict=False):
                    row[name] = document["text"]
                    if document["text"] is None:
                        row[name] = {"bytes": None, "path": document["image"]}
                    if document["text"] is None and document["image"] is None:
                        row[name]["bytes"] = _photograph(mined.root, document)
                rows.append(row)
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _parquet_schema(mined: MinedPairs, direction: str) -> pa.Schema:
    text = pa.string()
    image = pa.struct([("bytes", pa.binary()), ("path", text)])  # what `datasets.Image` stores
    anchor = text
    other = image
    if direction == "i2t":
        anchor = image
        other = text
    fields: dict[str, Any] = {"anchor": anchor, "positive": other}
    for number in range(mined.width(direction)):
        fields[f"negative_{number + 1}"] = other
    features = {}
    for name, kind in fields.items():
        if kind == image:
            features[name] = {"_type": "Image"}
    if mined.with_scores:
        fields["anchor_id"] = text
        fields["positive_id"] = text
        fields["negative_ids"] = pa.list_(text)
        fields["negative_scores"] = pa.list_(pa.float32())
        if PROBABILITY in mined.facts["t2i"]:
            fields[PROBABILITY] = pa.list_(pa.float32())
    info = json.dumps({"info": {"features": features}})
    return pa.schema(list(fields.items()), metadata={"huggingface": info})


def _side_by_side(ids: str, negatives: list[Document]) -> dict[str, Any]:
    """Return each fact of some negatives as a list: their ids under this name, and what is known of scores."""
    columns = {ids: [negative["docid"] for negative in negatives]}
    for column, key in (("negative_scores", "score"), (PROBABILITY, PROBABILITY)):
        if key in negatives[0]:
            columns[column] = [negative[key] for negative in negatives]
    return columns


def _rows_of_each_other(mined: MinedPairs, direction: str) -> np.ndarray:
    """Return the captions that pandas reads and that have a hard caption, and a hard image that has such one, too."""
    hard_images = mined.rows["t2i"][:, : mined.negatives]
    captions = mined.rows_with("i2t")
    is_read = [not _MISSING.fullmatch(mined.captions[caption]["text"]) for caption in captions]
    captions = captions[is_read]
    while True:
        has_row = np.isin(np.arange(len(mined.images)), mined.owners[captions])
        images = hard_images[captions]
        rest = captions[((images != NO_ROW) & has_row[images]).any(axis=1)]
        if len(rest) == len(captions):
            return captions
        captions = rest


def _write_tsv(
    mined: MinedPairs,
    direction: str,
    path: Path,
    captions: np.ndarray,
) -> None:
    """Write the table of NegCLIP. The captions of an image point to different captions of the same hard image."""
    owners = mined.owners[captions]
    image_rows = np.arange(len(mined.images) + 1)
    first_row = np.searchsorted(owners, image_rows).tolist()
    places = (captions - np.searchsorted(mined.owners, owners)).tolist()
    with _open_lines(path) as stream:
        stream.write("filepath\ttitle\tneg_caption\tneg_image\n")
        writer = csv.writer(
            stream,
            delimiter="\t",
            quoting=csv.QUOTE_ALL,
            lineterminator="\n",
        )
        for caption, place in zip(captions.tolist(), places, strict=True):
            image, title, negatives = mined.row("i2t", caption)
            numbers = []
            for other in mined.rows["t2i"][caption, : mined.negatives].tolist():
                count = first_row[other + 1] - first_row[other]
                if other != NO_ROW and count:
                    numbers.append(first_row[other] + place % count)
            texts = json.dumps([negative["text"] for negative in negatives], ensure_ascii=False)
            writer.writerow((image["image"], title["text"], texts, str(numbers)))


def _write_rows(
    row_as_json: Callable[[Document, Document, list[Document]], Document],
    mined: MinedPairs,
    direction: str,
    path: Path,
    captions: np.ndarray,
) -> None:
    with _open_lines(path) as stream:
        for caption in captions.tolist():
            query, positive, negatives = mined.row(direction, caption)
            stream.write(_json_line(row_as_json(query, positive, negatives)))


def _row_in_full(
    query: Document,
    positive: Document,
    negatives: list[Document],
) -> Document:
    return {
        "query_id": query["docid"],
        "query": query["text"],
        "query_image": query["image"],
        "positive_passages": [_passage(positive)],
        "negative_passages": list(map(_passage, negatives)),
    }


def _passage(document: Document) -> Document:
    passage = {
        "docid": document["docid"],
        "title": "",
        "text": document["text"] or "",
        "image": document["image"],
    }
    return passage | _facts(document)


def _row_by_ids(
    query: Document,
    positive: Document,
    negatives: list[Document],
) -> Document:
    row = {
        "query_id": query["docid"],
        "query_text": query["text"],
        "query_image": query["image"],
        "positive_document_ids": [positive["docid"]],
    }
    return row | _side_by_side("negative_document_ids", negatives)


def _write_documents(path: Path, documents: Sequence[Document]) -> None:
    with _open_lines(path) as stream:
        for document in documents:
            line = {name: document[name] for name in ("docid", "text", "image")}
            stream.write(_json_line(line))


def _open_lines(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="")


def _json_line(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def _facts(document: Document) -> Document:
    return {name: document[name] for name in ("source", "score", PROBABILITY) if name in document}


def _write_tar(
    mined: MinedPairs,
    direction: str,
    path: Path,
    captions: np.ndarray,
) -> None:
    """Write samples. Their members have nothing in them that depends on when and by whom they were written."""
    # One ending for all images: `datasets` refuses shards whose samples differ in it, and decoders look at the bytes.
    endings = set()
    for image in mined.images:
        suffix = PurePosixPath(image["file"]).suffix.lower()
        endings.add(_ENDINGS.get(suffix, "jpg"))
    ending = "jpg"
    if len(endings) == 1:
        (ending,) = endings
    last_id = ""
    photograph = b""
    with (
        path.open("wb") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for caption in captions.tolist():
            text, image, hard_images = mined.row("t2i", caption)
            _, _, hard_captions = mined.row("i2t", caption)
            if image["docid"] != last_id:  # captions of an image follow each other
                last_id = image["docid"]
                photograph = _photograph(mined.root, image)
            about: dict[str, Any] = {
                "caption_id": text["docid"],
                "image_id": image["docid"],
                "file": image["file"],
                "images": [],
                "captions": [],
            }
            for hard_image in hard_images:
                ids = {"image_id": hard_image["docid"], "file": hard_image["file"]}
                about["images"].append(ids | _facts(hard_image))
            for hard_caption in hard_captions:
                ids = {"caption_id": hard_caption["docid"], "text": hard_caption["text"]}
                about["captions"].append(ids | _facts(hard_caption))
            title = text["text"]
            if title.endswith("\n"):
                title += "\n"  # a reader takes one line end at the end for that of the file
            members = {
                ending: photograph,
                "json": _json_line(about).rstrip("\n").encode(),
                "txt": title.encode(),
            }
            for suffix, content in members.items():
                header = tarfile.TarInfo(f"{caption:09}.{suffix}")
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))


def _photograph(root: Path, image: Document) -> bytes:
    """Return the bytes of a file, as they were when the dataset was prepared, or of its mirror image."""
    path = root / image["file"]
    with reading(path, "the image that was prepared", "restore it, or run `itrpipe prepare` again"):
        try:
            content = read_image(path)
        except DataError as error:
            raise ValueError(str(error)) from error
        if hashlib.sha256(content).hexdigest() != image["sha256"]:
            raise ValueError("it has another content")
        if "mirrored" not in image:
            return content
        mirror = io.BytesIO()
        with open_picture(content) as picture:
            mirrored = picture_rgb(picture)[:, ::-1]
            Image.fromarray(mirrored).save(mirror, picture.format, quality=_QUALITY)
    return mirror.getvalue()


# -- The files that hold them


@dataclass(frozen=True)
class TableFiles:
    """Files of equal columns.

    Attributes:
        config: name for `datasets.load_dataset`.
        pattern: of its files.
        rows: what they are made of: captions, or documents.
        left_out: captions without a row, because they have too few negatives.
        write: writes some of the rows to a path.
    """

    config: str
    pattern: str
    rows: Sequence[Any] | np.ndarray
    left_out: int
    write: Callable[[Path, Any], None]

    def shards(self, size: int) -> Iterator[tuple[str, Any]]:
        """Yield files with their rows, named as on the Hugging Face hub.

        Args:
            size: rows of a file; 0: as many as suit the format.
        """
        if "*" not in self.pattern:
            yield self.pattern, self.rows
            return
        if not size:
            size = 50_000
            if self.pattern.endswith(".tar"):
                size = 1_000
        parts = slices(len(self.rows), size) or [slice(0)]
        for number, part in enumerate(parts):
            name = f"train-{number:05}-of-{len(parts):05}"
            yield self.pattern.replace("*", name), self.rows[part]


def write_files(
    folder: Path,
    tables: Iterable[TableFiles],
    mined: MinedPairs,
    shard_rows: int,
    advance: Callable[[int], object],
) -> int:
    """Write the files of tables, and the photographs that they name by copies, each once.

    Args:
        folder: exists.
        tables: of `FileFormat.tables`.
        mined: they were made of.
        shard_rows: rows of a file; 0: as many as suit the format.
        advance: called with the number of rows done.

    Returns:
        How many files the tables have.

    Raises:
        DataError: a photograph is not the one that was prepared.
    """
    files = 0
    for table in tables:
        for name, rows in table.shards(shard_rows):
            (folder / name).parent.mkdir(exist_ok=True)
            table.write(folder / name, rows)
            advance(len(rows))
            files += 1
    for image in mined.images:
        path = folder / str(image["image"])
        if image.get("copied") and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_photograph(mined.root, image))
    return files


@dataclass(frozen=True)
class FileFormat:
    """A format, and what is known of it before anything is opened.

    Attributes:
        write: writes rows of captions, see `_write_parquet`.
        pattern: of its files, those of a direction, or one for both.
        rows: captions that have a row in a direction.
        documents: they are written, too.
        holds_images: it can hold an image that has no file of its own.
        unread: options that change nothing in its files.
    """

    write: Callable[..., None]
    pattern: str = "{}/*.jsonl"
    rows: Callable[[MinedPairs, str], np.ndarray] = MinedPairs.rows_with
    documents: bool = False
    holds_images: bool = False
    unread: tuple[str, ...] = ("with_scores",)

    def tables(self, mined: MinedPairs, directions: Sequence[str]) -> list[TableFiles]:
        """Return the tables of mined lists, that to read by default first."""
        tables = []
        names = ["default"]
        if "{}" in self.pattern:
            names = directions
        for name in names:
            rows = self.rows(mined, name)
            table = TableFiles(
                config=name,
                pattern=self.pattern.format(name),
                rows=rows,
                left_out=len(mined.captions) - len(rows),
                write=partial(self.write, mined, name),
            )
            tables.append(table)
        if self.documents:
            images = {image["docid"]: image for image in mined.images}
            texts = [*mined.captions, *itertools.chain.from_iterable(mined.sentences)]
            if "t2i" in directions:
                tables.append(TableFiles("images", "images/*.jsonl", list(images.values()), 0, _write_documents))
            if "i2t" in directions:
                tables.append(TableFiles("captions", "captions/*.jsonl", texts, 0, _write_documents))
        return tables


FORMATS = {
    "sentence-transformers": FileFormat(
        _write_parquet,
        "{}/*.parquet",
        lambda mined, direction: mined.rows_with(direction, mined.width(direction)),
        holds_images=True,
        unread=(),
    ),
    "negclip": FileFormat(
        _write_tsv,
        "train.tsv",
        _rows_of_each_other,
        unread=("direction", "with_scores", "shard_rows"),
    ),
    "jsonl": FileFormat(partial(_write_rows, _row_in_full)),
    "tevatron": FileFormat(partial(_write_rows, _row_by_ids), documents=True),
    "webdataset": FileFormat(
        _write_tar,
        "*.tar",
        lambda mined, _: np.union1d(mined.rows_with("t2i"), mined.rows_with("i2t")),
        holds_images=True,
        unread=("direction", "with_scores", "image_root"),
    ),
}
