"""Words and punctuation marks of a caption with their places, as every backend and every consumer counts them."""

from __future__ import annotations

import re

# A word keeps its inner hyphens and apostrophes (t-shirt, o'clock) but not a possessive or contracted 's; everything
# else that is not blank stands alone.
_APOSTROPHES = "'\u2019"
_POSSESSIVE = rf"[{_APOSTROPHES}][sS]\b"
_WORD = rf"\w+(?:(?!{_POSSESSIVE})[{_APOSTROPHES}\-]\w+)*"
_TOKEN = re.compile(rf"{_POSSESSIVE}|{_WORD}|[^\w\s]")


def tokenise(text: str) -> list[tuple[str, int, int]]:
    """Splits a caption into words and single punctuation marks.

    Args:
        text: any Unicode.

    Returns:
        Text, start and end (exclusive, in code points) of each token; `text[start:end]` is its text.
    """
    return [(match.group(), match.start(), match.end()) for match in _TOKEN.finditer(text)]


def plain(word: str) -> str:
    """A word as the word lists have it: lower case, with a straight apostrophe."""
    return word.lower().replace("\u2019", "'")
