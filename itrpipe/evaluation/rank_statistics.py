"""Median and mean rank, counted from one."""

from __future__ import annotations

import math

import numpy as np


def median_rank(ranks: np.ndarray) -> float:
    """Median rank, rounded down between two middle ranks, counted from one.

        MedR = floor(median of rank(q)) + 1

    Args:
        ranks: [Q] 0-based ranks.

    Source: VSE++, published evaluation code.
    """
    return float(math.floor(np.median(ranks)) + 1)


def mean_rank(ranks: np.ndarray) -> float:
    """Mean rank, counted from one.

        MeanR = 1 / |Q| * sum of rank(q) + 1

    Args:
        ranks: [Q] 0-based ranks.

    Source: VSE++, published evaluation code.
    """
    return float(np.mean(ranks)) + 1.0
