"""Captions that say the same: as candidates of each other's images they are no negatives.

Photographs of one scene are often captioned in the same words. The pair of an image and a foreign caption counts
as a duplicate when the image has an own caption that is equal to it after lower-casing and without punctuation and
white space.
"""

from __future__ import annotations

import hashlib
import string
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from itrpipe.mining.lists import NO_ROW, CandidateLists
from itrpipe.mining.mined import DIRECTIONS


@dataclass(frozen=True)
class DuplicateReport:
    """How common duplicates are.

    Attributes:
        captions: captions with a duplicate anywhere, under their own image included.
        captions_of_other_images: captions that are also captions of another image.
        candidates: direction -> candidates of the lists that are duplicates of a positive.
        share: direction -> share of the candidates of the lists, 0..1.
    """

    captions: int
    captions_of_other_images: int
    candidates: dict[str, int]
    share: dict[str, float]


class DuplicateCaptions:
    """Finds duplicates among the candidates of lists.

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
        self._marked: dict[str, int] = dict.fromkeys(DIRECTIONS, 0)
        self._seen: dict[str, int] = dict.fromkeys(DIRECTIONS, 0)

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

    def report(self) -> DuplicateReport:
        """Counts duplicates among the captions, and those that were marked in the lists."""
        share = {name: count / max(1, self._seen[name]) for name, count in self._marked.items()}
        return DuplicateReport(self._repeated, int(self._shared.sum()), dict(self._marked), share)


class _Separators(dict[int, str | None]):
    """What becomes of each character: ASCII's punctuation and Unicode's classes P and Z go, all others stay."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        separates = character in string.punctuation or character.isspace() or unicodedata.category(character)[0] in "PZ"
        self[code] = None if separates else character
        return self[code]


_SEPARATORS = _Separators()


def plain_text(caption: str) -> str:
    """A caption in lower case without punctuation and white space."""
    return caption.lower().translate(_SEPARATORS)


def _hashed(text: str) -> int:
    """64 bits of a text, which tell texts apart as surely as is needed for counting."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
