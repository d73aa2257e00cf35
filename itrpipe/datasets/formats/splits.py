"""Words for the splits, in names of files and folders and in columns of tables."""

import re

from itrpipe.errors import DataError

_SPLIT_WORDS = re.compile(
    r"(?<![^\W\d_])(?:(?P<train>train(?:ing)?)|(?P<val>val(?:id(?:ation)?)?|dev)|(?P<test>test(?:ing)?))+(?![^\W\d_])",
    re.IGNORECASE,
)
"""Words of the splits between characters that are no letters; also several in one."""


def split_in_name(name: str) -> str | None:
    """Return the split that a path below the source names, as `cc3m-train-00000.tar` or `validation/0.tar` do.

    Raises:
        DataError: it names several. The message is the reason alone.
    """
    splits = set()
    for match in _SPLIT_WORDS.finditer(name):
        splits |= _splits_of(match)
    if len(splits) > 1:
        raise DataError("has a name of several splits; rename it, such as train-00000")
    return splits.pop() if splits else None


def split_of_word(word: str) -> str:
    """Return the split that a whole word means, such as `val` for `validation`; any other word as it is."""
    match = _SPLIT_WORDS.fullmatch(word)
    if match is None:
        return word
    splits = _splits_of(match)
    return splits.pop() if len(splits) == 1 else word


def _splits_of(match: re.Match[str]) -> set[str]:
    return {split for split, word in match.groupdict().items() if word}
