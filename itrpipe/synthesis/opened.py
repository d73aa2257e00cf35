"""What `itrpipe synthesize` has once its sources are read."""

from __future__ import annotations

from typing import NamedTuple

from itrpipe.synthesis.make import SentenceMaker


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
