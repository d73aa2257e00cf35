"""The formats that other trainers read: tables, and how their rows become files.

`sentence-transformers`: Parquet with the columns anchor, positive, negative_1 …. A row is a pair of a caption and its
image. Images are columns of the type `datasets.Image` that name files. Trainers take every column for an input, and
only rows with all negatives, so other columns come on request and rows with fewer are left out, as
`sentence_transformers.util.mine_hard_negatives` does.

`negclip`: the table that NegCLIP trains with, which open_clip reads as well: `filepath` (of the image), `title` (the
caption), `neg_caption` (hard captions of the image) and `neg_image` (rows of this table, from 0, whose images are hard
for the caption). NegCLIP draws one of each, so both have an entry in every row. Both are Python literals.

`jsonl`: a query, its positive and its negatives in full, in the words of tevatron's text format. What is not there is
null.

`tevatron`: the same by ids, and the documents, as tevatron trains retrievers of images and texts: it reads no images
out of `positive_passages`.

`webdataset`: tar shards, a sample a caption: `KEY.jpg` (or `.png`, where all files are such), `KEY.txt` (the caption,
as open_clip reads it) and `KEY.json`, which has its negatives.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from itrpipe.datasets.paths import ImageRoot
from itrpipe.errors import DataError, MissingInputError
from itrpipe.exporting.negatives.mined import Entry, Mined, Negative
from itrpipe.mining.lists import NO_ROW
from itrpipe.storage.disk import unavailable

_ROW_GROUP = 8_192
_SIDES = {"t2i": ("caption", "image"), "i2t": ("image", "caption")}
_DOCUMENTS = {"t2i": "images", "i2t": "captions"}
_ENDINGS = {".jpg": "jpg", ".jpeg": "jpg", ".png": "png", ".webp": "webp"}
"""Ending of a file -> that of its member."""
_PROBABILITY = "false_negative_probability"


@dataclass(frozen=True)
class Table:
    """Files of equal columns.

    Attributes:
        config: name for `datasets.load_dataset`.
        pattern: of its files.
        rows: what they are made of: captions, or documents.
        left_out: captions without a row, because they have too few negatives.
        about: its columns.
        write: writes some of the rows to a path.
        size: rows of a file, unless the user says otherwise.
        builder: further settings of the front matter.
    """

    config: str
    pattern: str
    rows: Sequence[Any] | np.ndarray
    left_out: int
    about: str
    write: Callable[[Path, Any], None]
    size: int = 50_000
    builder: tuple[tuple[str, str], ...] = ()

    def shards(self, size: int) -> Iterator[tuple[str, Any]]:
        """Files with their rows, named as on the Hugging Face hub.

        Args:
            size: rows of a file; 0: as many as suit the format.
        """
        if "*" not in self.pattern:
            yield self.pattern, self.rows
            return
        size = size or self.size
        count = max(1, -(-len(self.rows) // size))
        for number in range(count):
            name = self.pattern.replace("*", f"train-{number:05}-of-{count:05}")
            yield name, self.rows[number * size : (number + 1) * size]


def _sentence_transformers(mined: Mined, directions: Sequence[str], with_scores: bool) -> list[Table]:
    found = []
    for name in directions:
        (anchor, other), last = _SIDES[name], mined.width(name)
        about = f"anchor ({anchor}), positive ({other}), negative_1 … negative_{last} ({other}s, hardest first)"
        if last > mined.negatives:
            about += f"; from negative_{mined.negatives + 1} on sentences by {mined.writer}"
        about += "; anchor_id, positive_id, negative_ids, negative_ranks, negative_scores" * with_scores
        about += f", {_PROBABILITY}" * (with_scores and mined.guarded)
        rows = mined.rows_with(name, last)
        left_out = len(mined.captions) - len(rows)
        write = partial(_write_parquet, mined, name, with_scores)
        found.append(Table(name, f"{name}/*.parquet", rows, left_out, about, write))
    return found


def _write_parquet(mined: Mined, direction: str, with_scores: bool, path: Path, captions: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # What `datasets.Image` stores.
    text, image = pa.string(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kinds = {"caption": text, "image": image}
    anchor, other = (kinds[side] for side in _SIDES[direction])
    names = [f"negative_{number + 1}" for number in range(mined.width(direction))]
    fields: dict[str, Any] = {"anchor": anchor, "positive": other, **dict.fromkeys(names, other)}
    images = [name for name, kind in fields.items() if kind == image]
    if with_scores:
        fields |= {"anchor_id": text, "positive_id": text, "negative_ids": pa.list_(text)}
        fields |= {"negative_ranks": pa.list_(pa.int32()), "negative_scores": pa.list_(pa.float32())}
        fields |= {_PROBABILITY: pa.list_(pa.float32())} if mined.guarded else {}
    features = {"info": {"features": {name: {"_type": "Image"} for name in images}}}
    schema = pa.schema(list(fields.items()), metadata={"huggingface": json.dumps(features)})

    def value(entry: Entry) -> Any:
        return {"bytes": None, "path": entry.image} if entry.text is None else entry.text

    def columns(caption: int) -> dict[str, Any]:
        row = mined.row(direction, caption)
        found = {"anchor": value(row.query), "positive": value(row.positive)}
        found |= {name: value(each.entry) for name, each in zip(names, row.negatives, strict=True)}
        if with_scores:
            found |= {"anchor_id": row.query.id, "positive_id": row.positive.id} | _side_by_side(row.negatives)
        return found

    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, len(captions), _ROW_GROUP):
            part = [columns(each) for each in captions[start : start + _ROW_GROUP].tolist()]
            writer.write_table(pa.Table.from_pylist(part, schema=schema))


def _side_by_side(negatives: list[Negative]) -> dict[str, list[Any]]:
    return {
        "negative_ids": [each.entry.id for each in negatives],
        "negative_scores": [each.score for each in negatives],
        "negative_ranks": [each.rank for each in negatives],
        _PROBABILITY: [each.probability for each in negatives],
    }


def _negclip(mined: Mined, directions: Sequence[str], with_scores: bool) -> list[Table]:
    about = "filepath, title, neg_caption (list of captions), neg_image (list of rows of the table)"
    rows = _rows_with_rows(mined)
    left_out, write = len(mined.captions) - len(rows), partial(_write_negclip, mined)
    return [Table("default", "train.tsv", rows, left_out, about, write, builder=(("sep", '"\\t"'),))]


def _rows_with_rows(mined: Mined) -> np.ndarray:
    """Captions that have a hard caption, and a hard image that has such a caption, too."""
    neighbours = mined.lists["t2i"].rows[:, : mined.negatives]
    kept = np.zeros(len(mined.captions), dtype=bool)
    kept[mined.rows_with("i2t", 1)] = True
    while True:
        images = np.zeros(len(mined.images), dtype=bool)
        images[mined.owners[kept]] = True
        rest = kept & ((neighbours != NO_ROW) & images[neighbours]).any(axis=1)
        if rest.sum() == kept.sum():
            return np.flatnonzero(rest)
        kept = rest


def _write_negclip(mined: Mined, path: Path, captions: np.ndarray) -> None:
    """The captions of an image point to different captions of the same hard image."""
    owners = mined.owners[captions]
    first = np.searchsorted(owners, np.arange(len(mined.images) + 1)).tolist()
    starts = np.searchsorted(mined.owners, np.arange(len(mined.images))).tolist()
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write("filepath\ttitle\tneg_caption\tneg_image\n")
        writer = csv.writer(stream, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n")
        for caption, owner in zip(captions.tolist(), owners.tolist(), strict=True):
            row, place = mined.row("i2t", caption), caption - starts[owner]
            hard = [each.entry.text for each in row.negatives]
            others = mined.lists["t2i"].rows[caption, : mined.negatives].tolist()
            counts = {image: first[image + 1] - first[image] for image in others if image != NO_ROW}
            numbers = [first[image] + place % count for image, count in counts.items() if count]
            writer.writerow((row.query.image, row.positive.text, json.dumps(hard, ensure_ascii=False), str(numbers)))


def _jsonl(mined: Mined, directions: Sequence[str], with_scores: bool) -> list[Table]:
    about = (
        "query_id, query, query_image, positive_passages and negative_passages: docid, title, text, image; of "
        f"negatives also source, score, rank{f', {_PROBABILITY}' * mined.guarded}"
    )

    def line(direction: str, caption: int) -> dict[str, Any]:
        row = mined.row(direction, caption)
        negatives = [_passage(each.entry) | _facts(each, mined.guarded) for each in row.negatives]
        query = {"query_id": row.query.id, "query": row.query.text, "query_image": row.query.image}
        return {**query, "positive_passages": [_passage(row.positive)], "negative_passages": negatives}

    return [_table_of_lines(mined, name, about, line) for name in directions]


def _passage(entry: Entry) -> dict[str, Any]:
    return {"docid": entry.id, "title": "", "text": entry.text or "", "image": entry.image}


def _facts(negative: Negative, guarded: bool) -> dict[str, Any]:
    facts = {"source": negative.source, "score": negative.score, "rank": negative.rank}
    return facts | ({_PROBABILITY: negative.probability} if guarded else {})


def _table_of_lines(mined: Mined, direction: str, about: str, line: Callable[[str, int], dict[str, Any]]) -> Table:
    rows = mined.rows_with(direction, 1)

    def write(path: Path, captions: np.ndarray) -> None:
        _write_lines(path, (line(direction, each) for each in captions.tolist()))

    return Table(direction, f"{direction}/*.jsonl", rows, len(mined.captions) - len(rows), about, write)


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(f"{_as_json(line)}\n" for line in lines)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _tevatron(mined: Mined, directions: Sequence[str], with_scores: bool) -> list[Table]:
    about = (
        "query_id, query_text, query_image, positive_document_ids, negative_document_ids; beside the last, "
        f"negative_scores, negative_ranks{f', {_PROBABILITY}' * mined.guarded}"
    )

    def line(direction: str, caption: int) -> dict[str, Any]:
        row, ids = mined.row(direction, caption), "negative_document_ids"
        query = {"query_id": row.query.id, "query_text": row.query.text, "query_image": row.query.image}
        facts = {ids if name == "negative_ids" else name: each for name, each in _side_by_side(row.negatives).items()}
        if not mined.guarded:
            del facts[_PROBABILITY]
        return {**query, "positive_document_ids": [row.positive.id], **facts}

    def write(path: Path, entries: Sequence[Entry]) -> None:
        _write_lines(path, ({"docid": each.id, "text": each.text, "image": each.image} for each in entries))

    texts = [*mined.captions, *(sentence for own in mined.sentences for sentence in own)]
    documents = {"t2i": mined.images, "i2t": texts}
    told = {name: f"{about}; documents: {_DOCUMENTS[name]}" for name in directions}
    return [_table_of_lines(mined, name, told[name], line) for name in directions] + [
        Table(_DOCUMENTS[name], f"{_DOCUMENTS[name]}/*.jsonl", documents[name], 0, "docid, text, image", write)
        for name in directions
    ]


def _webdataset(mined: Mined, directions: Sequence[str], with_scores: bool) -> list[Table]:
    # One for all images: `datasets` refuses shards whose samples differ in it, and decoders look at the bytes.
    found = {_ENDINGS.get(PurePosixPath(file).suffix.lower()) for file in mined.files}
    ending = (found.pop() if len(found) == 1 else None) or "jpg"
    about = f"KEY.{ending} (the image), KEY.txt (the caption), KEY.json (ids, file, images and captions: negatives)"
    rows = np.union1d(mined.rows_with("t2i", 1), mined.rows_with("i2t", 1))
    left_out, write = len(mined.captions) - len(rows), partial(_write_tar, mined, ending)
    return [Table("default", "*.tar", rows, left_out, about, write, size=1_000)]


def _write_tar(mined: Mined, ending: str, path: Path, captions: np.ndarray) -> None:
    """Members have nothing in them that depends on when and by whom they were written."""
    root = ImageRoot(mined.root, mined.root)
    photograph = lru_cache(maxsize=1)(partial(_photograph, mined, root))  # captions of an image follow each other
    with path.open("wb") as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for caption in captions.tolist():
            images, texts = mined.row("t2i", caption), mined.row("i2t", caption)
            owner = int(mined.owners[caption])
            told: dict[str, Any] = {"caption_id": images.query.id, "image_id": texts.query.id}
            told["file"] = mined.files[owner]
            told["images"] = [
                {"image_id": each.entry.id, "file": each.entry.image} | _facts(each, mined.guarded)
                for each in images.negatives
            ]
            told["captions"] = [
                {"caption_id": each.entry.id, "text": each.entry.text} | _facts(each, mined.guarded)
                for each in texts.negatives
            ]
            members = {ending: photograph(owner), "json": _as_json(told).encode()}
            members["txt"] = (images.query.text or "").encode()
            for suffix, content in members.items():
                header = tarfile.TarInfo(f"{caption:09}.{suffix}")
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))


def _photograph(mined: Mined, root: ImageRoot, image: int) -> bytes:
    """The bytes of a file, as they were when the dataset was prepared."""
    path = root.resolve(mined.files[image], f"image {mined.images[image].id}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unavailable(error, path) or MissingInputError(
            f"{path} cannot be read ({error.strerror}); restore it below {mined.root}"
        ) from None
    if hashlib.sha256(content).hexdigest() != mined.digests[image]:
        raise DataError(f"{path} is not the image that was prepared; restore it, or run `itrpipe prepare` again")
    return content


TABLES: dict[str, Callable[[Mined, Sequence[str], bool], list[Table]]] = {
    "sentence-transformers": _sentence_transformers,
    "negclip": _negclip,
    "jsonl": _jsonl,
    "tevatron": _tevatron,
    "webdataset": _webdataset,
}
"""Format -> its tables, of mined lists, directions, and whether columns of ids and scores are wanted; that to read by
default first."""
