"""Words of a caption, as the papers cut them, and where in the caption each stands."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from itrpipe.errors import DataError

if TYPE_CHECKING:
    from nltk.tokenize.destructive import NLTKWordTokenizer

# Captions of this form hold nothing that the Penn Treebank rules treat otherwise than a split at spaces does:
# words of letters, digits and single hyphens, commas before spaces, one full stop at the end.
_WORD = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_PLAIN = re.compile(rf"{_WORD}(?:(?:,? +| +, +){_WORD})* *+\.? *+")
_CONTRACTED = re.compile(r"\b(?:cannot|gimme|gonna|gotta|lemme|wanna)\b")
_OPENING, _CLOSING = "``", "''"


def tokenize(text: str) -> list[str]:
    """Cut a caption into lower-cased words and punctuation marks.

    The conventions are the Penn Treebank's as nltk implements them: `man's` gives `man` and `'s`, double quotes
    become ``` `` ``` and `''`, a final full stop is a word. SCAN, VSRN, BFAN, VSE++ and AOQ call
    `nltk.word_tokenize(caption.lower())`, which first cuts the text into sentences with a trained model. There
    is no sentence splitter here, so a full stop inside a caption of two sentences stays with its word
    (`sits. he`), unless a space precedes it, as it does in Flickr8k.

    Args:
        text: the caption as published.

    Returns:
        The words in order; empty for a caption of white space.
    """
    lowered = text.lower()
    if _PLAIN.fullmatch(lowered) and not _CONTRACTED.search(lowered):
        return lowered.replace(",", " , ").replace(".", " . ").split()
    return _penn_treebank().tokenize(lowered)


def spans(text: str) -> list[tuple[int, int]]:
    """Return where the words of `tokenize` stand in a caption.

    Args:
        text: the caption as published.

    Returns:
        One pair of start and end per word, in characters of `text`, end exclusive, rising and without overlap.
    """
    lowered = text.lower()
    found = _align(tokenize(text), lowered)
    if len(lowered) == len(text):
        return found
    origin = [index for index, character in enumerate(text) for _ in character.lower()]
    return [(origin[start], origin[end - 1] + 1) for start, end in found]


def _align(words: list[str], lowered: str) -> list[tuple[int, int]]:
    """Find words that follow each other with nothing but white space between them."""
    found: list[tuple[int, int]] = []
    position = 0
    for word in words:
        while lowered[position].isspace():
            position += 1
        end = position + _written_length(word, lowered, position)
        found.append((position, end))
        position = end
    return found


def _written_length(word: str, lowered: str, position: int) -> int:
    """Return how many characters a word takes up in the text, where quotes may be written otherwise."""
    if lowered.startswith(word, position):
        return len(word)
    if word in (_OPENING, _CLOSING):
        return 1 if lowered[position] == '"' else 2
    raise DataError(f"caption {lowered!r}: word {word!r} is not at character {position}; report this caption")


@lru_cache(maxsize=1)
def _penn_treebank() -> NLTKWordTokenizer:
    # Importing any part of nltk imports all of it (0.2 s), so only captions that need it pay.
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()
