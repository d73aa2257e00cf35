"""The sum of recalls, by which models are compared and selected."""

from __future__ import annotations

from itrpipe.evaluation.ranks import Ranks
from itrpipe.evaluation.recall import recall

CUTOFFS = (1, 5, 10)
"""The K of R@K that papers report, and that the sum of recalls runs over."""


def rsum(ranks: Ranks) -> float:
    """Sum of the six recalls, 0..600.

        RSum = sum over K in (1, 5, 10) of R@K(image to text) + R@K(text to image)

    Args:
        ranks: 0-based ranks of both directions.

    Source: SCAN, published evaluation code; reported as "rsum" since.
    """
    return sum(recall(side, k) for side in (ranks.images_to_texts, ranks.texts_to_images) for k in CUTOFFS)
