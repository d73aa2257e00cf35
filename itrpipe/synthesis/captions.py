"""The captions of a training set as token ids, with the words that the tokens are of, and what is masked together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary, spans
from itrpipe.negatives.caption_masks import NO_WORD
from itrpipe.negatives.masking import over_pieces
from itrpipe.scene_graph.phrases import MaskCandidates

CONTINUATION = "##"
"""Mark of a piece that goes on with the word before it, in BERT's vocabularies."""
MASK = "<mask>"
"""What `[MASK]` is called behind the words of a vocabulary of our own."""


@dataclass(frozen=True)
class TokenCaptions:
    """The captions of a training set as the model reads them.

    Attributes:
        caption_ids, texts: of each.
        image_ids: of each image.
        image_rows: int64 [captions], row of each caption's image.
        tokens: int64 [captions, W], padded with 0; start and end among them.
        lengths: int64 [captions].
        words: int64 [captions, W], number of the word that each token is part of; `NO_WORD` for start, end and padding.
        spans: for each caption int [words, 2], first character of each word and one more than its last.
        pieces: V tokens as the vocabulary writes them.
    """

    caption_ids: Sequence[str]
    texts: Sequence[str]
    image_ids: Sequence[str]
    image_rows: np.ndarray
    tokens: np.ndarray
    lengths: np.ndarray
    words: np.ndarray
    spans: Sequence[np.ndarray]
    pieces: Sequence[str]

    @classmethod
    def of_words(cls, split: Split, vocabulary: Vocabulary) -> TokenCaptions:
        """Captions of words of our own vocabulary, between start and end; `[MASK]` follows the last word.

        Args:
            split: the captions.
            vocabulary: of the model.
        """
        tokens, lengths = vocabulary.encode_split(split)
        place = np.arange(tokens.shape[1])
        words = np.where((place > 0) & (place < lengths[:, None] - 1), place - 1, NO_WORD)
        places = [np.array(spans(text), dtype=np.int64).reshape(-1, 2) for text in split.texts]
        return cls._of(split, tokens, lengths, words, places, (*vocabulary.words, MASK))

    @classmethod
    def of_pieces(cls, split: Split, tokenizer: Any, max_tokens: int) -> TokenCaptions:
        """Captions of pieces of words, by a fast tokenizer of transformers.

        Args:
            split: the captions.
            tokenizer: of the model.
            max_tokens: tokens kept of a caption, start and end among them.
        """
        whole = tokenizer(split.texts, return_offsets_mapping=True)
        read = tokenizer(split.texts, truncation=True, max_length=max_tokens)
        lengths = np.array([len(ids) for ids in read["input_ids"]], dtype=np.int64)
        inside = np.arange(int(lengths.max(initial=1))) < lengths[:, None]
        tokens, words = np.zeros(inside.shape, dtype=np.int64), np.full(inside.shape, NO_WORD)
        tokens[inside] = [token for ids in read["input_ids"] for token in ids]
        words[inside] = [word for row in range(len(lengths)) for word in _owners(read, row)]
        # Of a word that is cut off in the middle the characters are known all the same.
        places = [_word_spans(_owners(whole, row), at) for row, at in enumerate(whole["offset_mapping"])]
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        return cls._of(split, tokens, lengths, words, places, pieces)

    @classmethod
    def _of(
        cls,
        split: Split,
        tokens: np.ndarray,
        lengths: np.ndarray,
        words: np.ndarray,
        places: Sequence[np.ndarray],
        pieces: Sequence[str],
    ) -> TokenCaptions:
        names = (split.caption_ids.tolist(), split.texts, split.image_ids.tolist(), split.caption_image)
        return cls(*names, tokens.astype(np.int64), lengths.astype(np.int64), words, places, pieces)


class GraphCandidates:
    """What scene graphs say is masked together, in the words of captions as a model reads them.

    Args:
        captions: as the model reads them.
        graphs: of all of them.

    Raises:
        DataError: a caption has no scene graph.
    """

    def __init__(self, captions: TokenCaptions, graphs: MaskCandidates) -> None:
        self._spans, self._graphs = captions.spans, graphs
        self._rows = graphs.rows(captions.caption_ids)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Candidates bool [T, P, words] of the captions of the given rows [T]."""
        width = max((len(self._spans[row]) for row in rows), default=0)
        places = np.zeros((len(rows), width, 2), dtype=np.int64)
        for number, row in enumerate(rows):
            places[number, : len(self._spans[row])] = self._spans[row]
        graph_rows = self._rows[rows]
        words = self._graphs.words_at(graph_rows, places[..., 0], places[..., 1])
        return over_pieces(self._graphs.batch(graph_rows), words)


def _owners(read: Any, row: int) -> list[int]:
    """The word that each token of a caption is of."""
    return [NO_WORD if word is None else word for word in read.word_ids(row)]


def _word_spans(owners: Sequence[int], pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """First character of each word and one more than its last, int64 [words, 2], from those of its pieces."""
    found = np.zeros((max(owners, default=NO_WORD) + 1, 2), dtype=np.int64)
    found[:, 0] = np.iinfo(np.int64).max
    for word, (start, end) in zip(owners, pieces, strict=True):
        if word != NO_WORD:
            found[word] = min(found[word, 0], start), max(found[word, 1], end)
    return found
