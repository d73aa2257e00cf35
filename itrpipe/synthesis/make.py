"""Makes the sentences of all captions of a split: a map over blocks of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from itrpipe.engine.work import Part, Work, cut
from itrpipe.synthesis.opened import Opened, SentenceMaker
from itrpipe.synthesis.sentences import write_part


class Writing(Work[SentenceMaker]):
    """Sentences of captions, in one Parquet file per block.

    Args:
        open_maker: reads what makes them; it is pickled.
        block_size: captions of a block.
        device: `cpu`, `cuda` or `auto`.
    """

    title, unit, suffix, in_one_thread = "writing sentences", "captions", ".parquet", True

    def __init__(self, open_maker: Callable[[], Opened], block_size: int, device: str = "cpu") -> None:
        self._open_maker, self._block_size, self.device = open_maker, block_size, device

    def __getstate__(self) -> dict[str, Any]:
        """Each worker opens its own."""
        return {name: value for name, value in self.__dict__.items() if name != "opened"}

    @cached_property
    def opened(self) -> Opened:
        """What makes the sentences, opened once in every process."""
        return self._open_maker()

    def parts(self) -> list[Part]:
        """Blocks of captions."""
        return cut(range(len(self.opened.texts)), self._block_size)

    def open(self) -> SentenceMaker:
        """The maker."""
        return self.opened.maker

    def make(self, worker: SentenceMaker, part: Part, path: Path) -> None:
        """Writes the sentences of a block."""
        write_part(path, *worker.make(part.content, int(part.name)))
