"""Captions as batches of token ids: those of one split, or any others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import UNKNOWN, Vocabulary
from itrpipe.models.base import PhraseBatch, TextBatch
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.training.captions import CaptionTokens, Cut, PieceIds, WordIds


@dataclass(frozen=True)
class TokenTexts:
    """Captions as one padded array of token ids.

    Attributes:
        tokens: int32 [T, W].
        lengths: int32 [T].
        cut: those of which the end is not read; None where all is.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    cut: Cut | None = None

    @classmethod
    def of(cls, split: Split, tokens: CaptionTokens) -> TokenTexts:
        """The captions of a split."""
        ids, lengths = tokens.encode_split(split)
        return cls(ids, lengths, tokens.cut(split, lengths) if isinstance(tokens, WordIds | PieceIds) else None)

    @property
    def num_captions(self) -> int:
        """T."""
        return len(self.lengths)

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Token ids of the given caption rows [T], cut to the longest of them."""
        lengths = self.lengths[rows]
        tokens = self.tokens[rows, : lengths.max()]
        return TextBatch(torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64)))


class PhraseTexts:
    """Captions as words and phrases of their scene graphs, without start and end.

    Args:
        phrases: of these captions, and perhaps others.
        caption_ids: T of them.
        vocabulary: gives words their ids.
        with_phrases: give the words only when off.

    Raises:
        DataError: a caption has no scene graph.

    Attributes:
        phrases, with_phrases: as given.
        graph_rows: [T] int64, row of each caption in `phrases`.
        lengths: [T] int64, words of each.
        cut: see `TokenTexts`.
    """

    def __init__(
        self, phrases: CaptionPhrases, caption_ids: list[str], vocabulary: Vocabulary, with_phrases: bool
    ) -> None:
        self.phrases, self.with_phrases = phrases, with_phrases
        self.graph_rows = phrases.rows(caption_ids)
        self.lengths = phrases.word_ids.counts[self.graph_rows]
        self.cut = Cut(int(phrases.longer[self.graph_rows].sum()), f"{phrases.max_words} words")
        self._ids = np.array([vocabulary.ids.get(word, UNKNOWN) for word in phrases.words] + [0])  # the last is padding

    @property
    def num_captions(self) -> int:
        """T."""
        return len(self.lengths)

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Words and phrases of the given caption rows [T], cut to the longest of them."""
        batch = self.phrases.batch(self.graph_rows[rows])
        kinds, tokens = torch.from_numpy(batch.kinds.astype(np.int64)), torch.from_numpy(batch.phrase_words)
        if not self.with_phrases:
            kinds, tokens = kinds[:, :0], tokens[:, :0]
        return TextBatch(
            torch.from_numpy(self._ids[batch.words]), torch.from_numpy(self.lengths[rows]), PhraseBatch(kinds, tokens)
        )
