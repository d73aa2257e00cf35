"""Lists of words as one flat column: the form in which whole datasets of captions are counted and encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

    TokenLists = Sequence[Sequence[str]] | pyarrow.ListArray


def word_lists(token_lists: TokenLists) -> pyarrow.ListArray:
    """Return the words of many captions as one Arrow array, without a copy if they are one already.

    Args:
        token_lists: the words of each caption, as Python lists or as a column of a prepared dataset.

    Returns:
        One list of strings per caption.
    """
    import pyarrow as pa

    if isinstance(token_lists, pa.ListArray):
        return token_lists
    return pa.array(token_lists, type=pa.list_(pa.string()))
