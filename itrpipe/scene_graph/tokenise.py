"""Words and punctuation marks of a caption with their places, as the rules and every consumer count them."""

from __future__ import annotations

import re

# A word keeps its inner hyphens and apostrophes (t-shirt, o'clock) but not a possessive or contracted 's; everything
# else that is not blank stands alone.
_APOSTROPHES = "'\u2019"
_POSSESSIVE = rf"[{_APOSTROPHES}][sS]\b"
_WORD = rf"\w+(?:(?!{_POSSESSIVE})[{_APOSTROPHES}\-]\w+)*"
_TOKEN = re.compile(rf"{_POSSESSIVE}|{_WORD}|[^\w\s]")

MOST_WORDS = 400
"""Words of a caption that are parsed; published captions have fewer than 100, detailed descriptions fewer than 300."""
MOST_LETTERS = 60
"""Letters of a word that are read; the longest word of English dictionaries has 45. HanTa's time grows as the square:
11 ms for 60 letters, 1.3 s for 800."""


def tokenise(text: str) -> list[tuple[str, int, int]]:
    """Splits a caption into words and single punctuation marks.

    Args:
        text: any Unicode.

    Returns:
        Text, start and end (exclusive, in code points) of each token; `text[start:end]` is its text.
    """
    return [(match.group(), match.start(), match.end()) for match in _TOKEN.finditer(text)]


def parsed_part(text: str) -> str:
    """The part of a caption that is parsed, from its first character on: all of it, but for texts that are no captions.

    Args:
        text: any Unicode.

    Returns:
        The first `MOST_WORDS` words and marks; it ends within a word of more than `MOST_LETTERS` letters.
        `tokenise` finds in it what it finds there in the whole text.
    """
    end = 0
    for number, match in enumerate(_TOKEN.finditer(text)):
        if number == MOST_WORDS:
            return text[:end]
        start, end = match.span()
        if end - start > MOST_LETTERS:
            return text[: start + MOST_LETTERS]
    return text


def plain(word: str) -> str:
    """A word as the word lists have it: lower case, with a straight apostrophe."""
    return word.lower().replace("\u2019", "'")
