"""Makes the sentences of all captions, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from itrpipe.progress import Reporter
from itrpipe.synthesis.sentences import Sentence, SentenceBlocks


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


def make_pending(maker: SentenceMaker, blocks: SentenceBlocks, reporter: Reporter) -> int:
    """Makes and writes every block that is not there yet, and returns how many kept sentences these have.

    Args:
        maker: makes them.
        blocks: what is to be made, and where to.
        reporter: shows the progress.

    Raises:
        DiskFullError: no space is left.
    """
    pending = blocks.pending()
    total = sum(len(blocks.captions(block)) for block in range(len(blocks)))
    done = total - sum(len(blocks.captions(block)) for block in pending)
    kept = 0
    with reporter.task("writing sentences", total, "captions", done) as task:
        for block in pending:
            sentences, drawn = maker.make(blocks.captions(block), block)
            blocks.write(block, sentences, drawn)
            kept += sum(each.kept for each in sentences)
            task.advance(len(blocks.captions(block)), f"{kept:,} sentences")
    return kept
