"""What `itrpipe synthesize` has once its sources are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from itrpipe.synthesis.sentences import Sentence


class SentenceMaker(Protocol):
    """Makes negative sentences."""

    def make(self, rows: range, block: int) -> tuple[Sequence[Sentence], Mapping[str, int]]:
        """Sentences of some captions, in their order.

        Args:
            rows: of the captions.
            block: number of the block, which everything random depends on beside the seed.

        Returns:
            The rows of the file, and how many sentences were drawn, by what became of them.
        """
        ...


class Opened(NamedTuple):
    """A maker of sentences.

    Attributes:
        maker: makes them.
        texts: the captions of the split, T of them, by id.
        num_tokens: V, token ids that a model chooses from; None for rules.
    """

    maker: SentenceMaker
    texts: dict[str, str]
    num_tokens: int | None
