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
    difference = _ordered_pairs(counts) - _ordered_pairs(counts[:, ::-1])
    untied = _untied_pairs(counts.sum(axis=1)) * _untied_pairs(counts.sum(axis=0))
    return Kendall(difference / math.sqrt(untied), 2 * difference * levels / (len(scores) ** 2 * (levels - 1)))


def _ordered_pairs(counts: np.ndarray) -> float:
    """Count the pairs of which one lies in a higher row and a higher column of a table of counts."""
    lower = counts.cumsum(axis=0).cumsum(axis=1)
    return float((counts[1:, 1:] * lower[:-1, :-1]).sum())


def _untied_pairs(counts: np.ndarray) -> float:
    """Count the pairs of different values, each of which occurs so often."""
    return float(counts.sum() ** 2 - (counts**2).sum()) / 2
