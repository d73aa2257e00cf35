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
        tokens, lengths = vocabulary.encode_split(split)
        tokens = tokens.astype(np.int64)
        lengths = lengths.astype(np.int64)
        places = np.arange(tokens.shape[1])
        is_word = (places > 0) & (places < lengths[:, None] - 1)
        words = np.where(is_word, places - 1, NO_WORD)
        return cls(
            split,
            tokens,
            lengths,
            words,
            _ragged_spans(map(spans, split.texts)),
            [*vocabulary.words, MASK],
        )

    @classmethod
    def of_pieces(
        cls,
        split: Split,
        tokenizer: Any,
        max_tokens: int,
    ) -> TokenCaptions:
        """Read captions by pieces of words, by a fast tokenizer of transformers.

        Args:
            split: the captions.
            tokenizer: of the model.
            max_tokens: tokens kept of a caption, start and end among them.
        """
        whole = tokenizer(split.texts)
        cut = tokenizer(split.texts, truncation=True, max_length=max_tokens)
        words = []
        spans_of_captions = []
        for row in range(len(split.texts)):
            words.append(_words_of_tokens(cut, row))
            # The characters of a word that is cut off in the middle are known all the same.
            count = max(_words_of_tokens(whole, row), default=NO_WORD) + 1
            spans_of_captions.append([whole.word_to_chars(row, word) for word in range(count)])
        ids = Ragged.of_lists(cut["input_ids"])
        words = Ragged.of_lists(words).padded(fill=NO_WORD)
        pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        return cls(
            split,
            ids.padded(),
            ids.counts,
            words,
            _ragged_spans(spans_of_captions),
            pieces,
        )


def _words_of_tokens(encoding: Any, row: int) -> list[int]:
    """Return the number of the word that each token of a caption is part of."""
    words = []
    for word in encoding.word_ids(row):
        if word is None:
            word = NO_WORD
        words.append(word)
    return words


def _ragged_spans(captions: Iterable[Sequence[tuple[int, int]]]) -> Ragged:
    counts = []
    arrays = []
    for words in captions:
        counts.append(len(words))
        arrays.append(np.array(words, dtype=np.int64).reshape(-1, 2))
    return Ragged.of_counts(np.array(counts), np.concatenate(arrays))


def token_captions(
    split: Split,
    tokens: CaptionTokens,
    max_tokens: int,
) -> TokenCaptions:
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
    backend = getattr(tokenizer, "backend_tokenizer", None)
    prefix = getattr(getattr(backend, "model", None), "continuing_subword_prefix", None)
    # Pieces of other tokenizers do not show where a word begins.
    if prefix != CONTINUATION or tokenizer.mask_token_id is None:
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
    run = edges[longest] + 1, edges[longest + 1]
    others = sorted(special - {tokenizer.mask_token_id})
    return SpecialTokens(tokenizer.mask_token_id, tuple(others), run)


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
        word_spans = captions.spans.take(rows).padded()
        words = graphs.words_at(graph_rows[rows], word_spans[..., 0], word_spans[..., 1])
        return over_pieces(graphs.batch(graph_rows[rows]), words)

    return candidates


def caption_masks(
    captions: TokenCaptions,
    tokens: CaptionTokens,
    graphs: Path | None,
    compare: Compare,
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
    return CaptionMasks(
        captions.tokens,
        captions.words,
        captions.split.caption_image,
        candidates,
        special_tokens(tokens, captions.pieces),
        compare,
    )


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


def respell(
    captions: TokenCaptions,
    row: int,
    tokens: np.ndarray,
) -> Spelled:
    """Write a caption as other tokens would.

    Args:
        captions: as the model reads them.
        row: of the caption.
        tokens: int64 [n] in the places of its tokens; words behind the last of them stay, padding is not looked at.
    """
    source = captions.split.texts[row]
    words = captions.words[row, : len(tokens)]
    is_changed = (tokens != captions.tokens[row, : len(tokens)]) & (words != NO_WORD)
    pieces: dict[int, list[str]] = {}
    for last in np.unique(words[is_changed]).tolist():
        for word in range(last, -1, -1):  # with those that it now goes on with
            pieces[word] = [captions.pieces[token] for token in tokens[words == word]]
            if not pieces[word][0].startswith(CONTINUATION):
                break
    text = ""
    word_spans = []
    edits: list[Edit] = []
    done = 0
    for word, (start, end) in enumerate(captions.spans[row].tolist()):
        between = source[done:start]
        written = source[start:end]
        if word in pieces:
            written = " ".join(pieces[word]).replace(f" {CONTINUATION}", "").removeprefix(CONTINUATION)
            if word and pieces[word][0].startswith(CONTINUATION):
                between = ""
                edit = edits.pop()
                edits.append(Edit(edit.position, edit.old + source[done:end], edit.new + written))
            else:
                # A word in place of a punctuation mark would go on with the word before it.
                space = ""
                if source[max(start - 1, 0) : start].isalnum() and written[:1].isalnum():
                    space = " "
                between += space
                edits.append(Edit(word, source[start:end], space + written))
        text += between
        word_spans.append((len(text), len(text) + len(written)))
        text += written
        done = end
    return Spelled(text + source[done:], word_spans, edits)
