"""Kendall's rank correlation of scores with people's answers, which have ties.

Of n (n - 1) / 2 pairs, c are in the same order by both and d in opposite ones; t and u are tied by either. With m
distinct answers, or scores where these are fewer,

    τb = (c - d) / sqrt((n (n - 1) / 2 - t) (n (n - 1) / 2 - u))        τc = 2 (c - d) m / (n^2 (m - 1))

Source: Kendall, "The treatment of ties in ranking problems", 1945; Stuart, "The estimation and comparison of strengths
of association in contingency tables", 1953.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Kendall(NamedTuple):
    """Kendall's τb and Stuart's τc, each -1..1."""

    b: float
    c: float


def kendall(scores: np.ndarray, answers: np.ndarray) -> Kendall:
    """Correlate scores [n] with answers [n]; 0 where all scores or all answers are equal."""
    score_values, score_ranks = np.unique(scores, return_inverse=True)
    answer_values, answer_ranks = np.unique(answers, return_inverse=True)
    levels = min(len(score_values), len(answer_values))
    if levels < 2:
        return Kendall(0.0, 0.0)
    both = score_ranks * len(answer_values) + answer_ranks
    pairs = len(scores) * (len(scores) - 1) // 2
    untied_scores = pairs - _ties(score_ranks)
    untied_answers = pairs - _ties(answer_ranks)
    discordant = _inversions(answer_ranks[np.argsort(both)])
    difference = untied_scores + untied_answers - pairs + _ties(both) - 2 * discordant
    return Kendall(
        difference / math.sqrt(untied_scores * untied_answers),
        2 * difference * levels / (len(scores) ** 2 * (levels - 1)),
    )


def _ties(ranks: np.ndarray) -> int:
    """Count the pairs of equal ranks."""
    _, counts = np.unique(ranks, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: np.ndarray) -> int:
    """Count the pairs of ranks [n], whole numbers from 0, that stand in falling order.

    The highest bit in which two ranks differ decides, so that an inversion is a set bit before an unset one among ranks
    whose higher bits are equal.
    """
    count = 0
    for bit in range(int(ranks.max()).bit_length()):
        higher = ranks >> (bit + 1)
        order = np.argsort(higher, kind="stable")
        is_set = (ranks[order] >> bit) & 1
        set_before = np.cumsum(is_set) - is_set
        starts = np.searchsorted(higher[order], higher[order])
        count += int((set_before - set_before[starts])[is_set == 0].sum())
    return count
