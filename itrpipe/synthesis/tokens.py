"""The captions of a split as token ids: the words that the tokens are of, what is masked together, and how to spell.

Shapes: T captions, P candidates, W tokens of a caption, V token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary, spans
from itrpipe.negatives.caption_masks import NO_WORD
from itrpipe.negatives.masking import over_pieces
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.storage.ragged import Ragged
from itrpipe.synthesis.sentences import Edit

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
        names = (split.caption_ids.tolist(), split.texts, split.image_ids.tolist(), split.caption_image)
        ids = tokens.astype(np.int64), lengths.astype(np.int64)
        return cls(*names, *ids, words, places, (*vocabulary.words, MASK))

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
        ids = Ragged.of_lists(read["input_ids"])
        words = Ragged.of_lists([_owners(read, row) for row in range(len(ids))]).padded(fill=NO_WORD)
        # Of a word that is cut off in the middle the characters are known all the same.
        places = [_word_spans(_owners(whole, row), at) for row, at in enumerate(whole["offset_mapping"])]
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        names = (split.caption_ids.tolist(), split.texts, split.image_ids.tolist(), split.caption_image)
        return cls(*names, ids.padded(), ids.counts, words, places, pieces)


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


class _Anew(NamedTuple):
    """How a word is written anew: whether it goes on with the word before, what sets it off, and its characters."""

    joined: bool
    apart: str
    text: str


def _written_anew(captions: TokenCaptions, row: int, tokens: np.ndarray) -> dict[int, _Anew]:
    """The words of a caption that other tokens stand for, with those that such a word now goes on with, in order."""
    source, own, words = captions.texts[row], captions.tokens[row, : len(tokens)], captions.words[row, : len(tokens)]
    found: dict[int, _Anew] = {}
    for changed in np.unique(words[(tokens != own) & (words != NO_WORD)]).tolist():
        for word in range(changed, -1, -1):
            pieces = [str(captions.pieces[token]) for token in tokens[words == word]]
            text = "".join(
                piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else f" {piece}" for piece in pieces
            ).strip()
            start = int(captions.spans[row][word, 0])
            # A word in place of a punctuation mark would go on with the word before it.
            apart = " " if start and source[start - 1].isalnum() and text[:1].isalnum() else ""
            joined = word > 0 and pieces[0].startswith(CONTINUATION)
            found[word] = _Anew(joined, "" if joined else apart, text)
            if not joined:
                break
    return dict(sorted(found.items()))


def edits_of(captions: TokenCaptions, row: int, tokens: np.ndarray) -> list[Edit]:
    """What of a caption other tokens would write.

    Args:
        captions: as the model reads them.
        row: of the caption.
        tokens: int64 [n] in the places of its tokens, n at least its length; padding after that is not looked at.

    Returns:
        Edits in order. A word that now begins with a piece that goes on with the word before shares its edit; a word in
        the place of a punctuation mark is set off by a space.
    """
    text, places = captions.texts[row], captions.spans[row]
    runs: list[tuple[int, int, str]] = []
    for word, anew in _written_anew(captions, row, tokens).items():
        first, _, before = runs.pop() if anew.joined else (word, word, anew.apart)
        runs.append((first, word, before + anew.text))
    return [Edit(first, text[int(places[first, 0]) : int(places[last, 1])], new) for first, last, new in runs]


class Spelled(NamedTuple):
    """A sentence with its words.

    Attributes:
        text: of the sentence.
        spans: first character of each word and one more than its last, in the order of the words.
    """

    text: str
    spans: list[tuple[int, int]]


def respell(captions: TokenCaptions, row: int, tokens: np.ndarray) -> Spelled:
    """A caption as other tokens would write it, and where its words then stand; see `edits_of`."""
    source, anew = captions.texts[row], _written_anew(captions, row, tokens)
    text, done, places = "", 0, []
    for word, (start, end) in enumerate(captions.spans[row].tolist()):
        new = anew.get(word, _Anew(False, "", source[start:end]))
        text += ("" if new.joined else source[done:start]) + new.apart
        places.append((len(text), len(text) + len(new.text)))
        text, done = text + new.text, end
    return Spelled(text + source[done:], places)
