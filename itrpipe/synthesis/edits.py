"""Changes of a caption, word by word, and the sentence that comes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from itrpipe.errors import DataError


@dataclass(frozen=True, order=True)
class Edit:
    """A replaced run of words.

    Attributes:
        position: number of its first word in the caption, as whoever made the edit counts words: models by their own
            tokens, rules as `itrpipe.scene_graph.tokenise` does.
        old: the caption's characters from the first of these words to the last; never empty.
        new: what stands there instead.
    """

    position: int
    old: str
    new: str


def apply_edits(text: str, starts: Sequence[int], edits: Iterable[Edit]) -> str:
    """The sentence that edits make of a caption.

    Args:
        text: the caption.
        starts: first character of each of its words.
        edits: no two of the same words.

    Raises:
        DataError: the caption has other words at an edit's place, or two edits overlap.
    """
    parts, done = [], 0
    for edit in sorted(edits):
        start = starts[edit.position] if edit.position < len(starts) else len(text)
        if start < done or text[start : start + len(edit.old)] != edit.old:
            raise DataError(
                f"caption {text!r} has no {edit.old!r} at word {edit.position}: the edits are of another caption; "
                "make the sentences again"
            )
        parts += [text[done:start], edit.new]
        done = start + len(edit.old)
    return "".join([*parts, text[done:]])
