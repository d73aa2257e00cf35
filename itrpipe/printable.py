"""Text of any origin made safe to print: nothing in a caption or a file name may steer the terminal that shows it."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

# C0, DEL and C1; marks, embeddings, overrides and isolates of writing direction; separators of lines and paragraphs;
# and halves of surrogate pairs, which no stream can encode.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text in one line: whatever steers a terminal or turns the writing direction is as `\x1b` or `\u202e`."""
    return _STEERING.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Lines of ours, each as `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def quantity(number: int, unit: str) -> str:
    """A number of things, of which several end in s."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows of cells as lines for a terminal, indented: the first column to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        columns = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        yield "  " + "  ".join([name.ljust(widths[0]), *columns]).rstrip()


def printable_json(value: Any) -> str:
    """JSON for people and programs: other scripts as they are, and characters that steer a terminal escaped."""
    lines = json.dumps(value, ensure_ascii=False, indent=2).split("\n")  # those in strings are escaped
    # JSON knows no \x; outside strings there are none of these characters.
    return "\n".join(_STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", line) for line in lines)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
