"""Further positives of images, made of their captions while a batch is made: longer ones, and shorter ones.

Source: Gong, Mai and Huang, "AsCL: An Asymmetry-sensitive Contrastive Learning Method for Image-Text Retrieval with
Cross-Modal Fusion", II-B.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch

from itrpipe.models.base import TextBatch
from itrpipe.negatives.asymmetry import CaptionPairs, Tokens, either, joined, shortened


class CaptionSource(Protocol):
    """A training set that gives captions by their rows.

    Attributes:
        caption_image: [T] row of the image that each caption describes.
    """

    caption_image: np.ndarray

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Tokens of caption rows [T]."""
        ...


class CaptionPositives:
    """Makes a further caption (T^+) of every pair of a batch.

    Args:
        kind: two captions of the image `joined` (Asymmetry-II), the first half of the pair's own, `shortened`
            (Asymmetry-III), or for each pair one of both, as probably the one as the other (`either`).
        data: the training set.
        max_tokens: longest caption that joining makes, start and end included.
        ends: how many tokens stand before the words of every caption and how many behind.

    Attributes:
        ends: as given.
    """

    def __init__(
        self,
        kind: Literal["joined", "shortened", "either"],
        data: CaptionSource,
        max_tokens: int,
        ends: tuple[int, int] = (1, 1),
    ) -> None:
        self._kind, self._data, self._max_tokens = kind, data, max_tokens
        self._pairs = CaptionPairs(data.caption_image)
        self.ends = ends

    def draw(self, images: np.ndarray, own: Tokens, rng: np.random.Generator) -> Tokens:
        """T^+ of pairs.

        Args:
            images: [B] rows of the images.
            own: the captions of the pairs, B of them.
            rng: draws what is joined, and for `either` which of both is taken.
        """
        short = shortened(own)
        if self._kind == "shortened":
            return short
        first, second = (tokens_of(self._data.texts(rows), self.ends) for rows in self._pairs.draw(images, rng))
        long = joined(first, second, self._max_tokens)
        return long if self._kind == "joined" else either(rng.random(len(images)) < 0.5, long, short)


def tokens_of(texts: TextBatch, ends: tuple[int, int] = (1, 1)) -> Tokens:
    """Captions of a batch on the CPU as arrays, which share its memory."""
    return Tokens(texts.tokens.numpy(), texts.lengths.numpy(), ends)


def batch_of(captions: Tokens) -> TextBatch:
    """Captions as a batch, cut to the longest of them."""
    lengths = torch.from_numpy(captions.lengths.astype(np.int64))
    width = int(lengths.max())
    return TextBatch(torch.from_numpy(captions.tokens[:, :width].astype(np.int64)), lengths)
