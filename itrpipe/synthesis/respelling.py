"""Sentences of token ids as text: a caption with some of its tokens replaced, and where its words then stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from itrpipe.synthesis.captions import CONTINUATION, TokenCaptions


class Spelled(NamedTuple):
    """A sentence with its words.

    Attributes:
        text: of the sentence.
        spans: first character of each word and one more than its last, in the order of the words.
    """

    text: str
    spans: list[tuple[int, int]]


def respell(captions: TokenCaptions, row: int, tokens: np.ndarray) -> Spelled:
    """A caption as other tokens would write it; words whose tokens are the caption's own stay as they are written.

    Args:
        captions: as the model reads them.
        row: of the caption.
        tokens: int64 [n] in the places of its tokens, n at least its length; padding after that is not looked at.

    Returns:
        The text and its words. A word that now begins with a piece that goes on with the word before follows it
        without a space; one that stands where a punctuation mark stood is set off by one.
    """
    source, parts, length, done = captions.texts[row], [], 0, 0
    own, words = captions.tokens[row, : len(tokens)], captions.words[row, : len(tokens)]
    spans: list[tuple[int, int]] = []
    for word, (start, end) in enumerate(captions.spans[row].tolist()):
        inside = words == word
        between, written = source[done:start], source[start:end]
        if (tokens[inside] != own[inside]).any():
            pieces = [captions.pieces[token] for token in map(int, tokens[inside])]
            written = _spell(pieces)
            if pieces[0].startswith(CONTINUATION):
                between = between.rstrip()
            elif _run_together(parts[-1:], between, written):
                between = " "
        parts += [between, written]
        length += len(between)
        spans.append((length, length + len(written)))
        length, done = spans[-1][1], end
    return Spelled("".join([*parts, source[done:]]), spans)


def _run_together(before: Sequence[str], between: str, written: str) -> bool:
    """Whether a word in place of a punctuation mark would go on with the word before."""
    return not between and bool(before) and before[0][-1:].isalnum() and written[:1].isalnum()


def _spell(pieces: Sequence[str]) -> str:
    first, *rest = pieces
    joined = (part.removeprefix(CONTINUATION) if part.startswith(CONTINUATION) else f" {part}" for part in rest)
    return "".join([first.removeprefix(CONTINUATION), *joined])
