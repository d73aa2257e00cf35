"""Candidates that leave mined lists again: those outside a window, and those that say what the positive says.

Candidates leave by their rank, by their score, by its distance to the score of the positive, and where their caption
says what a caption of the image says. The names of the limits are those of sentence-transformers'
`mine_hard_negatives`. The positive of a caption is its image; the positive of an image is the own caption with the
lowest score: training pairs an image with each of its captions in turn and draws from the same list every time, so a
margin holds for all these pairs only if it holds for that one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np

from itrpipe.mining.lists import NO_ROW, CandidateLists, slices
from itrpipe.storage.arrays import Rows, take

_PAIRS_AT_ONCE = 1 << 12


def drop(
    lists: CandidateLists,
    reasons: Mapping[str, np.ndarray],
) -> tuple[CandidateLists, dict[str, int]]:
    """Take candidates out of lists; those that stay keep their order and move up.

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
    if not any(dropped.values()):
        return lists, dropped
    order = np.argsort(~stays, axis=1, kind="stable")
    candidates = np.where(stays, lists.candidates, NO_ROW)
    scores = np.where(stays, lists.scores, -np.inf)
    remaining = CandidateLists(
        np.take_along_axis(candidates, order, axis=1),
        np.take_along_axis(scores, order, axis=1),
    )
    return remaining, dropped


def outside(
    limits: Mapping[str, float],
    lists: CandidateLists,
    positives: np.ndarray,
) -> dict[str, np.ndarray]:
    """Mark candidates outside a window, for `drop`.

    Args:
        limits: those of `WindowSettings` that are set, by their names.
        lists: of one direction, hardest first and unfiltered: their columns are the ranks.
        positives: [A] score of each anchor with its positive; NaN for one without, which no margin limits.

    Returns:
        Name of each limit that is set -> bool that fits [A, K].
    """
    scores = lists.scores
    ranks = np.arange(scores.shape[1])
    positive = positives[:, None]
    marks = {}
    if "range_min" in limits:
        marks["range_min"] = ranks < limits["range_min"]
    if "range_max" in limits:
        marks["range_max"] = ranks >= limits["range_max"]
    if "max_score" in limits:
        marks["max_score"] = scores > limits["max_score"]
    if "min_score" in limits:
        marks["min_score"] = scores < limits["min_score"]
    if "absolute_margin" in limits:
        marks["absolute_margin"] = scores > positive - limits["absolute_margin"]
    if "relative_margin" in limits:
        margin = limits["relative_margin"] * np.abs(positive)
        marks["relative_margin"] = scores > positive - margin
    return marks


def positive_scores(images: Rows, texts: Rows, owners: np.ndarray) -> np.ndarray:
    """Score every caption with its own image.

    Args:
        images: [N, D].
        texts: [T, D].
        owners: [T] image row of each caption, -1 for none.

    Returns:
        [T] float32, NaN for a caption of no image.
    """
    scores = np.full(len(owners), np.nan, dtype=np.float32)
    for part in slices(len(owners), _PAIRS_AT_ONCE):
        is_owned = owners[part] >= 0
        text_vectors = texts.read(part.start, part.stop)[is_owned]
        image_vectors = take(images, owners[part][is_owned])
        scores[part][is_owned] = np.einsum("td,td->t", text_vectors, image_vectors)
    return scores


def better_than_another(
    images: Rows,
    texts: Rows,
    owners: np.ndarray,
    positives: np.ndarray,
) -> float:
    """Return the share of captions whose own image scores above another one, half of all captions away; 1 for none.

    Args:
        images, texts, owners: as of `positive_scores`.
        positives: [T] what it returns.
    """
    other_owners = np.roll(owners, len(owners) // 2)
    others = positive_scores(images, texts, other_owners)
    has_both = ~np.isnan(positives + others)
    if not has_both.any():
        return 1.0
    is_better = positives > others
    return float(is_better[has_both].mean())


def lowest_positives(
    positives: np.ndarray,
    caption_image: np.ndarray,
    num_images: int,
) -> np.ndarray:
    """Find the lowest score of every image with an own caption.

    Args:
        positives: [T] score of every caption with its image, NaN for a caption of none.
        caption_image: [T] image row of each caption.
        num_images: N.

    Returns:
        [N] float32, NaN for an image without captions, which no margin limits.
    """
    lowest = np.full(num_images, np.nan, dtype=np.float32)
    is_owned = ~np.isnan(positives)
    np.fmin.at(lowest, caption_image[is_owned], positives[is_owned])
    return lowest


class DuplicateCaptions:
    """Finds candidates that are no negatives because captions say the same.

    Photographs of one scene are often captioned in the same words. The pair of an image and a foreign caption counts
    as a duplicate when the image has an own caption with the same `plain_text`.

    Args:
        captions: [T] texts; they are read once and not kept. Empty ones are not known, and no duplicates.
        caption_image: [T] image row of each caption.

    Example:
        >>> same = DuplicateCaptions(["A dog.", "a dog", "A cat"], np.array([0, 1, 2]))
        >>> same.has(np.array([1, 2]), np.array([0, 0])).tolist()
        [True, False]
    """

    def __init__(self, captions: Iterable[str], caption_image: np.ndarray) -> None:
        # 64 bits of a text tell texts apart as surely as is needed for counting.
        hashed = (hash(plain_text(text) or f"\0{row}") for row, text in enumerate(captions))
        hashes = np.fromiter(hashed, np.int64, count=len(caption_image))
        _, self._keys, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        self._groups = len(counts)
        self._images = int(caption_image.max(initial=-1)) + 1
        is_repeated = counts[self._keys] > 1
        self._repeated = int(is_repeated.sum())
        pairs = caption_image.astype(np.int64) * self._groups + self._keys  # (image, text) as a number
        self._owned = np.unique(pairs)
        images_of_group = np.bincount(self._owned % self._groups, minlength=self._groups)
        self._shared = images_of_group[self._keys] > 1  # [T] several images have this text

    def has(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Return whether each caption says what an own caption of the image says.

        Args:
            captions, images: rows; of others than these there are no texts, nor of -1.

        Returns:
            bool of the shape that both broadcast to.
        """
        captions, images = np.broadcast_arrays(captions, images)
        is_duplicate = (captions >= 0) & (captions < len(self._keys))
        is_duplicate &= (images >= 0) & (images < self._images)
        # What a single image has is no duplicate under any other.
        is_duplicate &= self._shared.take(captions, mode="clip")
        keys = self._keys[captions[is_duplicate]]
        pairs = images[is_duplicate].astype(np.int64) * self._groups + keys
        place = np.searchsorted(self._owned, pairs)
        place = place.clip(max=len(self._owned) - 1)
        is_duplicate[is_duplicate] = self._owned[place] == pairs
        return is_duplicate

    def again(self, captions: np.ndarray) -> np.ndarray:
        """Tell which captions [a, K], rows or -1, say the same as an earlier one of their list; bool [a, K]."""
        keys = np.where(captions == NO_ROW, -1, self._keys[captions])
        order = np.argsort(keys, axis=1, kind="stable")
        ordered = np.take_along_axis(keys, order, axis=1)
        repeats_last = ordered[:, 1:] == ordered[:, :-1]
        is_repeated = np.zeros(keys.shape, dtype=bool)
        np.put_along_axis(is_repeated, order[:, 1:], repeats_last, axis=1)
        return is_repeated

    def report(self) -> dict[str, int]:
        """Count `captions` with a duplicate anywhere, also under their own image, and `captions_of_other_images`."""
        return {
            "captions": self._repeated,
            "captions_of_other_images": int(self._shared.sum()),
        }


_APOSTROPHES = re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])")
"""Within a word: "it's" reads like "its"."""
_SIGNS = re.compile(r"[\d'%#]")
"""An ASCII text without them, as most are, has no punctuation that stays."""
_BLANKS = dict.fromkeys(map(ord, '!"&()*,-./:;?@[\\]_{}`^'), " ")
_PUNCTUATION = re.compile(
    r"""
    (                               # What stays, since it changes what is said:
        (?<=\d) [.,:/'-] (?=\d)     # within a number, as in 1.5, 1/2 and 10:30
      | (?<!\w) - (?=\.?\d)        # a sign
      | (?<!\w) \. (?=\d)          # .5
      | (?<=[^\W\d_]) \#           # C#
      | \# (?=\d)
      | %
    )
    | [!-#%-*,-/:;?@\[-\]_{}`^]     # ASCII's punctuation; of its symbols + < = > | ~ and $ stay
    """,
    re.VERBOSE,
)


@cache
def _plain_character(character: str) -> str:
    """Return a character without what the eye does not see: no format characters, one kind of dash and of blank."""
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    if category == "Pd" or character == "\u2212":
        return "-"
    if category[0] in "PZ" and not character.isascii():
        return " "
    return character


def plain_text(caption: str) -> str:
    """Return what a caption says, for comparing it with others.

    Case, blanks and punctuation do not count, nor how characters are encoded (NFKC, zero-width characters). Numbers
    with their signs and separators, currencies, `%`, `+`, and the `#` of `C#` do: "1.5 V" is not "15 V".
    """
    text = caption.casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).casefold()
        text = text.replace("\u2019", "'")
        text = "".join(map(_plain_character, text))
    elif not _SIGNS.search(text):
        return " ".join(text.translate(_BLANKS).split())
    text = _APOSTROPHES.sub("", text)
    text = _PUNCTUATION.sub(lambda sign: sign[1] or " ", text)
    text = text.replace("%", " % ")
    return " ".join(text.split())
