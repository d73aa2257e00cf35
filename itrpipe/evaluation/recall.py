"""Recall at K."""

from __future__ import annotations

import numpy as np


def recall(ranks: np.ndarray, k: int) -> float:
    """Share of the queries whose best correct match is among the first K candidates, in percent.

        R@K = 100 / |Q| * #{q : rank(q) < K}

    Args:
        ranks: [Q] 0-based ranks.
        k: number of candidates looked at, 1 or more.

    Source: VSE++ §4.1.
    """
    return 100.0 * float(np.mean(ranks < k))
