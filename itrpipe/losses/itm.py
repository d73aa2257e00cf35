"""The hinge of UNITER's fine-tuning, between the matching probabilities of a pair and of its negatives."""

from __future__ import annotations

from torch import Tensor


def ranking_hinges(scores: Tensor, margin: float) -> Tensor:
    """max(0, margin + sigmoid(negative) - sigmoid(positive)) in single precision.

    Args:
        scores: [A, 1 + M] logits of A anchors, each with its match first and its M negatives after it.
        margin: 0.2 in the papers.

    Returns:
        [A, M].

    Source: UNITER (Chen et al., ECCV 2020), released code; TAGS-DC, Eq. 4 and 5.
    """
    probabilities = scores.float().sigmoid()
    return (margin + probabilities[:, 1:] - probabilities[:, :1]).clamp(min=0)
