"""Mined lists with the images, captions and sentences that they name, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.prepared import IMAGES_FILE, PreparedDataset
from itrpipe.errors import DataError
from itrpipe.learning.mined import FILES, MinedList, read_list
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.mining.lists import NO_ROW, CandidateLists
from itrpipe.synthesis.sentences import SentenceFile

LISTS = {"t2i": "images_for_texts", "i2t": "texts_for_images"}
"""Direction of retrieval -> mined list of its queries."""
MINED = "mined"
_ANCHORS_AT_ONCE = 8_192


class Entry(NamedTuple):
    """An image, by its path, or a text."""

    id: str
    text: str | None
    image: str | None


class Negative(NamedTuple):
    """A negative of a row.

    Attributes:
        entry: what it is.
        source: `mined`, or what wrote the sentence; of a sentence the rest is None.
        rank: place in the mined list from 1.
        score: of the mining model.
        probability: to be a false negative; None without a guard, too.
    """

    entry: Entry
    source: str = MINED
    rank: int | None = None
    score: float | None = None
    probability: float | None = None


class Row(NamedTuple):
    """A pair of a caption and its image, and the negatives of one direction, the hardest first."""

    query: Entry
    positive: Entry
    negatives: list[Negative]


class Hardest(NamedTuple):
    """The hardest candidates of one direction that say something else than the positive.

    Attributes:
        rows: int64 [A, K]; `NO_ROW` behind the last.
        ranks: int64 [A, K], places in the mined list from 1.
        scores: float16 [A, K].
        probability: float16 [A, K], or None without a guard.
        repeats: how many were left out for those behind them.
    """

    rows: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    probability: np.ndarray | None
    repeats: int


@dataclass(frozen=True)
class Mined:
    """The training images and captions that have lists, and the lists.

    Attributes:
        root: the folder of the images.
        images: N, by the paths that other programs are to open.
        files, digests: of the images, relative to `root`, and their sha256.
        captions: T, those of an image together.
        owners: int64 [T], image of each caption, never falling.
        lists: direction -> its lists, at most n + m candidates wide.
        negatives: n, mined ones of a row.
        writer: what wrote the sentences; empty without.
        sentences: of every caption, m at most.
        most_sentences: m.
    """

    root: Path
    images: list[Entry]
    files: list[str]
    digests: list[str]
    captions: list[Entry]
    owners: np.ndarray
    lists: dict[str, Hardest]
    negatives: int
    writer: str
    sentences: list[Sequence[Entry]]
    most_sentences: int

    @property
    def guarded(self) -> bool:
        """Whether candidates have a probability to be a false negative."""
        return all(each.probability is not None for each in self.lists.values())

    def row(self, direction: str, caption: int) -> Row:
        """A caption with the n hardest images, or its image with the n hardest captions and m sentences.

        Where the caption has fewer sentences, the next mined captions take their places.
        """
        owner, n = int(self.owners[caption]), self.negatives
        text, image = self.captions[caption], self.images[owner]
        if direction == "t2i":
            return Row(text, image, self._mined(direction, caption)[:n])
        found, own = self._mined(direction, owner), self.sentences[caption]
        written = [Negative(each, self.writer) for each in own]
        return Row(image, text, found[:n] + written + found[n : n + self.most_sentences - len(own)])

    def _mined(self, direction: str, anchor: int) -> list[Negative]:
        lists, others = self.lists[direction], self.images if direction == "t2i" else self.captions
        rows, ranks, scores = lists.rows[anchor].tolist(), lists.ranks[anchor].tolist(), _known(lists.scores[anchor])
        probability = [None] * len(rows) if lists.probability is None else _known(lists.probability[anchor])
        return [
            Negative(others[row], MINED, rank, score, likely)
            for row, rank, score, likely in zip(rows, ranks, scores, probability, strict=True)
            if row != NO_ROW
        ]

    def width(self, direction: str) -> int:
        """Negatives that a row has at most."""
        return self.negatives + (self.most_sentences if direction == "i2t" else 0)

    def rows_with(self, direction: str, least: int) -> np.ndarray:
        """Captions whose row of a direction has so many negatives at least; int64."""
        mined = (self.lists[direction].rows[:, : self.width(direction)] != NO_ROW).sum(axis=1)
        counts = mined if direction == "t2i" else mined[self.owners] + self._sentence_counts
        return np.flatnonzero(counts >= least)

    @cached_property
    def _sentence_counts(self) -> np.ndarray:
        return np.array([len(each) for each in self.sentences])


def _known(values: np.ndarray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def open_mined(
    prepared: Path,
    mined: Path,
    images: Path,
    negatives: int,
    *,
    image_root: str = "",
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
        sentences: artifact of `synthesize`, or None.
        writer: what wrote them.
        most_sentences: m.

    Raises:
        DataError: a file is damaged, the artifacts are not of one dataset, or a path leads out of the images' folder.
    """
    split = PreparedDataset.open(prepared, tokens=False).split("train")
    lists = {name: read_list(mined, file) for name, file in LISTS.items()}
    image_ids, caption_ids = (pa.array(lists[name].anchor_ids.tolist(), pa.string()) for name in ("i2t", "t2i"))
    photographs = split.images.take(_rows_of(image_ids, split.images["image_id"], mined, prepared))
    captions = split.captions.take(_rows_of(caption_ids, split.captions["caption_id"], mined, prepared))
    owners = _rows_of(captions["image_id"], image_ids, mined, prepared).to_numpy().astype(np.int64)
    if (np.diff(owners) < 0).any():
        raise DataError(f"{mined / FILES[LISTS['t2i']]} has captions in another order than {prepared}; mine again")
    _refuse_other_rows(lists, mined)
    files, texts = photographs["file"].to_pylist(), captions["text"].to_pylist()
    _refuse_outside(files, prepared)
    prefix = image_root.rstrip("/") + "/" if image_root else ""
    same, width = DuplicateCaptions(texts, owners), negatives + most_sentences
    return Mined(
        root=images,
        images=[Entry(own, None, prefix + file) for own, file in zip(image_ids.to_pylist(), files, strict=True)],
        files=files,
        digests=photographs["sha256"].to_pylist(),
        captions=[Entry(own, text, None) for own, text in zip(caption_ids.to_pylist(), texts, strict=True)],
        owners=owners,
        lists={name: _without_repeats(LISTS[name], found, same, width) for name, found in lists.items()},
        negatives=negatives,
        writer=writer,
        sentences=_sentences(sentences, caption_ids.to_pylist(), writer, most_sentences),
        most_sentences=most_sentences,
    )


def _rows_of(wanted: Any, known: Any, mined: Path, prepared: Path) -> Any:
    """Place of every id among others, as Arrow's int32."""
    values = known.combine_chunks() if isinstance(known, pa.ChunkedArray) else known
    found = pc.call_function("index_in", [wanted], pc.SetLookupOptions(value_set=values))
    if found.null_count:
        raise DataError(f"{mined} names images or captions that {prepared} lacks; mine again")
    return found


def _refuse_other_rows(lists: dict[str, MinedList], mined: Path) -> None:
    for name, other in (("t2i", "i2t"), ("i2t", "t2i")):
        rows = lists[name].candidates
        if rows.size and not (rows.min() >= NO_ROW and rows.max() < len(lists[other].anchor_ids)):
            raise DataError(f"{mined / FILES[LISTS[name]]} has candidates that are no training data; mine again")


def _refuse_outside(files: list[str], prepared: Path) -> None:
    """Refuses paths that lead out of the folder of the images: other programs open whatever they are told."""
    root = ImageRoot(prepared, prepared / IMAGES_FILE)
    for row, file in enumerate(files):
        root.refuse_outside(file, f"row {row}")


def _without_repeats(direction: str, lists: MinedList, same: DuplicateCaptions, width: int) -> Hardest:
    """The first candidates of every list, without images and captions that a caption of the positive describes, too."""
    shape = len(lists.candidates), min(width, lists.candidates.shape[1])
    rows, places, repeats = np.empty(shape, np.int64), np.empty(shape, np.int64), 0
    for start in range(0, len(rows), _ANCHORS_AT_ONCE):
        part = slice(start, start + _ANCHORS_AT_ONCE)
        found = CandidateLists(lists.candidates[part], lists.scores[part])
        repeated = same.mark(direction, slice(start, start + len(found.candidates)), found)
        repeats += int(repeated[:, :width].sum())
        kept = np.where(repeated, NO_ROW, found.candidates)
        places[part] = np.argsort(kept == NO_ROW, axis=1, kind="stable")[:, :width]
        rows[part] = np.take_along_axis(kept, places[part], axis=1)
    probability = lists.false_negative_probability
    return Hardest(
        rows,
        places + 1,
        np.take_along_axis(lists.scores, places, axis=1),
        None if probability is None else np.take_along_axis(probability, places, axis=1),
        repeats,
    )


def _sentences(folder: Path | None, caption_ids: list[str], writer: str, most: int) -> list[Sequence[Entry]]:
    """The first sentences of every caption; their ids are that of the caption with `/phrases-1`, `/phrases-2` …"""
    found: dict[str, Sequence[Entry]] = {}
    for caption, texts in groupby(_kept(folder), lambda row: row[0]) if folder else ():
        numbered = enumerate((text for _, text in texts), 1)
        found[caption] = [Entry(f"{caption}/{writer}-{number}", text, None) for number, text in numbered][:most]
    return [found.get(caption, ()) for caption in caption_ids]


def _kept(folder: Path) -> Iterator[tuple[str, str]]:
    """Caption and text of every sentence, those of a caption together, the hardest first."""
    for table in SentenceFile(folder).row_groups(["caption_id", "text", "kept"]):
        kept = table.filter(table["kept"])
        yield from zip(kept["caption_id"].to_pylist(), kept["text"].to_pylist(), strict=True)
