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
import itertools
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
from typing import Any, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.pictures import open_picture, picture_rgb, read_image
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, UsageError
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.mining.lists import (
    DIRECTIONS,
    NO_ROW,
    PROBABILITY,
    CandidateLists,
    MinedList,
    matching,
    read_list,
    slices,
)
from itrpipe.storage.disk import file_digest, reading
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis.sentences import SentenceFile

LISTS = {"t2i": "images_for_texts", "i2t": "texts_for_images"}
"""Direction of retrieval -> mined list of its queries."""
Document = dict[str, Any]
"""`docid`, and `text` or `image`. An image is the path that other programs open, or None where a table holds its bytes.
It also has `file` and `sha256`, `copied` where the path names a copy below `COPIES`, and `mirrored` where it is shown
so. A negative also has `source` (`mined`, or what wrote the sentence), and None of sentences: `score`, and of judged
lists its probability to be right after all."""
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


class LeftOut(NamedTuple):
    """Candidates of a direction that are left out for those behind them.

    Attributes:
        repeats: that say what the positive says.
        right: others that the judge takes for right answers.
        seen: among which they were.
    """

    repeats: int
    right: int
    seen: int


@dataclass(frozen=True)
class MinedPairs:
    """The training images and captions that have lists, and the lists.

    Attributes:
        root: the folder of the images.
        images: N, by the paths that other programs are to open.
        captions: T, those of an image together.
        owners: int64 [T], image of each caption, never falling.
        rows: direction -> [A, K] rows of the other side, `NO_ROW` behind the last, without what is left out.
        facts: direction -> `score`, and of judged lists the probability, of each [A, K] as Python has them; none of
            twins.
        source: of what the lists hold, `mined` or `twins`.
        left_out: direction -> how many candidates were.
        negatives: n, mined ones of a row.
        sentences: of every caption, m at most.
        most_sentences: m.
        with_scores: formats that have a choice also tell ids and scores.
    """

    root: Path
    images: list[Document]
    captions: list[Document]
    owners: np.ndarray
    rows: dict[str, np.ndarray]
    facts: dict[str, dict[str, np.ndarray]]
    source: str
    left_out: dict[str, LeftOut]
    negatives: int
    sentences: list[Sequence[Document]]
    most_sentences: int
    with_scores: bool = False

    @property
    def judged(self) -> bool:
        """Tell whether candidates have a probability to be right after all."""
        return PROBABILITY in self.facts["t2i"]

    def row(self, direction: str, caption: int) -> Row:
        """A caption with the n hardest images, or its image with the n hardest captions and m sentences.

        Where the caption has fewer sentences, the next mined captions take their places.
        """
        owner = int(self.owners[caption])
        query, positive = self.captions[caption], self.images[owner]
        anchor, others, sentences = caption, self.images, ()
        if direction == "i2t":
            query, positive = positive, query
            anchor, others, sentences = owner, self.captions, self.sentences[caption]
        mined = []
        for place, row in enumerate(self.rows[direction][anchor].tolist()):
            if row != NO_ROW:
                negative = others[row] | {"source": self.source}
                for name, values in self.facts[direction].items():
                    negative[name] = values[anchor, place]
                mined.append(negative)
        more = mined[self.negatives : self.width(direction) - len(sentences)]
        return query, positive, [*mined[: self.negatives], *sentences, *more]

    def most(self, directions: Sequence[str]) -> int:
        """Return how many mined negatives the longest list has, in the direction where that is less."""
        return min(int((self.rows[name] != NO_ROW).sum(axis=1).max(initial=0)) for name in directions)

    def width(self, direction: str) -> int:
        """Negatives that a row has at most."""
        return self.negatives + (self.most_sentences if direction == "i2t" else 0)

    def rows_with(self, direction: str, least: int = 1) -> np.ndarray:
        """Captions whose row of a direction has so many negatives at least; int64."""
        counts = (self.rows[direction][:, : self.width(direction)] != NO_ROW).sum(axis=1)
        if direction == "i2t":
            counts = counts[self.owners] + np.array(list(map(len, self.sentences)))
        return np.flatnonzero(counts >= least)


def open_mined(
    prepared: Path,
    mined: Path,
    images: Path,
    negatives: int,
    *,
    drop_above: float = 1.0,
    image_root: str = "",
    holds_images: bool = False,
    sentences: Path | None = None,
    writer: str = "",
    most_sentences: int = 0,
) -> MinedPairs:
    """Reads lists and what they name; of sentences no more than is exported.

    Args:
        prepared: artifact of `prepare`.
        mined: artifact of `mine-negatives`.
        images: folder of the images.
        negatives: n.
        drop_above: probability to be right after all above which candidates of judged lists are left out.
        image_root: stands before every path of an image that is a file; empty: paths are relative to that folder.
        holds_images: the format can hold an image that has no file of its own.
        sentences: artifact of `synthesize`, or None.
        writer: what wrote them.
        most_sentences: m.

    Raises:
        DataError: a file is damaged.
    """
    split = PreparedDataset.open(prepared, tokens=False).split("train")
    read = {direction: read_list(mined, file) for direction, file in LISTS.items()}
    caption_ids, image_ids = (pa.array(each.anchor_ids.tolist(), pa.string()) for each in read.values())
    captions = split.captions.take(rows_of(caption_ids, split.captions["caption_id"]))
    photographs = split.images.take(rows_of(image_ids, split.images["image_id"]))
    owners = rows_of(captions["image_id"], image_ids)
    texts = captions["text"].to_pylist()
    same = DuplicateCaptions(texts, owners)
    rows, facts, left_out = {}, {}, {}
    for direction, each in read.items():
        found = _first_negatives(LISTS[direction], each, same, drop_above, negatives + most_sentences)
        rows[direction], facts[direction], left_out[direction] = found

    written: dict[str, list[Document]] = defaultdict(list)
    if sentences is not None:
        # The first sentences of every caption; their ids are that of the caption with `/phrases-1`, `/phrases-2` …
        unknown = {"source": writer, **dict.fromkeys(facts["i2t"])}
        kept = SentenceFile(sentences).read(["caption_id", "text"])
        for caption, text in zip(kept["caption_id"].to_pylist(), kept["text"].to_pylist(), strict=True):
            own = written[caption]
            if len(own) < most_sentences:
                own.append(_text(f"{caption}/{writer}-{len(own) + 1}", text) | unknown)
    shown = photographs.select(["image_id", "file", "sha256"]).to_pylist()
    names = caption_ids.to_pylist()
    return MinedPairs(
        images,
        [_image(each, images, image_root, holds_images=holds_images) for each in shown],
        list(map(_text, names, texts)),
        owners,
        rows,
        facts,
        "mined",
        left_out,
        negatives,
        [written[name] for name in names],
        most_sentences,
    )


def open_twins(
    prepared: Path,
    synthesized: Path,
    images: Path,
    *,
    image_root: str = "",
    holds_images: bool = True,
) -> MinedPairs:
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
    told = SentenceFile(synthesized).read(["image_id", "twin_image_id", "detail", "twin_detail"]).drop_null()
    twins = dict.fromkeys(zip(*told.to_pydict().values(), strict=True))
    shown, captions = [], []
    for number, (own, twin, detail, twin_detail) in enumerate(twins):
        other = documents[twin]
        if own == twin:
            if not holds_images:
                continue
            other = other | {"docid": f"{own}/mirrored", "image": None, "mirrored": True}
        shown += [documents[own], other]
        captions += [_text(f"twin-{number}", detail), _text(f"twin-{number}/twin", twin_detail)]
    owners = np.arange(len(captions))
    rows = dict.fromkeys(LISTS, owners[:, None] ^ 1)
    facts: dict[str, dict[str, np.ndarray]] = {name: {} for name in LISTS}
    nothing: list[Sequence[Document]] = [()] * len(captions)
    left_out = dict.fromkeys(LISTS, LeftOut(0, 0, 0))
    return MinedPairs(images, shown, captions, owners, rows, facts, "twins", left_out, 1, nothing, 0)


def _image(row: Document, root: Path, image_root: str, *, holds_images: bool) -> Document:
    """Return an image of the dataset with the path by which other programs open it, if there is one."""
    file = row["file"]
    document = {"docid": row["image_id"], "text": None, "image": file, **row}
    if in_archive(root / file):
        # A cell of a table has no ending; decoders look at the bytes.
        ending = "" if PurePosixPath(file).suffix else ".jpg"
        document["image"] = None if holds_images else f"{COPIES}/{file}{ending}"
        document["copied"] = not holds_images
    elif image_root:
        document["image"] = f"{image_root.rstrip('/')}/{file}"
    return document


def refuse_wrong_root(mined: MinedPairs, image_root: str) -> None:
    """Refuse an image root below which a photograph is missing, or one of some is another than was prepared.

    Photographs inside tables and tar files have no paths, so that an image root of these alone is refused, too.

    Raises:
        UsageError: there is such a one.
    """
    remedy = "name the folder below which the photographs lie as they did when the dataset was prepared"
    images = [each for each in mined.images if each["image"] is not None and not each.get("copied")]
    if not images:
        raise UsageError(
            f"--image-root {image_root}: the photographs lie inside tables or tar files, and the export holds them "
            "itself; leave it out"
        )
    missing = [each["image"] for each in images if not os.path.isfile(each["image"])]
    if missing:
        raise UsageError(
            f"--image-root {image_root}: {len(missing):,} of {len(images):,} photographs are not there, such as "
            f"{missing[0]}; {remedy}"
        )
    for each in images[:: math.ceil(len(images) / _COMPARED)]:
        if file_digest(Path(each["image"])) != each["sha256"]:
            raise UsageError(f"--image-root {image_root}: {each['image']} is another than was prepared; {remedy}")


def _text(docid: str, text: str) -> Document:
    return {"docid": docid, "text": text, "image": None}


def _first_negatives(
    direction: str, lists: MinedList, same: DuplicateCaptions, drop_above: float, width: int
) -> tuple[np.ndarray, dict[str, np.ndarray], LeftOut]:
    """Return the first candidates of every list without repeats of its positive and likely right answers.

    Returns:
        Their rows and facts, see `MinedPairs`, and what was left out of the first `width`.
    """
    shape = len(lists.candidates), min(width, lists.candidates.shape[1])
    rows, places = np.empty(shape, np.int64), np.empty(shape, np.int64)
    counts = np.zeros(3, np.int64)
    for part in slices(len(rows), _AT_ONCE):
        found = CandidateLists(lists.candidates[part], lists.scores[part])
        is_candidate = found.candidates != NO_ROW
        is_repeat = matching(same.has, direction, part, found)
        if direction == DIRECTIONS[0]:
            is_repeat |= same.again(found.candidates) & is_candidate
        is_right = np.zeros_like(is_repeat)
        if lists.false_negative_probability is not None:
            is_right = (lists.false_negative_probability[part] > drop_above) & is_candidate & ~is_repeat
        counts += [mask[:, :width].sum() for mask in (is_repeat, is_right, is_candidate)]
        kept = np.where(is_repeat | is_right, NO_ROW, found.candidates)
        places[part] = np.argsort(kept == NO_ROW, axis=1, kind="stable")[:, :width]
        rows[part] = np.take_along_axis(kept, places[part], axis=1)
    facts: dict[str, np.ndarray] = {}
    for name, values in {"score": lists.scores, PROBABILITY: lists.false_negative_probability}.items():
        if values is not None:
            own = np.take_along_axis(values, places, axis=1)
            facts[name] = np.where(np.isfinite(own), own, np.array(None))
    return rows, facts, LeftOut(*counts.tolist())


# Rows of the formats, and the files that hold them


def _parquet(mined: MinedPairs, direction: str, path: Path, captions: np.ndarray) -> None:
    # What `datasets.Image` stores.
    text, image = pa.string(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    anchor, other = (text, image) if direction == "t2i" else (image, text)
    fields: dict[str, Any] = {"anchor": anchor, "positive": other}
    for number in range(mined.width(direction)):
        fields[f"negative_{number + 1}"] = other
    features = {name: {"_type": "Image"} for name, kind in fields.items() if kind == image}
    if mined.with_scores:
        fields |= {"anchor_id": text, "positive_id": text, "negative_ids": pa.list_(text)}
        fields["negative_scores"] = pa.list_(pa.float32())
        if mined.judged:
            fields[PROBABILITY] = pa.list_(pa.float32())
    schema = pa.schema(list(fields.items()), metadata={"huggingface": json.dumps({"info": {"features": features}})})

    size = _IMAGES_AT_ONCE if any(each["image"] is None for each in mined.images) else _AT_ONCE
    with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
        for part in slices(len(captions), size):
            rows = []
            for caption in captions[part].tolist():
                query, positive, negatives = mined.row(direction, caption)
                row = {"anchor_id": query["docid"], "positive_id": positive["docid"]}
                row |= _side_by_side("negative_ids", negatives)
                for name, document in zip(fields, (query, positive, *negatives), strict=False):
                    row[name] = document["text"]
                    if document["text"] is None:
                        content = _photograph(mined.root, document) if document["image"] is None else None
                        row[name] = {"bytes": content, "path": document["image"]}
                rows.append(row)
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _side_by_side(ids: str, negatives: list[Document]) -> dict[str, Any]:
    """Return each fact of some negatives as a list: their ids under this name, and what is known of scores."""
    columns = {ids: [each["docid"] for each in negatives]}
    for name, key in {"negative_scores": "score", PROBABILITY: PROBABILITY}.items():
        if key in negatives[0]:
            columns[name] = [each[key] for each in negatives]
    return columns


def _with_each_other(mined: MinedPairs, direction: str) -> np.ndarray:
    """Return the captions that pandas reads and that have a hard caption, and a hard image that has such one, too."""
    neighbours = mined.rows["t2i"][:, : mined.negatives]
    kept = mined.rows_with("i2t")
    kept = kept[[not _MISSING.fullmatch(mined.captions[caption]["text"]) for caption in kept]]
    while True:
        images = np.isin(np.arange(len(mined.images)), mined.owners[kept])
        rest = kept[((neighbours[kept] != NO_ROW) & images[neighbours[kept]]).any(axis=1)]
        if len(rest) == len(kept):
            return kept
        kept = rest


def _tsv(mined: MinedPairs, direction: str, path: Path, captions: np.ndarray) -> None:
    """The captions of an image point to different captions of the same hard image."""
    first = np.searchsorted(mined.owners[captions], np.arange(len(mined.images) + 1)).tolist()
    places = (captions - np.searchsorted(mined.owners, mined.owners[captions])).tolist()
    with _lines(path) as stream:
        stream.write("filepath\ttitle\tneg_caption\tneg_image\n")
        writer = csv.writer(stream, delimiter="\t", quoting=csv.QUOTE_ALL, lineterminator="\n")
        for caption, place in zip(captions.tolist(), places, strict=True):
            image, title, negatives = mined.row("i2t", caption)
            numbers = []
            for other in mined.rows["t2i"][caption, : mined.negatives].tolist():
                count = first[other + 1] - first[other]
                if other != NO_ROW and count:
                    numbers.append(first[other] + place % count)
            hard = json.dumps([each["text"] for each in negatives], ensure_ascii=False)
            writer.writerow((image["image"], title["text"], hard, str(numbers)))


def _jsonl(mined: MinedPairs, direction: str, path: Path, captions: np.ndarray) -> None:
    with _lines(path) as stream:
        for caption in captions.tolist():
            query, positive, negatives = mined.row(direction, caption)
            line = {"query_id": query["docid"], "query": query["text"], "query_image": query["image"]}
            line["positive_passages"] = [_passage(positive)]
            line["negative_passages"] = list(map(_passage, negatives))
            stream.write(_line(line))


def _passage(document: Document) -> Document:
    passage = {"docid": document["docid"], "title": "", "text": document["text"] or "", "image": document["image"]}
    return passage | _facts(document)


def _tevatron(mined: MinedPairs, direction: str, path: Path, captions: np.ndarray) -> None:
    with _lines(path) as stream:
        for caption in captions.tolist():
            query, positive, negatives = mined.row(direction, caption)
            line = {"query_id": query["docid"], "query_text": query["text"], "query_image": query["image"]}
            line["positive_document_ids"] = [positive["docid"]]
            stream.write(_line(line | _side_by_side("negative_document_ids", negatives)))


def _documents(path: Path, documents: Sequence[Document]) -> None:
    with _lines(path) as stream:
        for each in documents:
            stream.write(_line({name: each[name] for name in ("docid", "text", "image")}))


def _lines(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="")


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _facts(document: Document) -> Document:
    return {name: document[name] for name in ("source", "score", PROBABILITY) if name in document}


def _tar(mined: MinedPairs, direction: str, path: Path, captions: np.ndarray) -> None:
    """Members have nothing in them that depends on when and by whom they were written."""
    # One ending for all images: `datasets` refuses shards whose samples differ in it, and decoders look at the bytes.
    endings = {_ENDINGS.get(PurePosixPath(each["file"]).suffix.lower(), "jpg") for each in mined.images}
    ending = endings.pop() if len(endings) == 1 else "jpg"
    last, photograph = "", b""
    with path.open("wb") as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for caption in captions.tolist():
            text, image, images = mined.row("t2i", caption)
            *_, texts = mined.row("i2t", caption)
            if image["docid"] != last:  # captions of an image follow each other
                last, photograph = image["docid"], _photograph(mined.root, image)
            about = {
                "caption_id": text["docid"],
                "image_id": image["docid"],
                "file": image["file"],
                "images": [{"image_id": each["docid"], "file": each["file"]} | _facts(each) for each in images],
                "captions": [{"caption_id": each["docid"], "text": each["text"]} | _facts(each) for each in texts],
            }
            title = text["text"]
            if title.endswith("\n"):
                title += "\n"  # a reader takes one line end at the end for that of the file
            members = {ending: photograph, "json": _line(about).encode()[:-1], "txt": title.encode()}
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
        """Files with their rows, named as on the Hugging Face hub.

        Args:
            size: rows of a file; 0: as many as suit the format.
        """
        if "*" not in self.pattern:
            yield self.pattern, self.rows
            return
        size = size or (1_000 if self.pattern.endswith(".tar") else 50_000)
        parts = [*slices(len(self.rows), size)] or [slice(0)]
        for number, part in enumerate(parts):
            yield self.pattern.replace("*", f"train-{number:05}-of-{len(parts):05}"), self.rows[part]


def write_files(
    folder: Path, tables: Iterable[TableFiles], mined: MinedPairs, shard_rows: int, advance: Callable[[int], object]
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
        write: writes rows of captions, see `_parquet`.
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
        for name in directions if "{}" in self.pattern else ["default"]:
            rows, write = self.rows(mined, name), partial(self.write, mined, name)
            tables.append(TableFiles(name, self.pattern.format(name), rows, len(mined.captions) - len(rows), write))
        if self.documents:
            images = list({each["docid"]: each for each in mined.images}.values())
            texts = [*mined.captions, *itertools.chain.from_iterable(mined.sentences)]
            documents = {"t2i": ("images", images), "i2t": ("captions", texts)}
            for direction in directions:
                name, rows = documents[direction]
                tables.append(TableFiles(name, f"{name}/*.jsonl", rows, 0, _documents))
        return tables


FORMATS = {
    "sentence-transformers": FileFormat(
        _parquet,
        "{}/*.parquet",
        lambda mined, name: mined.rows_with(name, mined.width(name)),
        holds_images=True,
        unread=(),
    ),
    "negclip": FileFormat(_tsv, "train.tsv", _with_each_other, unread=("direction", "with_scores", "shard_rows")),
    "jsonl": FileFormat(_jsonl),
    "tevatron": FileFormat(_tevatron, documents=True),
    "webdataset": FileFormat(
        _tar,
        "*.tar",
        lambda mined, _: np.union1d(mined.rows_with("t2i"), mined.rows_with("i2t")),
        holds_images=True,
        unread=("direction", "with_scores", "image_root"),
    ),
}
