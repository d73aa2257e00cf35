"""Captions as a masked language model reads them: token ids, their words, what is masked together, and how to spell.

Shapes: T captions, P candidates, W tokens of a caption, V token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary, spans
from itrpipe.errors import UsageError
from itrpipe.learning.sentences import NO_WORD, CaptionMasks, Compare, SpecialTokens, WordGroups, over_pieces
from itrpipe.models.captions import CaptionTokens, PieceIds
from itrpipe.scene_graph.phrases import MaskCandidates
from itrpipe.storage.arrays import Ragged
from itrpipe.synthesis.sentences import Edit

CONTINUATION = "##"
"""Mark of a piece that goes on with the word before it, in BERT's vocabularies."""
MASK = "<mask>"
"""Name of `[MASK]` behind the words of a vocabulary of our own."""


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
        """Read captions by words of our own vocabulary, between start and end; `[MASK]` follows the last word.

        Args:
            split: the captions.
            vocabulary: of the model.
        """
        tokens, lengths = (array.astype(np.int64) for array in vocabulary.encode_split(split))
        place = np.arange(tokens.shape[1])
        words = np.where((place > 0) & (place < lengths[:, None] - 1), place - 1, NO_WORD)
        return cls(split, tokens, lengths, words, _spans(map(spans, split.texts)), [*vocabulary.words, MASK])

    @classmethod
    def of_pieces(cls, split: Split, tokenizer: Any, max_tokens: int) -> TokenCaptions:
        """Read captions by pieces of words, by a fast tokenizer of transformers.

        Args:
            split: the captions.
            tokenizer: of the model.
            max_tokens: tokens kept of a caption, start and end among them.
        """
        whole = tokenizer(split.texts)
        read = tokenizer(split.texts, truncation=True, max_length=max_tokens)
        words, places = [], []
        for row in range(len(split.texts)):
            words.append(_owners(read, row))
            # Of a word that is cut off in the middle the characters are known all the same.
            count = max(_owners(whole, row), default=NO_WORD) + 1
            places.append([whole.word_to_chars(row, word) for word in range(count)])
        ids = Ragged.of_lists(read["input_ids"])
        owners = Ragged.of_lists(words).padded(fill=NO_WORD)
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        return cls(split, ids.padded(), ids.counts, owners, _spans(places), pieces)


def _owners(read: Any, row: int) -> list[int]:
    """Return the word that each token of a caption is of."""
    return [NO_WORD if word is None else word for word in read.word_ids(row)]


def _spans(captions: Iterable[Sequence[tuple[int, int]]]) -> Ragged:
    found = [np.array(words, dtype=np.int64).reshape(-1, 2) for words in captions]
    return Ragged.of_counts(np.array(list(map(len, found))), np.concatenate(found))


def token_captions(split: Split, tokens: CaptionTokens, max_tokens: int) -> TokenCaptions:
    """Return the captions of a split as a trained model reads them.

    Args:
        split: the captions.
        tokens: of the model.
        max_tokens: longest caption that the model reads.

    Raises:
        UsageError: the model's tokenizer has no mask, or does not tell which words its pieces are of.
    """
    if not isinstance(tokens, PieceIds):
        assert isinstance(tokens, Vocabulary)
        return TokenCaptions.of_words(split, tokens)
    tokenizer = tokens.tokenizer
    kind = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    # Pieces of other tokenizers do not show where a word begins.
    if getattr(kind, "continuing_subword_prefix", None) != CONTINUATION or tokenizer.mask_token_id is None:
        raise UsageError(
            f"the tokenizer of this model is no WordPiece tokenizer with a mask and pieces that go on with "
            f"{CONTINUATION!r}, so that its words cannot be written; train one with --set "
            "model.tokenizer=bert-base-cased or the like"
        )
    return TokenCaptions.of_pieces(split, tokenizer, min(max_tokens, tokenizer.model_max_length))


def special_tokens(tokens: CaptionTokens, pieces: Sequence[str]) -> SpecialTokens:
    """Return the token ids that are no words, and the longest run of those that are.

    Args:
        tokens: of the model.
        pieces: V tokens as its vocabulary writes them.
    """
    if not isinstance(tokens, PieceIds):
        mask = len(pieces) - 1
        return SpecialTokens(mask, tuple(range(len(SPECIALS))), (len(SPECIALS), mask))
    tokenizer = tokens.tokenizer
    unused = [number for number, piece in enumerate(pieces) if piece.startswith("[unused")]
    special = {*tokenizer.all_special_ids, *unused}
    edges = [-1, *sorted(special), len(pieces)]
    longest = int(np.argmax(np.diff(edges)))
    others = tuple(sorted(special - {tokenizer.mask_token_id}))
    return SpecialTokens(tokenizer.mask_token_id, others, (edges[longest] + 1, edges[longest + 1]))


def graph_candidates(captions: TokenCaptions, graphs: MaskCandidates) -> WordGroups:
    """Return what scene graphs say is masked together, in the words of captions as a model reads them.

    Args:
        captions: as the model reads them.
        graphs: of all of them.

    Raises:
        DataError: a caption has no scene graph.
    """
    graph_rows = graphs.rows(captions.split.caption_ids.tolist())

    def candidates(rows: np.ndarray) -> np.ndarray:
        places = captions.spans.take(rows).padded()
        words = graphs.words_at(graph_rows[rows], places[..., 0], places[..., 1])
        return over_pieces(graphs.batch(graph_rows[rows]), words)

    return candidates


def caption_masks(
    captions: TokenCaptions, tokens: CaptionTokens, graphs: Path | None, compare: Compare
) -> CaptionMasks:
    """Return how the captions of a training set are masked.

    Args:
        captions: as the model reads them.
        tokens: of the model.
        graphs: artifact of `itrpipe parse`, whose phrases are masked as wholes; None masks single tokens.
        compare: see `CaptionMasks`.

    Raises:
        DataError: a caption has no scene graph.
    """
    candidates = None
    if graphs is not None:
        candidates = graph_candidates(captions, MaskCandidates.read(graphs))
    arrays = captions.tokens, captions.words, captions.split.caption_image
    return CaptionMasks(*arrays, candidates, special_tokens(tokens, captions.pieces), compare)


# -- spelling ----------------------------------------------------------------------------------------------------------


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
    """Write a caption as other tokens would.

    Args:
        captions: as the model reads them.
        row: of the caption.
        tokens: int64 [n] in the places of its tokens; words behind the last of them stay, padding is not looked at.
    """
    source = captions.split.texts[row]
    words = captions.words[row, : len(tokens)]
    changed = (tokens != captions.tokens[row, : len(tokens)]) & (words != NO_WORD)
    pieces: dict[int, list[str]] = {}
    for last in np.unique(words[changed]).tolist():
        for word in range(last, -1, -1):  # with those that it now goes on with
            pieces[word] = [captions.pieces[token] for token in tokens[words == word]]
            if not pieces[word][0].startswith(CONTINUATION):
                break
    text, places, edits, done = "", [], [], 0
    for word, (start, end) in enumerate(captions.spans[row].tolist()):
        apart, written = source[done:start], source[start:end]
        if word in pieces:
            written = " ".join(pieces[word]).replace(f" {CONTINUATION}", "").removeprefix(CONTINUATION)
            if word and pieces[word][0].startswith(CONTINUATION):
                apart = ""
                first = edits.pop()
                edits.append(Edit(first.position, first.old + source[done:end], first.new + written))
            else:
                # A word in place of a punctuation mark would go on with the word before it.
                space = ""
                if source[max(start - 1, 0) : start].isalnum() and written[:1].isalnum():
                    space = " "
                apart += space
                edits.append(Edit(word, source[start:end], space + written))
        text += apart
        places.append((len(text), len(text) + len(written)))
        text += written
        done = end
    return Spelled(text + source[done:], places, edits)
