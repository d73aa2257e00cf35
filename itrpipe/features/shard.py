"""One of n parts of a dataset's images, for a cluster's array jobs. Light: plans read it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, counted from 1."""

    number: int
    count: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.number}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Reads `i/n`.

    Raises:
        ValueError: not of this form, or i is larger than n.
    """
    match = _SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError("a shard is given as i/n with 1 <= i <= n, such as 2/8")
    return Shard(int(match[1]), int(match[2]))
