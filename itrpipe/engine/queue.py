"""The parts that wait for a worker, and what became of those that had one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from itrpipe.engine.work import Part

MOST_DEATHS = 3
"""Workers that a part may kill before it is given up."""


class Outcome(NamedTuple):
    """One part that is made, or was not.

    Attributes:
        part: which.
        died: whether its worker died; it is to be made again.
        memory: largest of the worker, GiB.
        workers: how many there are now.
    """

    part: Part
    died: bool = False
    memory: float = 0.0
    workers: int = 1


class Queue:
    """The parts that wait for a worker; those whose worker died come back, a few times.

    Args:
        todo: parts and their files.

    Attributes:
        failed: parts that were given up.
    """

    def __init__(self, todo: Sequence[tuple[Part, Path]]) -> None:
        self._waiting = list(reversed(todo))
        self._deaths: dict[str, int] = {}
        self.failed: list[Part] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> tuple[Part, Path]:
        """The next part, which leaves the queue."""
        return self._waiting.pop()

    def has_for(self, held: Collection[tuple[Part, Path]], overlap: int) -> bool:
        """Whether a worker gets another part.

        It holds one more than it works at, so that it never waits. But a part that was there when a worker died is made
        alone: of those that were there together, only one may be the cause.

        Args:
            held: what the worker has.
            overlap: how many parts it makes at the same time.
        """
        if not self._waiting or len(held) > overlap:
            return False
        return not held or not any(self._deaths.get(part.name) for part, _ in (*held, self._waiting[-1]))

    def give_back(self, part: Part, path: Path, *, died: bool) -> None:
        """Takes a part back that was not made; those that killed a worker again and again are given up.

        Args:
            part, path: of `take`.
            died: the worker was at work on it; such parts come last.
        """
        if not died:
            self._waiting.append((part, path))
            return
        self._deaths[part.name] = self._deaths.get(part.name, 0) + 1
        if self._deaths[part.name] < MOST_DEATHS:
            self._waiting.insert(0, (part, path))
        else:
            self.failed.append(part)
