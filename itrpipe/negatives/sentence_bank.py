"""Negative sentences that captions have already, as token ids: the kept ones of `itrpipe synthesize`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from itrpipe.models.base import TextBatch


class SentenceBank:
    """S sentences of T captions.

    Args:
        tokens: int [S, W], those of a caption together, in the order of the captions, its hardest first.
        lengths: int [S].
        starts: int64 [T + 1], the sentences of caption t are those from `starts[t]` to `starts[t + 1]`.
    """

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, starts: np.ndarray) -> None:
        self._tokens, self._lengths, self._starts = tokens, lengths, starts

    def __len__(self) -> int:
        return len(self._tokens)

    def hardest(self, captions: np.ndarray, most: int) -> tuple[TextBatch, Tensor, Tensor]:
        """The first sentences of captions.

        Args:
            captions: rows [B].
            most: m, sentences of each at most.

        Returns:
            The n sentences; int64 [n], number of the caption of each; int64 [n], its place among those of the caption.
        """
        counts = np.minimum(np.diff(self._starts)[captions], most)
        return self._take(captions, counts, np.zeros(len(captions), dtype=np.int64))

    def drawn(self, captions: np.ndarray, most: int, rng: np.random.Generator) -> tuple[TextBatch, Tensor, Tensor]:
        """Sentences of captions that follow each other from a random one, and on from the first; see `hardest`."""
        held = np.diff(self._starts)[captions]
        return self._take(captions, np.minimum(held, most), rng.integers(0, np.maximum(held, 1)))

    def _take(self, captions: np.ndarray, counts: np.ndarray, offset: np.ndarray) -> tuple[TextBatch, Tensor, Tensor]:
        owners = np.repeat(np.arange(len(captions)), counts)
        places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        held = np.diff(self._starts)[captions]
        rows = self._starts[captions][owners] + (offset[owners] + places) % np.maximum(held[owners], 1)
        lengths = self._lengths[rows].astype(np.int64)
        tokens = self._tokens[rows, : lengths.max(initial=1)].astype(np.int64)
        texts = TextBatch(torch.from_numpy(tokens), torch.from_numpy(lengths))
        return texts, torch.from_numpy(owners), torch.from_numpy(places)
