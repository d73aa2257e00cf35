"""Labels of many captions as numbers, and the test whether an image has a label, for thousands of pairs at once.

Every contiguous part of every label gets a number of its own: a part of k words is the pair of its first k - 1 words,
which have a number already, and its last word. Equal numbers thus mean equal words; nothing is hashed and no two
parts can collide. A label is contained in a label of an image if its number is among the image's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

IMAGES_AT_ONCE = 8192


def ragged(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Indices of several runs, one behind the other.

    Args:
        starts: int64 [n], first index of each run.
        counts: int64 [n], its length, which may be zero.

    Returns:
        int64 [sum of counts].
    """
    before = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) + np.repeat(starts - before, counts)


def offsets(counts: np.ndarray) -> np.ndarray:
    """Where runs of these lengths start and end, int64 [n + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def numbered(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the distinct pairs.

    Args:
        first, second: int [n], 0..2^31 - 2 each.

    Returns:
        Index of one occurrence of each distinct pair, and the number of every pair.
    """
    keys = first.astype(np.int64) << 32 | second.astype(np.int64)
    _, where, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return where, numbers


@dataclass(frozen=True)
class Labels:
    """L distinct labels.

    Attributes:
        own: int32 [L], the number of the label itself.
        starts: int64 [L + 1], the parts of label l are `parts[starts[l]:starts[l + 1]]`.
        parts: int32, numbers of the distinct contiguous parts of each label, itself among them.
    """

    own: np.ndarray
    starts: np.ndarray
    parts: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, words: np.ndarray) -> Labels:
        """Numbers all parts of labels.

        Args:
            starts: int64 [L + 1], the words of label l are `words[starts[l]:starts[l + 1]]`, at least one.
            words: int, 0..V - 1; the part of one word has the number of the word.
        """
        counts = np.diff(starts)
        label = np.repeat(np.arange(len(counts)), counts)
        end = np.repeat(starts[1:], counts)
        own = np.empty(len(counts), dtype=np.int32)
        at, number, used, size = np.arange(len(words)), words.astype(np.int64), int(words.max(initial=-1)) + 1, 1
        pairs = []
        while len(at):
            pairs.append((label[at], number))
            whole = counts[label[at]] == size
            own[label[at[whole]]] = number[whole]  # a part as long as its label is the label
            longer = at + size < end[at]
            at, number = at[longer], number[longer]
            where, number = numbered(number, words[at + size])
            number, used, size = number + used, used + len(where), size + 1
        owners, parts = (np.concatenate(each) for each in zip(*pairs, strict=True)) if pairs else (label, label)
        where, _ = numbered(owners, parts)  # sorted by label, then by part
        return cls(own, offsets(np.bincount(owners[where], minlength=len(counts))), parts[where].astype(np.int32))


@dataclass(frozen=True)
class ImageLabels:
    """The labels of N images and all their parts.

    Attributes:
        starts: int64 [N + 1].
        parts: int32, numbers of parts, rising within an image.
    """

    starts: np.ndarray
    parts: np.ndarray

    @classmethod
    def of(cls, images: int, members: Sequence[tuple[np.ndarray, np.ndarray]], labels: Labels) -> ImageLabels:
        """Gathers the parts of the labels of every image.

        Args:
            images: N.
            members: pairs of offsets int64 [N + 1] and numbers 0..L - 1 of labels, repeated or not, between them.
            labels: L of them.
        """
        counts, parts = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int32)]
        for begin in range(0, images, IMAGES_AT_ONCE):
            size = min(IMAGES_AT_ONCE, images - begin)
            image, label = _between(members, begin, size)
            sizes = labels.starts[label + 1] - labels.starts[label]
            image, part = np.repeat(image, sizes), labels.parts[ragged(labels.starts[label], sizes)]
            where, _ = numbered(image, part)
            counts.append(np.bincount(image[where], minlength=size))
            parts.append(part[where])
        return cls(offsets(np.concatenate(counts)), np.concatenate(parts))

    def contain(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Whether an image has a label or contains it in one, for Q questions at once.

        Args:
            images: int64 [Q].
            numbers: int [Q], of labels (`Labels.own`).

        Returns:
            bool [Q].
        """
        low, high = self.starts[images], self.starts[images + 1]
        end = high
        # Bisection of all at once; the parts of an image are few hundred, so this ends after nine rounds or so.
        while np.any(low < high):
            middle = (low + high) // 2
            less = (low < high) & (self.parts[np.minimum(middle, len(self.parts) - 1)] < numbers)
            low, high = np.where(less, middle + 1, low), np.where(less, high, np.minimum(high, middle))
        inside = low < end
        inside[inside] = self.parts[low[inside]] == numbers[inside]
        return inside


def _between(members: Sequence[tuple[np.ndarray, np.ndarray]], begin: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of an image, counted from `begin`, and a label."""
    images, labels = [], []
    for starts, numbers in members:
        own = starts[begin : begin + size + 1]
        images.append(np.repeat(np.arange(size), np.diff(own)))
        labels.append(numbers[own[0] : own[-1]])
    image, label = np.concatenate(images), np.concatenate(labels)
    where, _ = numbered(image, label)
    return image[where], label[where]
