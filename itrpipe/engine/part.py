"""One of n shares of the parts of a map, for the jobs of an array. Light: plans read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_SHARE = re.compile(r"([1-9]\d*)/([1-9]\d*)")
AnyPart = TypeVar("AnyPart")


@dataclass(frozen=True)
class Share:
    """Share `number` of `count`, counted from 1."""

    number: int
    count: int

    @property
    def name(self) -> str:
        """As part of a file name."""
        return f"{self.number}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, parts: Sequence[AnyPart]) -> list[AnyPart]:
        """Every n-th part."""
        return list(parts[self.number - 1 :: self.count])


WHOLE = Share(1, 1)


def parse_share(text: str) -> Share:
    """Reads `i/n`; nothing is the whole.

    Raises:
        ValueError: not of this form, or i is larger than n.
    """
    match = _SHARE.fullmatch(text) if text else None
    if text and (match is None or int(match[1]) > int(match[2])):
        raise ValueError("a part is given as i/n with 1 <= i <= n, such as 2/8")
    return WHOLE if match is None else Share(int(match[1]), int(match[2]))


class OthersMissing(Exception):  # noqa: N818 - no error: this job is done
    """This job has made its share of a map, and what follows needs the shares of other jobs.

    Attributes:
        share: that is made.
        rows: units of the map in this share.
        unit: what these are, in the plural.
        paths: files of all parts of the map.
        more: whether another map follows, which jobs can share again.
    """

    def __init__(self, share: Share, rows: int, unit: str, paths: Sequence[Path], more: bool) -> None:
        super().__init__(str(share))
        self.share, self.rows, self.unit, self.paths, self.more = share, rows, unit, list(paths), more

    def missing(self) -> int:
        """Parts that nobody has made yet."""
        return sum(not path.exists() for path in self.paths)
