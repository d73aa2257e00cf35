"""Captions that say the same: as candidates of each other's images they are no negatives.

Photographs of one scene are often captioned in the same words. The pair of an image and a foreign caption counts
as a duplicate when the image has an own caption that is equal to it after lower-casing and without punctuation and
white space, or, more widely, with the same set of words.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.mining.lists import NO_ROW, CandidateLists


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
        captions: [T] texts.
        caption_image: [T] image row of each caption.
        token_sets: whether captions with the same set of words count as equal, in any order and number.

    Example:
        >>> same = DuplicateCaptions(["A dog.", "a dog", "A cat"], np.array([0, 1, 2]))
        >>> same.are_duplicates(np.array([0, 0]), np.array([1, 2])).tolist()
        [True, False]
    """

    def __init__(self, captions: Sequence[str], caption_image: np.ndarray, token_sets: bool = False) -> None:
        plain = word_sets(captions) if token_sets else plain_texts(captions)
        numbers: dict[str, int] = {}
        keys = np.array([numbers.setdefault(text, len(numbers)) for text in plain], dtype=np.int64)
        counts = np.bincount(keys)
        self._keys = keys
        self._groups = len(counts)
        self._repeated = counts[keys] > 1
        self._owned = np.unique(caption_image.astype(np.int64) * self._groups + self._keys)  # (image, text) as a number
        images_of_group = np.bincount(self._owned % self._groups, minlength=self._groups)
        self._shared = images_of_group[keys] > 1  # [T] several images have this text

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

    def of_texts(self, lists: CandidateLists) -> np.ndarray:
        """[N, K] bool: candidate captions that equal an own caption of the image."""
        row, column = (lists.candidates != NO_ROW).nonzero()
        return self._marked(lists, row, column, row, lists.candidates[row, column])

    def of_images(self, lists: CandidateLists) -> np.ndarray:
        """[T, K] bool: candidate images with an own caption that equals the caption."""
        row, column = (lists.candidates != NO_ROW).nonzero()
        return self._marked(lists, row, column, lists.candidates[row, column], row)

    def _marked(
        self, lists: CandidateLists, row: np.ndarray, column: np.ndarray, images: np.ndarray, captions: np.ndarray
    ) -> np.ndarray:
        marks = np.zeros(lists.candidates.shape, dtype=bool)
        marks[row, column] = self.are_duplicates(images, captions)
        return marks

    def report(self, texts_for_images: CandidateLists, images_for_texts: CandidateLists) -> DuplicateReport:
        """Counts duplicates among the captions and in the lists of both directions."""
        totals = {
            "texts_for_images": int(texts_for_images.counts.sum()),
            "images_for_texts": int(images_for_texts.counts.sum()),
        }
        candidates = {
            "texts_for_images": int(self.of_texts(texts_for_images).sum()),
            "images_for_texts": int(self.of_images(images_for_texts).sum()),
        }
        share = {name: count / max(1, totals[name]) for name, count in candidates.items()}
        return DuplicateReport(int(self._repeated.sum()), int(self._shared.sum()), candidates, share)


def plain_texts(captions: Sequence[str]) -> list[str]:
    """Captions in lower case without punctuation and white space."""
    lowered = [caption.lower() for caption in captions]
    table = dict.fromkeys(_separators(lowered))
    return [caption.translate(table) for caption in lowered]


def word_sets(captions: Sequence[str]) -> list[str]:
    """The words of every caption in lower case and alphabetical order, each once."""
    lowered = [caption.lower() for caption in captions]
    table = dict.fromkeys(_separators(lowered), " ")
    return [" ".join(sorted(set(caption.translate(table).split()))) for caption in lowered]


def _separators(texts: Iterable[str]) -> list[int]:
    """Code points of the punctuation and white space that occur: ASCII's, and of Unicode's classes P and Z."""
    occurring = set().union(*texts)
    return [
        ord(character)
        for character in occurring
        if character in string.punctuation or character.isspace() or unicodedata.category(character)[0] in "PZ"
    ]
