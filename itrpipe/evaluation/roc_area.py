"""Area under the ROC curve."""

from __future__ import annotations

import numpy as np


def roc_area(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Share of the pairs of a positive and a negative in which the positive scores higher; ties count one half.

    Args:
        scores: [N] numbers without NaN.
        positive: [N] bool.

    Returns:
        0..1, or None where one of the two kinds is missing.
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return None
    _, level, counts = np.unique(scores, return_inverse=True, return_counts=True)
    # Mean rank of each level of equal scores, counted from 1.
    ranks = counts.cumsum() - (counts - 1) / 2
    above = ranks[level[positive]].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))
