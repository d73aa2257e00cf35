"""Judge pairs by the words of captions, without any pretrained weights.

The captions of an image are one text. A word weighs as often as it is said, times the logarithm of how rare the texts
are that have it. The score of an image and a caption is the cosine of the image's text and that of the image which the
caption belongs to.

Shapes: P pairs, n captions, T captions in all.

Source: Spärck Jones, "A statistical interpretation of term specificity", 1972; smoothed, ln((1 + n) / (1 + df)).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from itrpipe.datasets.vocabulary import tokenize
from itrpipe.judging.material import Material
from itrpipe.judging.terms import Terms


class TfidfJudge:
    """Compares the words of captions.

    Args:
        material: the captions.
    """

    def __init__(self, material: Material) -> None:
        self._material = material
        numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
        words = []
        lengths = []
        for caption in material.captions:
            tokens = tokenize(caption)
            words += [numbers[token] for token in tokens]
            lengths.append(len(tokens))
        words = np.array(words, np.int64)
        captions = np.repeat(np.arange(len(lengths)), lengths)
        groups = material.groups[captions]
        count = len(material.captions_of)
        size = len(numbers)
        said = Terms.summed(groups, words, np.ones(len(words)), count, size)
        rarity = np.log((1 + count) / (1 + np.bincount(said.lists.values, minlength=size)))
        self._captions = Terms.summed(captions, words, rarity[words], len(lengths), size)
        self._groups = Terms.summed(groups, words, rarity[words], count, size)

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P].

        Raises:
            UsageError: an image has no captions.
        """
        self._material.require_captions(images)
        groups = self._material.groups[captions]
        squares = self._groups.squares
        return _cosines(self._groups.products(images, self._groups, groups), squares[images] * squares[groups])

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return cosines [n] float32 of captions and the others of their image; NaN where it has no others."""
        groups = self._material.groups[captions]
        products = self._groups.products(groups, self._captions, captions)
        squares = self._captions.squares[captions]
        others = self._groups.squares[groups] - 2 * products + squares
        cosines = _cosines(products - squares, squares * others)
        cosines[self._material.captions_of.counts[groups] < 2] = np.nan
        return cosines


def _cosines(products: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return cosines [P] of inner products and of products of squared lengths; 0 where a text has no words."""
    lengths = np.sqrt(np.maximum(squares, 0))
    return np.divide(products, lengths, out=np.zeros(len(products), np.float32), where=lengths > 0)
