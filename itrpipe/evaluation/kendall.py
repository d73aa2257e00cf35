"""Kendall's rank correlation of scores with people's answers, which have ties: τb and Stuart's τc.

Of n (n - 1) / 2 pairs, c are in the same order by both and d in opposite ones; t and u are tied by either. With m
distinct answers, or scores where these are fewer,

    τb = (c - d) / sqrt((n (n - 1) / 2 - t) (n (n - 1) / 2 - u))        τc = 2 (c - d) m / (n^2 (m - 1))

Source: Kendall, "The treatment of ties in ranking problems", 1945; Stuart, "The estimation and comparison of strengths
of association in contingency tables", 1953.
"""

from __future__ import annotations

import math

import numpy as np


def tau_b(scores: np.ndarray, answers: np.ndarray) -> float:
    """Return τb, -1..1, of scores [n] with answers [n]; NaN where all scores or all answers are equal."""
    difference, untied_scores, untied_answers = _compared_pairs(scores, answers)
    product = untied_scores * untied_answers
    return difference / math.sqrt(product) if product else math.nan


def tau_c(scores: np.ndarray, answers: np.ndarray) -> float:
    """Return τc, -1..1, of scores [n] with answers [n]; NaN where all scores or all answers are equal."""
    difference, _, _ = _compared_pairs(scores, answers)
    levels = min(len(np.unique(scores)), len(np.unique(answers)))
    return 2 * difference * levels / (len(scores) ** 2 * (levels - 1)) if levels > 1 else math.nan


def _compared_pairs(scores: np.ndarray, answers: np.ndarray) -> tuple[int, int, int]:
    """Return c - d, and how many pairs are not tied by scores, and by answers."""
    _, score_ranks = np.unique(scores, return_inverse=True)
    _, answer_ranks = np.unique(answers, return_inverse=True)
    both = score_ranks * (int(answer_ranks.max()) + 1) + answer_ranks
    total = len(scores) * (len(scores) - 1) // 2
    tied_scores = _ties(score_ranks)
    tied_answers = _ties(answer_ranks)
    discordant = _inversions(answer_ranks[np.argsort(both, kind="stable")])
    concordant = total - tied_scores - tied_answers + _ties(both) - discordant
    return concordant - discordant, total - tied_scores, total - tied_answers


def _ties(ranks: np.ndarray) -> int:
    """Return how many pairs of ranks are equal."""
    _, counts = np.unique(ranks, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: np.ndarray) -> int:
    """Return how many pairs of ranks [n], whole numbers from 0, stand in falling order.

    Two ranks differ first in one of their bits, so that each inversion is counted at one of them: a set bit before an
    unset one, among ranks whose higher bits are equal.
    """
    found = 0
    for bit in range(int(ranks.max()).bit_length()):
        higher = ranks >> (bit + 1)
        order = np.argsort(higher, kind="stable")
        is_set = (ranks[order] >> bit) & 1
        set_before = np.cumsum(is_set) - is_set
        starts = np.searchsorted(higher[order], higher[order])  # of the ranks with equal higher bits
        found += int((set_before - set_before[starts])[is_set == 0].sum())
    return found
