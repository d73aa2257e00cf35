"""What of the captions of a training set is masked, and what all captions of an image together are known to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from itrpipe.negatives.word_keys import TokenKeys

NO_WORD = -1
"""In place of the number of a word, for tokens that are part of none."""

Compare = Literal["piece", "word", "off"]
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
        pieces: V tokens as the vocabulary writes them.
        candidates: what is masked together; None masks single tokens.
        specials: token ids that are no words.
        compare: what refilled words are compared with the captions of the image by: token ids (`piece`), whole words
            without case (`word`), or not at all (`off`).

    Attributes:
        keys: how words are compared; None where they are not.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        words: np.ndarray,
        image_rows: np.ndarray,
        pieces: Sequence[str],
        candidates: Candidates | None,
        specials: SpecialTokens,
        compare: Compare,
    ) -> None:
        self._words, self._image_rows = words, image_rows
        self._candidates, self.specials = candidates, specials
        # One more row, of padding, for images with fewer captions than others.
        self._tokens = np.pad(tokens, ((0, 1), (0, 0)))
        self._siblings = _Siblings(image_rows)
        self.keys = {
            "piece": lambda: TokenKeys.of_tokens(len(pieces), specials.all),
            "word": lambda: TokenKeys.of_words(pieces, specials.all),
            "off": lambda: None,
        }[compare]()

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

    def siblings(self, rows: np.ndarray) -> np.ndarray:
        """Tokens int64 [T, n, W] of all captions of the images of captions [T], with rows of padding behind them."""
        return self._tokens[self._siblings.of(self._image_rows[rows])]

    def _groups(self, rows: np.ndarray, width: int) -> np.ndarray:
        """What is masked together, bool [T, P, W]."""
        words = self._words[rows, :width]
        if self._candidates is None:
            return single_positions(words != NO_WORD)
        return with_single_positions(over_pieces(self._candidates(rows), words), words != NO_WORD)


def known_words(keys: TokenKeys | None, siblings: np.ndarray, device: torch.device | str) -> Tensor | None:
    """Keys of the words of all captions of each image, int64 [T, n W] of siblings [T, n, W]; None without keys."""
    return None if keys is None else keys.of_captions(torch.from_numpy(siblings).to(device))


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
