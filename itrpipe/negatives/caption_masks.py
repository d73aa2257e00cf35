"""What of the captions of a training set is masked, and what all captions of an image together are known to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from itrpipe.negatives.masking import (
    MaskedCaptions,
    MaskTokens,
    mask_captions,
    over_pieces,
    single_positions,
    with_single_positions,
)

NO_WORD = -1
"""In place of the number of a word, for tokens that are part of none."""

Compare = Literal["piece", "off"]
Candidates = Callable[[np.ndarray], np.ndarray]
"""Rows [T] of captions to bool [T, P, words], words that are masked together."""


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids that are no words.

    Attributes:
        mask_id: of `[MASK]`.
        others: padding, start, end, unknown and the like.
        random_ids: first token id of ordinary words, and one more than the last.
    """

    mask_id: int
    others: tuple[int, ...]
    random_ids: tuple[int, int]

    @property
    def all(self) -> tuple[int, ...]:
        """`[MASK]` and the others."""
        return (self.mask_id, *self.others)


class CaptionMasks:
    """The captions of a training set, for those who mask them and write something else.

    Args:
        tokens: int64 [T, W], padded with 0.
        words: int64 [T, W], number of the word that each token is part of; `NO_WORD` for start, end and padding.
        image_rows: int64 [T], row of each caption's image.
        candidates: what is masked together; None masks single tokens.
        specials: token ids that are no words.
        compare: whether refilled tokens are compared with those of the captions of the image (`piece`, or `off`).
    """

    def __init__(
        self,
        tokens: np.ndarray,
        words: np.ndarray,
        image_rows: np.ndarray,
        candidates: Candidates | None,
        specials: SpecialTokens,
        compare: Compare,
    ) -> None:
        self._words, self._image_rows = words, image_rows
        self._candidates, self.specials, self._compares = candidates, specials, compare != "off"
        # One more row, of padding, for images with fewer captions than others.
        self._tokens = np.pad(tokens, ((0, 1), (0, 0)))
        self._siblings = _Siblings(image_rows)

    def draw(self, rows: np.ndarray, width: int, copies: int, noise: bool, rng: np.random.Generator) -> MaskedCaptions:
        """Masked copies of captions.

        Args:
            rows: [T] of the captions.
            width: W, tokens of the longest of them.
            copies: K.
            noise: put random words at 10 % of the labelled positions and leave 10 % as they are.
            rng: source of randomness.
        """
        mask = MaskTokens(self.specials.mask_id, self.specials.random_ids, noise)
        return mask_captions(self._tokens[rows, :width], self._groups(rows, width), copies, mask, rng)

    def known(self, rows: np.ndarray) -> Tensor | None:
        """Sorted tokens int64 [T, n] of all captions of the images of captions [T]; None where nothing is compared.

        What is no word stands there as -1.
        """
        if not self._compares:
            return None
        tokens = self._tokens[self._siblings.of(self._image_rows[rows])].reshape(len(rows), -1)
        return torch.from_numpy(np.sort(np.where(np.isin(tokens, self.specials.all), -1, tokens), axis=1))

    def _groups(self, rows: np.ndarray, width: int) -> np.ndarray:
        """What is masked together, bool [T, P, W]."""
        words = self._words[rows, :width]
        if self._candidates is None:
            return single_positions(words != NO_WORD)
        return with_single_positions(over_pieces(self._candidates(rows), words), words != NO_WORD)


class _Siblings:
    """The captions of every image.

    Args:
        image_rows: int64 [captions], row of each caption's image.
    """

    def __init__(self, image_rows: np.ndarray) -> None:
        self._order = np.argsort(image_rows, kind="stable")
        self._counts = np.bincount(image_rows)
        self._starts = np.cumsum(self._counts) - self._counts

    def of(self, images: np.ndarray) -> np.ndarray:
        """Rows int64 [T, n] of the captions of images [T]; behind the last one there is the number of all captions."""
        place = np.arange(int(self._counts[images].max()))
        real = place < self._counts[images, None]
        found = self._starts[images, None] + place
        return np.where(real, self._order[np.where(real, found, 0)], len(self._order))
