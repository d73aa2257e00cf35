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
    """Correlate scores [n] with answers [n], of which few differ; 0 where all scores or all answers are equal."""
    score_values, rows = np.unique(scores, return_inverse=True)
    answer_values, columns = np.unique(answers, return_inverse=True)
    levels = min(len(score_values), len(answer_values))
    if levels < 2:
        return Kendall(0.0, 0.0)
    counts = np.zeros((len(score_values), len(answer_values)))
    np.add.at(counts, (rows, columns), 1)
    concordant = _ordered_pairs(counts)
    discordant = _ordered_pairs(counts[:, ::-1])
    difference = concordant - discordant

    untied_scores = _untied_pairs(counts.sum(axis=1))
    untied_answers = _untied_pairs(counts.sum(axis=0))
    tau_b = difference / math.sqrt(untied_scores * untied_answers)
    tau_c = 2 * difference * levels / (len(scores) ** 2 * (levels - 1))
    return Kendall(tau_b, tau_c)


def _ordered_pairs(counts: np.ndarray) -> float:
    """Count the pairs of which one lies in a higher row and a higher column of a table of counts."""
    lower = counts.cumsum(axis=0).cumsum(axis=1)
    pairs = counts[1:, 1:] * lower[:-1, :-1]
    return float(pairs.sum())


def _untied_pairs(counts: np.ndarray) -> float:
    """Count the pairs of different values, given how often each value occurs."""
    ordered = counts.sum() ** 2 - (counts**2).sum()
    return float(ordered) / 2
