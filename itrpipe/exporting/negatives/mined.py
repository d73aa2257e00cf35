"""Mined lists with the images, captions and sentences that they name, as columns to take from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.prepared import IMAGES_FILE, PreparedDataset
from itrpipe.errors import DataError
from itrpipe.mining.lists import NO_ROW
from itrpipe.negatives.lists import FILES, MinedList, read_list
from itrpipe.synthesis.sentences import SentenceFile

LISTS = {"t2i": "images_for_texts", "i2t": "texts_for_images"}
"""Direction of retrieval -> mined list of its queries."""


@dataclass(frozen=True)
class Sentences:
    """Negative sentences of captions.

    Attributes:
        texts: S of them, those of a caption together, the hardest first, in the order of the captions.
        starts: int64 [T + 1], the sentences of caption t are those from `starts[t]` to `starts[t + 1]`.
    """

    texts: pa.Array
    starts: np.ndarray


@dataclass(frozen=True)
class Picks:
    """Negatives of some rows, all of one kind: images, or captions and behind them sentences.

    Attributes:
        rows: int64 [R, n + m], of the candidates; `NO_ROW` where there is none.
        ranks: int32 [R, n + m], place in the mined list from 1; 0 for written sentences and where there is none.
        scores: float16 [R, n + m], of the mining model; NaN where it gave none.
        probability: float16 [R, n + m], to be a false negative; NaN where it is not known; None without a guard.
    """

    rows: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    probability: np.ndarray | None

    @property
    def found(self) -> np.ndarray:
        """bool [R, n + m], where there is a negative."""
        return self.rows != NO_ROW


@dataclass(frozen=True)
class Mined:
    """The training images and captions that have lists, and the lists.

    Attributes:
        image_ids, files, digests: of N images; files relative to the folder of the images, digests as sha256.
        caption_ids, texts: of T captions, those of an image together.
        owners: int64 [T], image of each caption, never falling.
        lists: direction -> its lists, at most n + m candidates wide.
        negatives: n.
        sentences: written ones, m of a caption at most, or None.
        most_sentences: m.
    """

    image_ids: pa.Array
    files: pa.Array
    digests: pa.Array
    caption_ids: pa.Array
    texts: pa.Array
    owners: np.ndarray
    lists: dict[str, MinedList]
    negatives: int
    sentences: Sentences | None = None
    most_sentences: int = 0

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 [N + 1]: the captions of image i are those from `starts[i]` to `starts[i + 1]`."""
        return np.searchsorted(self.owners, np.arange(len(self.image_ids) + 1)).astype(np.int64)

    @cached_property
    def sentence_counts(self) -> np.ndarray:
        """int64 [T]: how many sentences of each caption there are, m at most."""
        if self.sentences is None:
            return np.zeros(len(self.texts), dtype=np.int64)
        return np.minimum(np.diff(self.sentences.starts), self.most_sentences)

    @property
    def all_texts(self) -> pa.Array:
        """The captions and behind them the sentences: what `Picks` of captions name."""
        return self.texts if self.sentences is None else pa.concat_arrays([self.texts, self.sentences.texts])

    @property
    def guarded(self) -> bool:
        """Whether candidates have a probability to be a false negative."""
        return all(each.false_negative_probability is not None for each in self.lists.values())

    def images(self, captions: np.ndarray) -> Picks:
        """The n hardest images of captions [R]."""
        return self._mined("t2i", captions)

    def captions(self, captions: np.ndarray) -> Picks:
        """The n hardest captions of the images of captions [R], and m sentences of these.

        Where a caption has fewer sentences, the next mined captions take their places.
        """
        picks = self._mined("i2t", captions)
        return picks if self.sentences is None else self._with_sentences(picks, captions, self.sentences)

    def of_images(self, start: int, stop: int) -> Picks:
        """The n hardest captions of consecutive images."""
        return self._picked(self.lists["i2t"], np.arange(start, stop))

    def _mined(self, direction: str, captions: np.ndarray) -> Picks:
        anchors = captions if direction == "t2i" else self.owners[captions]
        return self._picked(self.lists[direction], anchors)

    def _picked(self, lists: MinedList, anchors: np.ndarray) -> Picks:
        rows = lists.candidates[anchors, : self.negatives].astype(np.int64)
        ranks = np.where(rows == NO_ROW, 0, np.arange(1, rows.shape[1] + 1, dtype=np.int32))
        nothing = rows == NO_ROW
        scores = np.where(nothing, np.float16(np.nan), lists.scores[anchors, : self.negatives])
        probability = lists.false_negative_probability
        if probability is not None:
            probability = np.where(nothing, np.float16(np.nan), probability[anchors, : self.negatives])
        return Picks(rows, ranks.astype(np.int32), scores, probability)

    def _with_sentences(self, picks: Picks, captions: np.ndarray, sentences: Sentences) -> Picks:
        lists, anchors = self.lists["i2t"], self.owners[captions]
        counts = self.sentence_counts[captions][:, None]
        place = np.arange(self.most_sentences)[None, :]
        rank = self.negatives + place - counts  # of the mined caption in the place of a missing sentence
        width = lists.candidates.shape[1]
        mined = (place >= counts) & (rank < width)
        column, row = np.clip(rank, 0, width - 1), anchors[:, None]
        rows = np.where(mined, lists.candidates[row, column].astype(np.int64), NO_ROW)
        known = rows != NO_ROW
        written = len(self.texts) + sentences.starts[captions][:, None] + place
        ranks = np.where(known, rank + 1, 0).astype(np.int32)
        scores = np.where(known, lists.scores[row, column], np.float16(np.nan))
        probability = picks.probability
        if probability is not None:
            assert lists.false_negative_probability is not None
            more = np.where(known, lists.false_negative_probability[row, column], np.float16(np.nan))
            probability = np.concatenate([probability, more], axis=1)
        return Picks(
            np.concatenate([picks.rows, np.where(place < counts, written, rows)], axis=1),
            np.concatenate([picks.ranks, ranks], axis=1),
            np.concatenate([picks.scores, scores], axis=1),
            probability,
        )

    def complete(self, direction: str) -> np.ndarray:
        """Captions whose row of a direction has all its negatives, n images or n + m captions; int64."""
        needed = self.negatives + (self.most_sentences if direction == "i2t" else 0)
        return np.flatnonzero(self._counts(direction) >= needed)

    def any_of(self, direction: str) -> np.ndarray:
        """Captions whose row of a direction has a negative; int64."""
        return np.flatnonzero(self._counts(direction) > 0)

    def _counts(self, direction: str) -> np.ndarray:
        """int64 [T], candidates that were read for each caption, and its sentences."""
        counts = (self.lists[direction].candidates != NO_ROW).sum(axis=1)
        return counts if direction == "t2i" else counts[self.owners] + self.sentence_counts


def open_mined(
    prepared: Path, mined: Path, negatives: int, *, sentences: Path | None = None, most_sentences: int = 0
) -> Mined:
    """Reads lists and what they name; of lists and sentences no more than is exported.

    Args:
        prepared: artifact of `prepare`.
        mined: artifact of `mine-negatives`.
        negatives: n.
        sentences: artifact of `synthesize`, or None.
        most_sentences: m.

    Raises:
        DataError: a file is damaged, the artifacts are not of one dataset, or a path leads out of the images' folder.
    """
    split = PreparedDataset.open(prepared, tokens=False).split("train")
    lists = {name: read_list(mined, file, negatives + most_sentences) for name, file in LISTS.items()}
    image_ids, caption_ids = (pa.array(lists[name].anchor_ids.tolist(), pa.string()) for name in ("i2t", "t2i"))
    images = split.images.take(_rows_of(image_ids, split.images["image_id"], mined, prepared))
    captions = split.captions.take(_rows_of(caption_ids, split.captions["caption_id"], mined, prepared))
    owners = _rows_of(captions["image_id"], image_ids, mined, prepared).to_numpy().astype(np.int64)
    if (np.diff(owners) < 0).any():
        raise DataError(f"{mined / FILES[LISTS['t2i']]} has captions in another order than {prepared}; mine again")
    _refuse_other_rows(lists, mined)
    files = images["file"].combine_chunks()
    _refuse_outside(files, prepared)
    return Mined(
        image_ids=image_ids,
        files=files,
        digests=images["sha256"].combine_chunks(),
        caption_ids=caption_ids,
        texts=captions["text"].combine_chunks(),
        owners=owners,
        lists=lists,
        negatives=negatives,
        sentences=None if sentences is None else _sentences(sentences, caption_ids, most_sentences),
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


def _refuse_outside(files: pa.Array, prepared: Path) -> None:
    """Refuses paths that lead out of the folder of the images: other programs open whatever they are told."""
    root = ImageRoot(prepared, prepared / IMAGES_FILE)
    for row, file in enumerate(files.to_pylist()):
        root.refuse_outside(file, f"row {row}")


def _sentences(folder: Path, caption_ids: pa.Array, most: int) -> Sentences:
    """The first sentences of every caption, read a row group at a time."""
    texts: list[pa.Array] = []
    owners: list[np.ndarray] = []
    for table in SentenceFile(folder).row_groups(["caption_id", "text", "kept"]):
        kept = table.filter(table["kept"])
        found: Any = pc.call_function("index_in", [kept["caption_id"]], pc.SetLookupOptions(value_set=caption_ids))
        rows = found.fill_null(-1).to_numpy()
        chosen = _first_of_each(rows, most) & (rows >= 0)
        texts.append(kept["text"].filter(pa.array(chosen)).combine_chunks())
        owners.append(rows[chosen])
    whole = np.concatenate([*owners, np.zeros(0, dtype=np.int32)])
    if (np.diff(whole) < 0).any():
        raise DataError(f"{folder} has sentences in another order than the captions; run `itrpipe synthesize` again")
    starts = np.searchsorted(whole, np.arange(len(caption_ids) + 1)).astype(np.int64)
    return Sentences(concatenated(texts), starts)


def _first_of_each(owners: np.ndarray, most: int) -> np.ndarray:
    """bool: the first so many of every run of equal numbers."""
    starts = np.flatnonzero(np.diff(owners, prepend=owners[:1] - 1)) if len(owners) else np.zeros(0, dtype=np.int64)
    lengths = np.diff(starts, append=len(owners))
    return np.arange(len(owners)) - np.repeat(starts, lengths) < most


def concatenated(arrays: Sequence[pa.Array]) -> pa.Array:
    """Strings of several arrays in one."""
    return pa.concat_arrays([*arrays, pa.array([], pa.string())])
