"""Pairs of which it is known which are right, and judges of a known area under the ROC curve."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np


def population(share: float, area: float, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw which pairs are right, bool [P], and a judge's log-odds of it, float64 [P], which are the true ones."""
    answers = random.permutation(count) < share * count
    distance = NormalDist().inv_cdf(area) * math.sqrt(2)
    scores = random.normal(size=count) + distance * answers
    return answers, distance * (scores - distance / 2) + math.log(share / (1 - share))


def draw(strata: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw places of `count` decisions, equally many of each stratum."""
    numbers = np.unique(strata)
    rows = []
    for number in numbers:
        rows.append(random.permutation(np.flatnonzero(strata == number))[: count // len(numbers)])
    return np.concatenate(rows)
