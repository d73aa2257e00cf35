"""The captions of a split as token ids: the words that the tokens are of, what is masked together, and how to spell.

Shapes: T captions, P candidates, W tokens of a caption, V token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary, spans
from itrpipe.learning.sentences import NO_WORD, over_pieces
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.storage.arrays import Ragged
from itrpipe.synthesis.sentences import Edit

CONTINUATION = "##"
"""Mark of a piece that goes on with the word before it, in BERT's vocabularies."""
MASK = "<mask>"
"""What `[MASK]` is called behind the words of a vocabulary of our own."""


@dataclass(frozen=True)
class TokenCaptions:
    """The captions of a split as the model reads them.

    Attributes:
        split: the captions and their images.
        tokens: int64 [captions, W], padded with 0; start and end among them.
        lengths: int64 [captions].
        words: int64 [captions, W], number of the word that each token is part of; `NO_WORD` for start, end and padding.
        spans: for each caption int64 [words, 2], first character of each word and one more than its last.
        pieces: V tokens as the vocabulary writes them.
    """

    split: Split
    tokens: np.ndarray
    lengths: np.ndarray
    words: np.ndarray
    spans: Ragged
    pieces: list[str]

    @classmethod
    def of_words(cls, split: Split, vocabulary: Vocabulary) -> TokenCaptions:
        """Captions of words of our own vocabulary, between start and end; `[MASK]` follows the last word.

        Args:
            split: the captions.
            vocabulary: of the model.
        """
        tokens, lengths = (each.astype(np.int64) for each in vocabulary.encode_split(split))
        place = np.arange(tokens.shape[1])
        words = np.where((place > 0) & (place < lengths[:, None] - 1), place - 1, NO_WORD)
        return cls(split, tokens, lengths, words, _spans(map(spans, split.texts)), [*vocabulary.words, MASK])

    @classmethod
    def of_pieces(cls, split: Split, tokenizer: Any, max_tokens: int) -> TokenCaptions:
        """Captions of pieces of words, by a fast tokenizer of transformers.

        Args:
            split: the captions.
            tokenizer: of the model.
            max_tokens: tokens kept of a caption, start and end among them.
        """
        whole = tokenizer(split.texts)
        read = tokenizer(split.texts, truncation=True, max_length=max_tokens)
        ids = Ragged.of_lists(read["input_ids"])
        words = Ragged.of_lists([_owners(read, row) for row in range(len(ids))]).padded(fill=NO_WORD)
        # Of a word that is cut off in the middle the characters are known all the same.
        counts = [max(_owners(whole, row), default=NO_WORD) + 1 for row in range(len(ids))]
        places = ([whole.word_to_chars(row, word) for word in range(count)] for row, count in enumerate(counts))
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        return cls(split, ids.padded(), ids.counts, words, _spans(places), pieces)


def _owners(read: Any, row: int) -> list[int]:
    """The word that each token of a caption is of."""
    return [NO_WORD if word is None else word for word in read.word_ids(row)]


def _spans(captions: Iterable[Sequence[tuple[int, int]]]) -> Ragged:
    found = [np.array(own, dtype=np.int64).reshape(-1, 2) for own in captions]
    return Ragged.of_counts(np.array([len(own) for own in found]), np.concatenate(found))


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
        self._rows = graphs.rows(captions.split.caption_ids.tolist())

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Candidates bool [T, P, words] of the captions of the given rows [T]."""
        places, graph_rows = self._spans.take(rows).padded(), self._rows[rows]
        words = self._graphs.words_at(graph_rows, places[..., 0], places[..., 1])
        return over_pieces(self._graphs.batch(graph_rows), words)


class Spelled(NamedTuple):
    """A sentence with its words.

    Attributes:
        text: of the sentence.
        spans: first character of each word and one more than its last, in the order of the words.
        edits: what of the caption it changes, in order. A word that now begins with a piece that goes on with the word
            before shares its edit; a word in the place of a punctuation mark is set off by a space.
    """

    text: str
    spans: list[tuple[int, int]]
    edits: list[Edit]


def respell(captions: TokenCaptions, row: int, tokens: np.ndarray) -> Spelled:
    """A caption as other tokens would write it.

    Args:
        captions: as the model reads them.
        row: of the caption.
        tokens: int64 [n] in the places of its tokens; words behind the last of them stay, padding is not looked at.
    """
    source, own, words = captions.split.texts[row], captions.tokens[row], captions.words[row, : len(tokens)]
    anew: dict[int, list[str]] = {}
    for changed in np.unique(words[(tokens != own[: len(tokens)]) & (words != NO_WORD)]).tolist():
        for word in range(changed, -1, -1):  # with those that it now goes on with
            anew[word] = [captions.pieces[token] for token in tokens[words == word]]
            if not anew[word][0].startswith(CONTINUATION):
                break
    text, places, edits, done = "", [], [], 0
    for word, (start, end) in enumerate(captions.spans[row].tolist()):
        apart, written = source[done:start], source[start:end]
        if pieces := anew.get(word):
            written = " ".join(pieces).replace(f" {CONTINUATION}", "").removeprefix(CONTINUATION)
            if word and pieces[0].startswith(CONTINUATION):
                first, apart = edits.pop(), ""
                edits.append(Edit(first.position, first.old + source[done:end], first.new + written))
            else:
                # A word in place of a punctuation mark would go on with the word before it.
                space = " " if source[max(start - 1, 0) : start].isalnum() and written[:1].isalnum() else ""
                apart += space
                edits.append(Edit(word, source[start:end], space + written))
        text += apart
        places.append((len(text), len(text) + len(written)))
        text, done = text + written, end
    return Spelled(text + source[done:], places, edits)
