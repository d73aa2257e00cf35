"""Judge pairs by the words of captions, without any pretrained weights.

A caption is the vector of its words, weighted by how often it has them and how few captions do, of length 1. The score
of an image and a caption is the mean cosine of all captions of the image to all captions of the caption's image.

Shapes: P pairs, n captions, T captions in all.

Source: TF-IDF with smoothed frequencies as of scikit-learn's TfidfVectorizer.
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
        total = len(material.captions)
        captions = np.repeat(np.arange(total), lengths)
        counted = Terms.summed(captions, np.array(words, np.int64), np.ones(len(words)), total, len(numbers))
        captions = counted.lists.owners()
        words = counted.lists.values
        rarity = np.log((1 + total) / (1 + np.bincount(words, minlength=len(numbers)))) + 1
        weights = counted.weights * rarity[words]
        lengths = np.sqrt(np.bincount(captions, weights**2, total))
        weights /= lengths[captions]
        self._captions = Terms(counted.lists, weights.astype(np.float32), len(numbers))
        groups = material.groups[captions]
        shares = weights / material.captions_of.counts[groups]
        self._means = Terms.summed(groups, words, shares, len(material.captions_of), len(numbers))

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P].

        Raises:
            UsageError: an image has no captions.
        """
        self._material.require_captions(images)
        return self._means.products(images, self._means, self._material.groups[captions])

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return mean cosines [n] float32 of captions to the others of their image; NaN where it has no others."""
        groups = self._material.groups[captions]
        counts = self._material.captions_of.counts[groups]
        sums = counts * self._means.products(groups, self._captions, captions)
        itself = self._captions.products(captions, self._captions, captions)
        others = np.where(counts > 1, counts - 1, np.nan)
        return ((sums - itself) / others).astype(np.float32)
