"""Judge pairs by terms that captions have in common, such as words, without any pretrained weights.

The captions of an image are one text. A term weighs as often as the text has it, times the logarithm of how rare the
texts are that have it at all (TF-IDF). The score of an image and a caption is the cosine of the image's text and that
of the image which the caption belongs to.

Shapes: P pairs, n captions, T captions in all, v terms of all captions.

Source: Spärck Jones, "A statistical interpretation of term specificity", 1972; smoothed, ln((1 + n) / (1 + df)).
"""

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from itrpipe.judging.material import Material
from itrpipe.judging.opened import OpenedJudge

_PAIRS = 65_536


class TermsJudge(OpenedJudge):
    """Compares the terms of captions.

    Args:
        material: whose captions belong to which image.
        captions: [v] int64 row of each term's caption.
        terms: v texts.
    """

    def __init__(self, material: Material, captions: np.ndarray, terms: pa.StringArray) -> None:
        self.material = material
        encoded = terms.dictionary_encode()
        columns = encoded.indices.to_numpy().astype(np.int64)
        texts = material.groups[captions]
        count = len(material.captions_of)
        size = len(encoded.dictionary)
        pairs = np.unique(texts * size + columns)  # of a text and a term that it has
        texts_with_term = np.bincount(pairs % size, minlength=size)
        rarity = np.log((1 + count) / (1 + texts_with_term))
        weights = rarity[columns]
        self._captions = _sum_weights(captions, columns, weights, (len(material.owners), size))
        self._texts = _sum_weights(texts, columns, weights, (count, size))
        rows = np.arange(count)
        self._squares = _products(self._texts, rows, self._texts, rows)

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P].

        Raises:
            UsageError: an image has no captions.
        """
        self.material.require_captions(images)
        others = self.material.groups[captions]
        products = _products(self._texts, images, self._texts, others)
        return _cosines(products, self._squares[images], self._squares[others])

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return cosines [n] float32 of captions and the others of their image; NaN where it has no others."""
        texts = self.material.groups[captions]
        products = _products(self._texts, texts, self._captions, captions)
        squares = _products(self._captions, captions, self._captions, captions)
        # The text without the caption is the difference of two vectors.
        squares_of_others = self._squares[texts] - 2 * products + squares
        cosines = _cosines(products - squares, squares, squares_of_others)
        cosines[self.material.captions_of.counts[texts] < 2] = np.nan
        return cosines


def _sum_weights(rows: np.ndarray, columns: np.ndarray, weights: np.ndarray, shape: tuple[int, int]) -> Tensor:
    """Return a sparse matrix with the sum of the weights [v] in each place, which rows [v] and columns [v] tell."""
    places = torch.from_numpy(np.stack([rows, columns]))
    values = torch.from_numpy(weights.astype(np.float32))
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=True).coalesce()


def _products(left: Tensor, rows: np.ndarray, right: Tensor, other_rows: np.ndarray) -> np.ndarray:
    """Return the inner products [P] float32 of rows [P] of a sparse matrix and rows [P] of another one."""
    products = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        left_rows = left.index_select(0, torch.from_numpy(rows[pairs]))
        right_rows = right.index_select(0, torch.from_numpy(other_rows[pairs]))
        products[pairs] = torch.sparse.sum(left_rows * right_rows, dim=1).to_dense().numpy()
    return products


def _cosines(products: np.ndarray, squares: np.ndarray, other_squares: np.ndarray) -> np.ndarray:
    """Return cosines [P] of inner products and squared lengths; 0 where a text has no terms."""
    lengths = np.sqrt(np.maximum(squares * other_squares, 0))
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
