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

A photograph inside a tar file has no path that other programs can open. Formats that hold no images name copies of such
photographs, which are written below `COPIES`.

`webdataset`: tar shards, a sample a caption: `KEY.jpg` (or `.png`, where all files are such), `KEY.txt` (the caption,
as open_clip reads it) and `KEY.json`, which has its negatives.

Twins are rows with one negative: an image and what is true of it alone, its twin and what is true of that.

Shapes: N images, T captions, A anchors of a direction, n mined negatives of a row, m written ones.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.pictures import open_picture, picture_rgb, read_image
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, UsageError
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.mining.lists import DIRECTIONS, NO_ROW, PROBABILITY, CandidateLists, MinedList, matching, read_list
from itrpipe.storage.disk import file_digest, reading
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis.sentences import SentenceFile

LISTS = {"t2i": "images_for_texts", "i2t": "texts_for_images"}
"""Direction of retrieval -> mined list of its queries."""
Document = dict[str, Any]
"""`docid`, and `text` or `image`. An image is the path that other programs open, or None where a table holds its bytes.
It also has `file` and `sha256`, `copied` where the path names a copy below `COPIES`, and `mirrored` where it is shown
so. A negative also has `source` (`mined`, or what wrote the sentence), and None of sentences: `score`, and with a guard
its probability to be a false one."""
Row = tuple[Document, Document, list[Document]]
"""Query and positive, a caption and its image or the other way round, and the negatives, the hardest first."""
COPIES = "photographs"
"""Folder of an export with copies of photographs."""
MOST = 8
"""Negatives of a row where no number is given, if the lists hold as many."""
_MISSING = re.compile(r"|#N/A N/A|#N/A|#NA|-?1\.#IND|-?1\.#QNAN|-?NaN|-?nan|<NA>|N/A|NA|NULL|None|n/a|null")
"""Captions that pandas reads as missing values, however they are quoted."""
_COMPARED = 100
"""Photographs that are compared with the prepared ones to see whether `--image-root` is right."""
_ENDINGS = {".png": "png", ".webp": "webp"}
"""Ending of a file -> that of its member; else `jpg`."""
_QUALITY = 95
_AT_ONCE, _IMAGES_AT_ONCE = 8_192, 256


@dataclass(frozen=True)
class Mined:
    """The training images and captions that have lists, and the lists.

    Attributes:
        root: the folder of the images.
        images: N, by the paths that other programs are to open.
        captions: T, those of an image together.
        owners: int64 [T], image of each caption, never falling.
        lists: direction -> `row` [A, K] of the other side, `NO_ROW` behind the last, and [A, K] facts of negatives as
            Python has them. Candidates that say what the positive says are left out.
        repeats: direction -> how many were left out for those behind them.
        negatives: n, mined ones of a row.
        sentences: of every caption, m at most.
        most_sentences: m.
    """

    root: Path
    images: list[Document]
    captions: list[Document]
    owners: np.ndarray
    lists: dict[str, dict[str, np.ndarray]]
    repeats: dict[str, int]
    negatives: int
    sentences: list[Sequence[Document]]
    most_sentences: int

    @property
    def guarded(self) -> bool:
        """Tell whether candidates have a probability to be a false negative."""
        return all(PROBABILITY in each for each in self.lists.values())

    def row(self, direction: str, caption: int) -> Row:
        """A caption with the n hardest images, or its image with the n hardest captions and m sentences.

        Where the caption has fewer sentences, the next mined captions take their places.
        """
        owner = int(self.owners[caption])
        text, image = self.captions[caption], self.images[owner]
        anchor, others, own = owner, self.captions, self.sentences[caption]
        if direction == "t2i":
            anchor, others, own = caption, self.images, ()
        rows, *facts = (each[anchor].tolist() for each in self.lists[direction].values())
        names = list(self.lists[direction])[1:]
        mined = []
        for row, *told in zip(rows, *facts, strict=True):
            if row != NO_ROW:
                mined.append(others[row] | dict(zip(names, told, strict=True)))
        found = [*mined[: self.negatives], *own, *mined[self.negatives : self.width(direction) - len(own)]]
        return (text, image, found) if direction == "t2i" else (image, text, found)

    def most(self, directions: Sequence[str]) -> int:
        """Return how many mined negatives the longest list has, in the direction where that is less."""
        return min(int((self.lists[name]["row"] != NO_ROW).sum(axis=1).max(initial=0)) for name in directions)

    def width(self, direction: str) -> int:
        """Negatives that a row has at most."""
        return self.negatives + (self.most_sentences if direction == "i2t" else 0)

    def rows_with(self, direction: str, least: int = 1) -> np.ndarray:
        """Captions whose row of a direction has so many negatives at least; int64."""
        found = (self.lists[direction]["row"][:, : self.width(direction)] != NO_ROW).sum(axis=1)
        if direction == "i2t":
            found = found[self.owners] + np.array([len(each) for each in self.sentences])
        return np.flatnonzero(found >= least)


def open_mined(
    prepared: Path,
    mined: Path,
    images: Path,
    negatives: int,
    *,
    image_root: str = "",
    holds_images: bool = False,
    sentences: Path | None = None,
    writer: str = "",
    most_sentences: int = 0,
) -> Mined:
    """Reads lists and what they name; of sentences no more than is exported.

    Args:
        prepared: artifact of `prepare`.
        mined: artifact of `mine-negatives`.
        images: folder of the images.
        negatives: n.
        image_root: stands before every path of an image; empty: paths are relative to that folder.
        holds_images: the format can hold an image that has no file of its own.
        sentences: artifact of `synthesize`, or None.
        writer: what wrote them.
        most_sentences: m.

    Raises:
        DataError: a file is damaged.
    """
    split = PreparedDataset.open(prepared, tokens=False).split("train")
    read = {name: read_list(mined, file) for name, file in LISTS.items()}
    caption_ids, image_ids = (pa.array(each.anchor_ids.tolist(), pa.string()) for each in read.values())
    captions = split.captions.take(rows_of(caption_ids, split.captions["caption_id"]))
    photographs = split.images.take(rows_of(image_ids, split.images["image_id"]))
    owners = rows_of(captions["image_id"], image_ids)
    texts = captions["text"].to_pylist()
    same, width = DuplicateCaptions(texts, owners), negatives + most_sentences
    lists, repeats = {}, {}
    for name, each in read.items():
        lists[name], repeats[name] = _without_repeats(LISTS[name], each, same, width)

    written: dict[str, list[Document]] = defaultdict(list)
    if sentences is not None:
        # The first sentences of every caption; their ids are that of the caption with `/phrases-1`, `/phrases-2` …
        facts = dict.fromkeys(name for name in lists["i2t"] if name != "row") | {"source": writer}
        for table in SentenceFile(sentences).row_groups(["caption_id", "text", "kept"]):
            kept = table.filter(table["kept"])
            for caption, text in zip(kept["caption_id"].to_pylist(), kept["text"].to_pylist(), strict=True):
                own = written[caption]
                if len(own) < most_sentences:
                    own.append(_text(f"{caption}/{writer}-{len(own) + 1}", text) | facts)
    shown = photographs.select(["image_id", "file", "sha256"]).to_pylist()
    names = caption_ids.to_pylist()
    return Mined(
        images,
        [_image(each, images, image_root, holds_images=holds_images) for each in shown],
        [_text(name, text) for name, text in zip(names, texts, strict=True)],
        owners,
        lists,
        repeats,
        negatives,
        [written[name] for name in names],
        most_sentences,
    )


def open_twins(
    prepared: Path, synthesized: Path, images: Path, *, image_root: str = "", holds_images: bool = True
) -> Mined:
    """Twins of training captions as lists of one negative each; images are listed once for each of their twins.

    Args:
        prepared: artifact of `prepare`.
        synthesized: artifact of `synthesize`.
        images: folder of the images.
        image_root: stands before every path of an image.
        holds_images: the format can hold an image that has no file of its own, as mirrored ones have none.

    Raises:
        DataError: a file is damaged.
    """
    known = PreparedDataset.open(prepared, tokens=False).split("train").images.to_pylist()
    documents = {each["image_id"]: _image(each, images, image_root, holds_images=holds_images) for each in known}
    found: dict[tuple[str, ...], None] = {}
    for table in SentenceFile(synthesized).row_groups(["image_id", "twin_image_id", "detail", "twin_detail", "kept"]):
        rows = table.filter(table["kept"]).drop(["kept"]).drop_null().to_pydict()
        found |= dict.fromkeys(zip(*rows.values(), strict=True))
    shown, captions = [], []
    for number, (own, twin, detail, twin_detail) in enumerate(found):
        if own != twin or holds_images:
            mirror = {"docid": f"{own}/mirrored", "image": None, "mirrored": True} if own == twin else {}
            shown += [documents[own], documents[twin] | mirror]
            captions += [_text(f"twin-{number}", detail), _text(f"twin-{number}/twin", twin_detail)]
    owners = np.arange(len(captions))
    facts = {"row": owners[:, None] ^ 1, "source": np.full((len(captions), 1), "twins", object)}
    lists = dict.fromkeys(LISTS, facts)
    return Mined(images, shown, captions, owners, lists, dict.fromkeys(LISTS, 0), 1, [()] * len(captions), 0)


def _image(row: Document, root: Path, image_root: str, *, holds_images: bool) -> Document:
    """Return an image of the dataset with the path by which other programs open it, if there is one."""
    file = row["file"]
    document = {"docid": row["image_id"], "text": None, "image": file, **row}
    if image_root:
        document["image"] = f"{image_root.rstrip('/')}/{file}"
    elif in_archive(root / file):
        document["image"] = None if holds_images else f"{COPIES}/{file}"
        document["copied"] = not holds_images
    return document


def refuse_wrong_root(mined: Mined, image_root: str) -> None:
    """Refuse an image root below which a photograph is missing, or one of the first is another than was prepared.

    Raises:
        UsageError: there is such a one.
    """
    remedy = "name the folder below which the photographs lie as they did when the dataset was prepared"
    images = [each for each in mined.images if each["image"] is not None]
    if missing := [each["image"] for each in images if not os.path.isfile(each["image"])]:
        raise UsageError(
            f"--image-root {image_root}: {len(missing):,} of {len(images):,} photographs are not there, such as "
            f"{missing[0]}; {remedy}"
        )
    for each in images[:: math.ceil(len(images) / _COMPARED)]:
        if file_digest(Path(each["image"])) != each["sha256"]:
            raise UsageError(f"--image-root {image_root}: {each['image']} is another than was prepared; {remedy}")


def _text(docid: str, text: str) -> Document:
    return {"docid": docid, "text": text, "image": None}


def _without_repeats(
    direction: str, lists: MinedList, same: DuplicateCaptions, width: int
) -> tuple[dict[str, np.ndarray], int]:
    """The first candidates of every list, without those that a caption of the positive or an earlier one describes."""
    shape = len(lists.candidates), min(width, lists.candidates.shape[1])
    rows, places, repeats = np.empty(shape, np.int64), np.empty(shape, np.int64), 0
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, min(start + _AT_ONCE, len(rows)))
        found = CandidateLists(lists.candidates[part], lists.scores[part])
        repeated = matching(same.has, direction, part, found)
        if direction == DIRECTIONS[0]:
            repeated |= same.again(found.candidates) & (found.candidates != NO_ROW)
        repeats += int(repeated[:, :width].sum())
        kept = np.where(repeated, NO_ROW, found.candidates)
        places[part] = np.argsort(kept == NO_ROW, axis=1, kind="stable")[:, :width]
        rows[part] = np.take_along_axis(kept, places[part], axis=1)
    taken: dict[str, np.ndarray] = {"row": rows, "source": np.full(shape, "mined", object)}
    for name, values in {"score": lists.scores, PROBABILITY: lists.false_negative_probability}.items():
        if values is not None:
            own = np.take_along_axis(values, places, axis=1)
            taken[name] = np.where(np.isfinite(own), own, np.array(None))
    return taken, repeats


# Rows of the formats, and the files that hold them


def _parquet(mined: Mined, direction: str, with_scores: bool, path: Path, captions: np.ndarray) -> None:
    # What `datasets.Image` stores.
    text, image = pa.string(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    anchor, other = (text, image) if direction == "t2i" else (image, text)
    names = [f"negative_{number + 1}" for number in range(mined.width(direction))]
    fields: dict[str, Any] = {"anchor": anchor, "positive": other, **dict.fromkeys(names, other)}
    features = {name: {"_type": "Image"} for name, kind in fields.items() if kind == image}
    if with_scores:
        fields |= {"anchor_id": text, "positive_id": text, "negative_ids": pa.list_(text)}
        fields |= {"negative_scores": pa.list_(pa.float32())}
        fields |= {PROBABILITY: pa.list_(pa.float32())} if mined.guarded else {}
    schema = pa.schema(list(fields.items()), metadata={"huggingface": json.dumps({"info": {"features": features}})})

    size = _IMAGES_AT_ONCE if any(each["image"] is None for each in mined.images) else _AT_ONCE
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, len(captions), size):
            rows = []
            for caption in captions[start : start + size].tolist():
                query, positive, negatives = mined.row(direction, caption)
                values: list[Any] = []
                for each in (query, positive, *negatives):
                    if each["text"] is not None:
                        values.append(each["text"])
                        continue
                    content = _photograph(mined.root, each) if each["image"] is None else None
                    values.append({"bytes": content, "path": each["image"]})
                told = {"anchor_id": query["docid"], "positive_id": positive["docid"]}
                told |= _side_by_side("negative_ids", negatives)
                rows.append(dict(zip(fields, values, strict=False)) | told)
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _side_by_side(ids: str, negatives: list[Document]) -> dict[str, list[Any]]:
    names = {ids: "docid", "negative_scores": "score", PROBABILITY: PROBABILITY}
    return {name: [each[key] for each in negatives] for name, key in names.items() if key in negatives[0]}


def _with_each_other(mined: Mined, direction: str) -> np.ndarray:
    """Return the captions that pandas reads and that have a hard caption, and a hard image that has such one, too."""
    neighbours = mined.lists["t2i"]["row"][:, : mined.negatives]
    kept = mined.rows_with("i2t")
    kept = kept[[not _MISSING.fullmatch(mined.captions[caption]["text"]) for caption in kept]]
    while True:
        images = np.isin(np.arange(len(mined.images)), mined.owners[kept])
        rest = kept[((neighbours[kept] != NO_ROW) & images[neighbours[kept]]).any(axis=1)]
        if len(rest) == len(kept):
            return kept
        kept = rest


def _tsv(mined: Mined, direction: str, with_scores: bool, path: Path, captions: np.ndarray) -> None:
    """The captions of an image point to different captions of the same hard image."""
    first = np.searchsorted(mined.owners[captions], np.arange(len(mined.images) + 1)).tolist()
    places = (captions - np.searchsorted(mined.owners, mined.owners[captions])).tolist()
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write("filepath\ttitle\tneg_caption\tneg_image\n")
        writer = csv.writer(stream, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n")
        for caption, place in zip(captions.tolist(), places, strict=True):
            image, title, negatives = mined.row("i2t", caption)
            others = mined.lists["t2i"]["row"][caption, : mined.negatives].tolist()
            counts = {other: first[other + 1] - first[other] for other in others if other != NO_ROW}
            numbers = [first[other] + place % count for other, count in counts.items() if count]
            hard = json.dumps([each["text"] for each in negatives], ensure_ascii=False)
            writer.writerow((image["image"], title["text"], hard, str(numbers)))


def _jsonl(mined: Mined, direction: str, with_scores: bool, path: Path, captions: np.ndarray) -> None:
    def passage(each: Document) -> Document:
        return {"docid": each["docid"], "title": "", "text": each["text"] or "", "image": each["image"]} | _facts(each)

    def lines() -> Iterator[Document]:
        for caption in captions.tolist():
            query, positive, negatives = mined.row(direction, caption)
            line = {"query_id": query["docid"], "query": query["text"], "query_image": query["image"]}
            passages = {"positive_passages": [passage(positive)], "negative_passages": [*map(passage, negatives)]}
            yield line | passages

    _write_lines(path, lines())


def _tevatron(mined: Mined, direction: str, with_scores: bool, path: Path, captions: np.ndarray) -> None:
    def lines() -> Iterator[Document]:
        for caption in captions.tolist():
            query, positive, negatives = mined.row(direction, caption)
            line = {"query_id": query["docid"], "query_text": query["text"], "query_image": query["image"]}
            line["positive_document_ids"] = [positive["docid"]]
            yield line | _side_by_side("negative_document_ids", negatives)

    _write_lines(path, lines())


def _documents(path: Path, documents: Sequence[Document]) -> None:
    _write_lines(path, ({name: each[name] for name in ("docid", "text", "image")} for each in documents))


def _write_lines(path: Path, lines: Iterable[Document]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(f"{_as_json(line)}\n" for line in lines)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _facts(document: Document) -> Document:
    return {name: document[name] for name in ("source", "score", PROBABILITY) if name in document}


def _tar(mined: Mined, direction: str, with_scores: bool, path: Path, captions: np.ndarray) -> None:
    """Members have nothing in them that depends on when and by whom they were written."""
    # One ending for all images: `datasets` refuses shards whose samples differ in it, and decoders look at the bytes.
    endings = {_ENDINGS.get(PurePosixPath(each["file"]).suffix.lower(), "jpg") for each in mined.images}
    ending = endings.pop() if len(endings) == 1 else "jpg"
    photograph: tuple[str, bytes] = "", b""
    with path.open("wb") as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for caption in captions.tolist():
            (text, image, images), (_, _, texts) = mined.row("t2i", caption), mined.row("i2t", caption)
            if photograph[0] != image["docid"]:  # captions of an image follow each other
                photograph = image["docid"], _photograph(mined.root, image)
            told = {
                "caption_id": text["docid"],
                "image_id": image["docid"],
                "file": image["file"],
                "images": [{"image_id": each["docid"], "file": each["file"]} | _facts(each) for each in images],
                "captions": [{"caption_id": each["docid"], "text": each["text"]} | _facts(each) for each in texts],
            }
            # A reader takes one line end at the end for that of the file.
            caption_file = f"{text['text']}\n" if text["text"].endswith("\n") else text["text"]
            members = {ending: photograph[1], "json": _as_json(told).encode(), "txt": caption_file.encode()}
            for suffix, content in members.items():
                header = tarfile.TarInfo(f"{caption:09}.{suffix}")
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))


def _photograph(root: Path, image: Document) -> bytes:
    """The bytes of a file, as they were when the dataset was prepared, or of its mirror image."""
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
            Image.fromarray(picture_rgb(picture)[:, ::-1]).save(mirror, picture.format, quality=_QUALITY)
    return mirror.getvalue()


@dataclass(frozen=True)
class Table:
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
        """Files with their rows, named as on the Hugging Face hub.

        Args:
            size: rows of a file; 0: as many as suit the format.
        """
        size = size or (1_000 if self.pattern.endswith(".tar") else 50_000)
        count = max(1, -(-len(self.rows) // size)) if "*" in self.pattern else 1
        for number in range(count):
            rows = slice(None) if count == 1 else slice(number * size, (number + 1) * size)
            yield self.pattern.replace("*", f"train-{number:05}-of-{count:05}"), self.rows[rows]


def write_files(
    folder: Path, tables: Iterable[Table], mined: Mined, shard_rows: int, advance: Callable[[int], object]
) -> int:
    """Write the files of tables, and the photographs that they name by copies, each once.

    Args:
        folder: exists.
        tables: of `Format.tables`.
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
class Format:
    """A format, and what is known of it before anything is opened.

    Attributes:
        write: writes rows of captions, see `_parquet`.
        pattern: of its files, those of a direction, or one for both.
        rows: captions that have a row in a direction.
        documents: they are written, too.
        holds_images: it can hold an image that has no file of its own.
        unread: options that change nothing in its files.
    """

    write: Callable[..., None]
    pattern: str = "{}/*.jsonl"
    rows: Callable[[Mined, str], np.ndarray] = Mined.rows_with
    documents: bool = False
    holds_images: bool = False
    unread: tuple[str, ...] = ("with_scores",)

    def tables(self, mined: Mined, directions: Sequence[str], with_scores: bool) -> Iterator[Table]:
        """Yield the tables of mined lists, that to read by default first."""
        for name in directions if "{}" in self.pattern else ["default"]:
            rows, write = self.rows(mined, name), partial(self.write, mined, name, with_scores)
            yield Table(name, self.pattern.format(name), rows, len(mined.captions) - len(rows), write)
        texts = [*mined.captions, *(sentence for own in mined.sentences for sentence in own)]
        images = [*{each["docid"]: each for each in mined.images}.values()]
        documents = {"t2i": ("images", images), "i2t": ("captions", texts)}
        for name, rows in (documents[each] for each in directions if self.documents):
            yield Table(name, f"{name}/*.jsonl", rows, 0, _documents)


FORMATS = {
    "sentence-transformers": Format(
        _parquet,
        "{}/*.parquet",
        lambda mined, name: mined.rows_with(name, mined.width(name)),
        holds_images=True,
        unread=(),
    ),
    "negclip": Format(_tsv, "train.tsv", _with_each_other, unread=("direction", "with_scores", "shard_rows")),
    "jsonl": Format(_jsonl),
    "tevatron": Format(_tevatron, documents=True),
    "webdataset": Format(
        _tar,
        "*.tar",
        lambda mined, _: np.union1d(mined.rows_with("t2i"), mined.rows_with("i2t")),
        holds_images=True,
        unread=("direction", "with_scores", "image_root"),
    ),
}
