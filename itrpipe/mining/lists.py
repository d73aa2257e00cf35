"""Mined lists: what every engine finds, the file that holds it, and what is taken out of it again.

Candidates leave by their rank, by their score, by its distance to the score of the positive, and where their caption
says what a caption of the image says. The names of the limits are those of sentence-transformers'
`mine_hard_negatives`. The positive of a caption is its image. That of an image is the own caption with the lowest
score: training pairs an image with each of its captions in turn and draws from the same list every time, so a margin
holds for all these pairs only if it holds for that one.
"""

from __future__ import annotations

import hashlib
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.mining.rows import slices
from itrpipe.mining.settings import WindowSettings
from itrpipe.storage.arrays import Rows, take
from itrpipe.storage.parts import ArrayFile, ArrayWriter

NO_ROW = -1
"""Stands where a list has no candidate; its score is minus infinity."""
DIRECTIONS = ("texts_for_images", "images_for_texts")
_LARGEST_INT32 = 2**31 - 1
_PAIRS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class CandidateLists:
    """One direction: the candidates of every anchor, hardest first, in rows of one width.

    Attributes:
        candidates: [A, K] int32, or int64 where there are more, rows of the other side; `NO_ROW` behind the last
            candidate of a shorter list.
        scores: [A, K] float32; minus infinity behind the last candidate.
    """

    candidates: np.ndarray
    scores: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """[A] candidates of each anchor."""
        return (self.candidates != NO_ROW).sum(axis=1)


@dataclass(frozen=True)
class MinedLists:
    """Hard negatives of every image and caption, hardest first.

    Attributes:
        texts_per_image: [N, num_texts] int32, caption indices.
        text_scores: [N, num_texts] float32.
        images_per_text: [T, num_images] int32, image indices.
        image_scores: [T, num_images] float32.
    """

    texts_per_image: np.ndarray
    text_scores: np.ndarray
    images_per_text: np.ndarray
    image_scores: np.ndarray

    @property
    def texts_for_images(self) -> CandidateLists:
        """The captions of every image."""
        return CandidateLists(self.texts_per_image, self.text_scores)

    @property
    def images_for_texts(self) -> CandidateLists:
        """The images of every caption."""
        return CandidateLists(self.images_per_text, self.image_scores)


def by_score(candidates: np.ndarray, scores: np.ndarray) -> CandidateLists:
    """Lists by falling score, by rising row where scores are equal, and padding last.

    Args:
        candidates: [A, K] rows, `NO_ROW` anywhere.
        scores: [A, K] numbers without NaN; those of padding are not read.
    """
    missing = candidates == NO_ROW
    ranked = np.where(missing, -np.inf, scores).astype(np.float32)
    order = np.lexsort((candidates, -ranked, missing), axis=1)
    ordered = np.take_along_axis(candidates, order, axis=1)
    return CandidateLists(ordered, np.take_along_axis(ranked, order, axis=1))


# In a file


def row_type(candidates: int) -> str:
    """Type of the rows of so many candidates: 32 bits where they suffice."""
    return "<i4" if candidates <= _LARGEST_INT32 else "<i8"


def layout(
    anchors: Sequence[int], widths: Sequence[int], candidates: Sequence[int]
) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Arrays of a file of lists.

    Args:
        anchors, widths, candidates: of each direction: how many lists, their length, and candidates in all.
    """
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for name, count, width, others in zip(DIRECTIONS, anchors, widths, candidates, strict=True):
        arrays[f"{name}/rows"] = (row_type(others), (count, width))
        arrays[f"{name}/scores"] = ("<f4", (count, width))
    return arrays


def write_slice(writer: ArrayWriter, direction: str, start: int, lists: CandidateLists) -> None:
    """Writes the lists of consecutive anchors."""
    writer.write(f"{direction}/rows", start, lists.candidates)
    writer.write(f"{direction}/scores", start, lists.scores)


class MinedFile:
    """Reads lists, a slice at a time.

    Args:
        path: of the file.

    Attributes:
        shapes: direction -> anchors and length of a list.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ArrayFile(path)
        self.shapes = {name: self._file[f"{name}/scores"].shape for name in DIRECTIONS}

    def read(self, direction: str, start: int = 0, stop: int | None = None) -> CandidateLists:
        """Lists of consecutive anchors, by default of all."""
        return CandidateLists(*(self._file[f"{direction}/{name}"].read(start, stop) for name in ("rows", "scores")))

    def slices(self, direction: str, places: int = 1 << 20) -> Iterator[tuple[slice, CandidateLists]]:
        """All lists of a direction, some anchors at a time.

        Args:
            direction: which.
            places: of lists at a time, about.
        """
        anchors, width = self.shapes[direction]
        for part in slices(anchors, max(1, places // width)):
            yield part, self.read(direction, part.start, part.stop)

    def lists(self) -> MinedLists:
        """All of them in memory."""
        texts, images = (self.read(name) for name in DIRECTIONS)
        return MinedLists(texts.candidates, texts.scores, images.candidates, images.scores)


# What leaves lists


def drop(lists: CandidateLists, reasons: Mapping[str, np.ndarray]) -> tuple[CandidateLists, dict[str, int]]:
    """Takes candidates out of lists; those that stay keep their order and move up.

    Args:
        lists: of one direction, [A, K].
        reasons: name -> [A, K] bool or what fits it, True where a candidate is to go.

    Returns:
        Lists of the same width, and for every reason the candidates that went for it. A candidate with several
        reasons counts for the first.
    """
    stays = lists.candidates != NO_ROW
    dropped = {}
    for name, goes in reasons.items():
        going = stays & goes
        dropped[name] = int(going.sum())
        stays &= ~going
    order = np.argsort(~stays, axis=1, kind="stable")
    left = np.arange(stays.shape[1]) < stays.sum(axis=1)[:, None]
    candidates, scores = (np.take_along_axis(each, order, axis=1) for each in (lists.candidates, lists.scores))
    return CandidateLists(
        np.where(left, candidates, candidates.dtype.type(NO_ROW)), np.where(left, scores, np.float32(-np.inf))
    ), dropped


def outside(window: WindowSettings, lists: CandidateLists, positives: np.ndarray) -> dict[str, np.ndarray]:
    """Marks candidates outside a window, for `drop`.

    Args:
        window: its limits.
        lists: of one direction, hardest first and unfiltered: their columns are the ranks.
        positives: [A] score of each anchor with its positive; NaN for one without, which no margin limits.

    Returns:
        Name of each limit that is set -> bool that fits [A, K].
    """
    rank, scores, positive = np.arange(lists.scores.shape[1]), lists.scores, positives[:, None]
    marks = {
        "range_min": lambda limit: rank < limit,
        "range_max": lambda limit: rank >= limit,
        "max_score": lambda limit: scores > limit,
        "min_score": lambda limit: scores < limit,
        "absolute_margin": lambda limit: scores > positive - limit,
        "relative_margin": lambda limit: scores > positive - limit * np.abs(positive),
    }
    limits = window.model_dump(exclude_defaults=True)
    return {name: marked(limits[name]) for name, marked in marks.items() if name in limits}


def positive_scores(images: Rows, texts: Rows, owners: Rows) -> np.ndarray:
    """Score of every caption with its own image.

    Args:
        images: [N, D].
        texts: [T, D].
        owners: [T] image row of each caption, -1 for none.

    Returns:
        [T] float32, NaN for a caption of no image.
    """
    scores = np.full(texts.shape[0], np.nan, dtype=np.float32)
    for start in range(0, len(scores), _PAIRS_AT_ONCE):
        rows = owners.read(start, start + _PAIRS_AT_ONCE)
        owned = rows >= 0
        pairs = texts.read(start, start + len(rows))[owned], take(images, rows[owned])
        scores[start + np.flatnonzero(owned)] = np.einsum("td,td->t", *pairs)
    return scores


def lowest_positives(positives: np.ndarray, caption_image: np.ndarray, num_images: int) -> np.ndarray:
    """Lowest score of every image with an own caption.

    Args:
        positives: [T] score of every caption with its image, NaN for a caption of none.
        caption_image: [T] image row of each caption.
        num_images: N.

    Returns:
        [N] float32, NaN for an image without captions, which no margin limits.
    """
    lowest = np.full(num_images, np.nan, dtype=np.float32)
    owned = ~np.isnan(positives)
    np.fmin.at(lowest, caption_image[owned], positives[owned])
    return lowest


class DuplicateCaptions:
    """Finds candidates that are no negatives because captions say the same.

    Photographs of one scene are often captioned in the same words. The pair of an image and a foreign caption counts
    as a duplicate when the image has an own caption that is equal to it after lower-casing and without punctuation and
    white space.

    Args:
        captions: [T] texts; they are read once and not kept. Empty ones are not known, and no duplicates.
        caption_image: [T] image row of each caption.

    Example:
        >>> same = DuplicateCaptions(["A dog.", "a dog", "A cat"], np.array([0, 1, 2]))
        >>> same.are_duplicates(np.array([0, 0]), np.array([1, 2])).tolist()
        [True, False]
    """

    def __init__(self, captions: Iterable[str], caption_image: np.ndarray) -> None:
        hashes = np.fromiter(
            (_hashed(plain_text(text) if text else f"\0{row}") for row, text in enumerate(captions)),
            np.int64,
            count=len(caption_image),
        )
        _, self._keys, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        self._groups, self._images = len(counts), int(caption_image.max(initial=-1)) + 1
        self._repeated = int((counts[self._keys] > 1).sum())
        self._owned = np.unique(caption_image.astype(np.int64) * self._groups + self._keys)  # (image, text) as a number
        images_of_group = np.bincount(self._owned % self._groups, minlength=self._groups)
        self._shared = images_of_group[self._keys] > 1  # [T] several images have this text
        self._marked, self._seen = Counter[str](), Counter[str]()

    def are_duplicates(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Whether an image has an own caption equal to a given one.

        Args:
            images: [P] image rows.
            captions: [P] caption rows.

        Returns:
            [P] bool.
        """
        found = self._shared[captions]  # a text that a single image has is no duplicate under any other
        wanted = images[found].astype(np.int64) * self._groups + self._keys[captions[found]]
        place = np.searchsorted(self._owned, wanted).clip(max=len(self._owned) - 1)
        found[found] = self._owned[place] == wanted
        return found

    def mark(self, direction: str, part: slice, lists: CandidateLists) -> np.ndarray:
        """Marks candidates that are duplicates of a positive, and counts them.

        Args:
            direction: of the lists: captions of images, or images of captions.
            part: of the anchors.
            lists: of these.

        Returns:
            [a, K] bool.
        """
        row, column = (lists.candidates != NO_ROW).nonzero()
        anchors, candidates = row + part.start, lists.candidates[row, column].astype(np.int64)
        pairs = (anchors, candidates) if direction == DIRECTIONS[0] else (candidates, anchors)
        marks = np.zeros(lists.candidates.shape, dtype=bool)
        known = (pairs[0] < self._images) & (pairs[1] < len(self._keys))  # of further candidates there are no texts
        marks[row[known], column[known]] = self.are_duplicates(*(each[known] for each in pairs))
        self._marked[direction] += int(marks.sum())
        self._seen[direction] += len(row)
        return marks

    def report(self) -> dict[str, Any]:
        """How common duplicates are: figures ready for JSON.

        Returns:
            `captions` with a duplicate anywhere, under their own image included; `captions_of_other_images`, which are
            captions of another image too; and by direction the `candidates` that were marked and their `share`, 0..1.
        """
        share = {name: self._marked[name] / max(1, self._seen[name]) for name in DIRECTIONS}
        candidates = {name: self._marked[name] for name in DIRECTIONS}
        counts = {"captions": self._repeated, "captions_of_other_images": int(self._shared.sum())}
        return {**counts, "candidates": candidates, "share": share}


@cache
def _separates(character: str) -> bool:
    """Whether a character is white space or punctuation: of ASCII, or of Unicode's classes P and Z."""
    known = character.isspace() or character in string.punctuation
    return known or unicodedata.category(character)[0] in "PZ"


def plain_text(caption: str) -> str:
    """A caption in lower case without punctuation and white space."""
    return "".join(filterfalse(_separates, caption.lower()))


def _hashed(text: str) -> int:
    """64 bits of a text, which tell texts apart as surely as is needed for counting."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
