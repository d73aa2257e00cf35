"""Mined lists, written sentences and twins of a training set, as rows that other trainers can read.

A row is a pair of a caption and its image with the negatives of one direction; `itrpipe.exporting.formats` writes files
of them. Twins are rows with one negative: an image and what is true of it alone, its twin and what is true of that.

Shapes: N images, T captions, A anchors of a direction, n mined negatives of a row, m written ones.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import UsageError
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.mining.lists import DIRECTIONS, NO_ROW, PROBABILITY, CandidateLists, MinedList, matching, read_list, slices
from itrpipe.storage.disk import file_digest
from itrpipe.storage.tables import rows_of
from itrpipe.synthesis.sentences import SentenceFile

LISTS = {"t2i": "images_for_texts", "i2t": "texts_for_images"}
"""Direction of retrieval -> mined list of its queries."""
Document = dict[str, Any]
"""`docid`, and `text` or `image`. An image is the path that other programs open, or None where a table holds its bytes.
It also has `file` and `sha256`, `copied` where the path names a copy below `COPIES`, and `mirrored` where it is shown
so. A negative also has `source` (`mined`, or what wrote the sentence), and None of sentences: `score`, and of judged
lists its probability to be right after all."""
COPIES = "photographs"
"""Folder of an export with copies of photographs."""
MOST = 8
"""Negatives of a row where no number is given, if the lists hold as many."""
_COMPARED = 100
"""Photographs that are compared with the prepared ones to see whether `--image-root` is right."""
_ANCHORS_AT_ONCE = 8_192


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

    def row(self, direction: str, caption: int) -> tuple[Document, Document, list[Document]]:
        """Return a caption, its image and the n hardest images, or the image, its caption and n captions, m sentences.

        The hardest negatives come first. Where the caption has fewer sentences, the next mined captions take their
        places.
        """
        owner = int(self.owners[caption])
        if direction == "t2i":
            query = self.captions[caption]
            positive = self.images[owner]
            anchor = caption
            others = self.images
            sentences = ()
        else:
            query = self.images[owner]
            positive = self.captions[caption]
            anchor = owner
            others = self.captions
            sentences = self.sentences[caption]
        mined = []
        for place, row in enumerate(self.rows[direction][anchor].tolist()):
            if row != NO_ROW:
                negative = others[row] | {"source": self.source}
                for name, values in self.facts[direction].items():
                    negative[name] = values[anchor, place]
                mined.append(negative)
        substitutes = mined[self.negatives : self.width(direction) - len(sentences)]
        negatives = mined[: self.negatives] + list(sentences) + substitutes
        return query, positive, negatives

    def most(self, directions: Sequence[str]) -> int:
        """Return how many mined negatives the longest list has, in the direction where that is less."""
        longest = []
        for direction in directions:
            counts = (self.rows[direction] != NO_ROW).sum(axis=1)
            longest.append(int(counts.max(initial=0)))
        return min(longest)

    def width(self, direction: str) -> int:
        """Return how many negatives a row has at most."""
        if direction == "i2t":
            return self.negatives + self.most_sentences
        return self.negatives

    def rows_with(self, direction: str, least: int = 1) -> np.ndarray:
        """Return the captions whose row of a direction has so many negatives at least; int64."""
        rows = self.rows[direction][:, : self.width(direction)]
        counts = (rows != NO_ROW).sum(axis=1)
        if direction == "i2t":
            sentences = np.array(list(map(len, self.sentences)))
            counts = counts[self.owners] + sentences
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
    """Read lists and what they name; of sentences no more than is exported.

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
    lists = {direction: read_list(mined, file) for direction, file in LISTS.items()}
    caption_ids = pa.array(lists["t2i"].anchor_ids.tolist(), pa.string())
    image_ids = pa.array(lists["i2t"].anchor_ids.tolist(), pa.string())
    captions = split.captions.take(rows_of(caption_ids, split.captions["caption_id"]))
    photographs = split.images.take(rows_of(image_ids, split.images["image_id"]))
    owners = rows_of(captions["image_id"], image_ids)
    texts = captions["text"].to_pylist()
    duplicates = DuplicateCaptions(texts, owners)
    rows = {}
    facts = {}
    left_out = {}
    for direction, mined_list in lists.items():
        rows[direction], facts[direction], left_out[direction] = _first_negatives(
            LISTS[direction],
            mined_list,
            duplicates,
            drop_above,
            negatives + most_sentences,
        )

    images_shown = []
    for row in photographs.select(["image_id", "file", "sha256"]).to_pylist():
        images_shown.append(_image(row, images, image_root, holds_images=holds_images))
    # The first sentences of every caption; their ids are that of the caption with `/phrases-1`, `/phrases-2` …
    written: dict[str, list[Document]] = defaultdict(list)
    if sentences is not None:
        unknown = {"source": writer, **dict.fromkeys(facts["i2t"])}
        table = SentenceFile(sentences).read(["caption_id", "text"])
        captions_of_sentences = table["caption_id"].to_pylist()
        texts_of_sentences = table["text"].to_pylist()
        for caption, text in zip(captions_of_sentences, texts_of_sentences, strict=True):
            documents = written[caption]
            if len(documents) < most_sentences:
                documents.append(_text(f"{caption}/{writer}-{len(documents) + 1}", text) | unknown)
    names = caption_ids.to_pylist()
    return MinedPairs(
        root=images,
        images=images_shown,
        captions=list(map(_text, names, texts)),
        owners=owners,
        rows=rows,
        facts=facts,
        source="mined",
        left_out=left_out,
        negatives=negatives,
        sentences=[written[name] for name in names],
        most_sentences=most_sentences,
    )


def _first_negatives(
    direction: str,
    lists: MinedList,
    duplicates: DuplicateCaptions,
    drop_above: float,
    width: int,
) -> tuple[np.ndarray, dict[str, np.ndarray], LeftOut]:
    """Return the first candidates of every list without repeats of its positive and likely right answers.

    Returns:
        Their rows and facts, see `MinedPairs`, and what was left out of the first `width`.
    """
    shape = len(lists.candidates), min(width, lists.candidates.shape[1])
    rows = np.empty(shape, np.int64)
    places = np.empty(shape, np.int64)
    repeats = right = seen = 0
    for part in slices(len(rows), _ANCHORS_AT_ONCE):
        candidates = lists.candidates[part]
        is_candidate = candidates != NO_ROW
        is_repeat = matching(
            duplicates.has,
            direction,
            part,
            CandidateLists(candidates, lists.scores[part]),
        )
        if direction == DIRECTIONS[0]:
            is_repeat |= duplicates.again(candidates) & is_candidate
        is_right = np.zeros_like(is_repeat)
        if lists.false_negative_probability is not None:
            is_likely = lists.false_negative_probability[part] > drop_above
            is_right = is_likely & is_candidate & ~is_repeat
        repeats += int(is_repeat[:, :width].sum())
        right += int(is_right[:, :width].sum())
        seen += int(is_candidate[:, :width].sum())
        kept = np.where(is_repeat | is_right, NO_ROW, candidates)
        places[part] = np.argsort(kept == NO_ROW, axis=1, kind="stable")[:, :width]
        rows[part] = np.take_along_axis(kept, places[part], axis=1)

    facts: dict[str, np.ndarray] = {}
    for name, values in (("score", lists.scores), (PROBABILITY, lists.false_negative_probability)):
        if values is not None:
            values_kept = np.take_along_axis(values, places, axis=1)
            facts[name] = np.where(np.isfinite(values_kept), values_kept, np.array(None))
    return rows, facts, LeftOut(repeats, right, seen)


def open_twins(
    prepared: Path,
    synthesized: Path,
    images: Path,
    *,
    image_root: str = "",
    holds_images: bool = True,
) -> MinedPairs:
    """Read twins of training captions as lists of one negative each; images are listed once for each of their twins.

    Args:
        prepared: artifact of `prepare`.
        synthesized: artifact of `synthesize`.
        images: folder of the images.
        image_root: stands before every path of an image.
        holds_images: the format can hold an image that has no file of its own, as mirrored ones have none.

    Raises:
        DataError: a file is damaged.
    """
    documents = {}
    for row in PreparedDataset.open(prepared, tokens=False).split("train").images.to_pylist():
        documents[row["image_id"]] = _image(
            row,
            images,
            image_root,
            holds_images=holds_images,
        )
    table = SentenceFile(synthesized).read(["image_id", "twin_image_id", "detail", "twin_detail"]).drop_null()
    rows = zip(*table.to_pydict().values(), strict=True)
    twins = dict.fromkeys(rows)
    images_shown = []
    captions = []
    for number, (image_id, twin_id, detail, twin_detail) in enumerate(twins):
        twin = documents[twin_id]
        if image_id == twin_id:
            if not holds_images:
                continue
            twin = twin | {
                "docid": f"{image_id}/mirrored",
                "image": None,
                "mirrored": True,
            }
        images_shown += [documents[image_id], twin]
        captions += [_text(f"twin-{number}", detail), _text(f"twin-{number}/twin", twin_detail)]

    owners = np.arange(len(captions))
    other_of_two = owners[:, None] ^ 1
    return MinedPairs(
        root=images,
        images=images_shown,
        captions=captions,
        owners=owners,
        rows=dict.fromkeys(LISTS, other_of_two),
        facts={direction: {} for direction in LISTS},
        source="twins",
        left_out=dict.fromkeys(LISTS, LeftOut(0, 0, 0)),
        negatives=1,
        sentences=[()] * len(captions),
        most_sentences=0,
    )


def _text(docid: str, text: str) -> Document:
    return {"docid": docid, "text": text, "image": None}


def _image(
    row: Document,
    root: Path,
    image_root: str,
    *,
    holds_images: bool,
) -> Document:
    """Return an image of the dataset with the path by which other programs open it, if there is one."""
    file = row["file"]
    document = {"docid": row["image_id"], "text": None, "image": file, **row}
    if in_archive(root / file):
        document["copied"] = not holds_images
        if holds_images:
            document["image"] = None
        else:
            # A cell of a table has no ending; decoders look at the bytes.
            ending = ""
            if not PurePosixPath(file).suffix:
                ending = ".jpg"
            document["image"] = f"{COPIES}/{file}{ending}"
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
    images = [image for image in mined.images if image["image"] is not None and not image.get("copied")]
    if not images:
        raise UsageError(
            f"--image-root {image_root}: the photographs lie inside tables or tar files, and the export holds them "
            "itself; leave it out"
        )
    missing = [image["image"] for image in images if not os.path.isfile(image["image"])]
    if missing:
        raise UsageError(
            f"--image-root {image_root}: {len(missing):,} of {len(images):,} photographs are not there, such as "
            f"{missing[0]}; {remedy}"
        )
    step = math.ceil(len(images) / _COMPARED)
    for image in images[::step]:
        if file_digest(Path(image["image"])) != image["sha256"]:
            raise UsageError(f"--image-root {image_root}: {image['image']} is another than was prepared; {remedy}")
