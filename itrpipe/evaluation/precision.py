"""How well a ranking gathers all correct matches of a query, where it has several: mAP@R and R-Precision.

For a query with R correct matches, of whose ranking rel(i) tells whether place i (from one) holds a match:

    R-Precision = 1/R sum_{i<=R} rel(i)        AP@R = 1/R sum_{i<=R} rel(i) P(i)        P(i) = 1/i sum_{j<=i} rel(j)

mAP@R is the mean of AP@R over the queries. Recall looks at the best match alone; these look at all of them.

Source: mAP@R by Musgrave et al., "A Metric Learning Reality Check", ECCV 2020, section 3.2, and for image-text
retrieval Chun et al., "ECCV Caption", ECCV 2022, section 4. The rule for ties is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.evaluation.metrics import check_finite, refuse_unmatched

_BLOCK_VALUES = 1 << 22
"""Scores ranked at a time."""


@dataclass(frozen=True)
class Precision:
    """Precision measures of each of Q queries.

    Attributes:
        average: [Q] AP@R, 0..1.
        r_precision: [Q] R-Precision, 0..1.
    """

    average: np.ndarray
    r_precision: np.ndarray


def precision_of_matches(scores: np.ndarray, match_query: np.ndarray, match_candidate: np.ndarray) -> Precision:
    """AP@R and R-Precision of every query.

    A negative with the score of a match counts as ahead of it.

    Args:
        scores: [Q, C] score of every query with every candidate, higher is better.
        match_query: [M] query of each correct match; matches are distinct.
        match_candidate: [M] its candidate.

    Raises:
        DataError: a score is NaN or infinite, or a query has no match.
    """
    check_finite(scores)
    refuse_unmatched(match_query, len(scores))
    matches = np.bincount(match_query, minlength=len(scores))  # [Q] R
    order = np.argsort(match_query, kind="stable")
    query, candidate = match_query[order], match_candidate[order]
    height = max(1, _BLOCK_VALUES // scores.shape[1])
    found = []
    for start in range(0, len(scores), height):
        part = slice(*np.searchsorted(query, [start, start + height]))
        block = scores[start : start + height]
        relevant = np.zeros(block.shape, dtype=bool)
        relevant[query[part] - start, candidate[part]] = True
        found.append(_of_block(block, relevant, matches[start : start + height]))
    average, r_precision = (np.concatenate(each) for each in zip(*found, strict=True))
    return Precision(average, r_precision)


def _of_block(scores: np.ndarray, relevant: np.ndarray, matches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AP@R and R-Precision of queries with all their candidates, and R of each."""
    count, most = scores.shape[1], int(matches.max())
    least = np.partition(scores, count - most, axis=1)[:, count - most]  # [Q] the R-th best score of the largest R
    rows, columns = np.nonzero(scores >= least[:, None])
    hit = relevant[rows, columns]
    order = np.lexsort((hit, -scores[rows, columns], rows))  # of equal scores, negatives come first
    rows, hit = rows[order], hit[order]
    first = np.searchsorted(rows, np.arange(len(scores)))
    place = np.arange(len(rows)) - first[rows]
    before = np.concatenate([[0], np.cumsum(hit)])
    hits = before[1:] - before[first[rows]]
    counted = hit & (place < matches[rows])
    totals = [np.bincount(rows, weights, len(scores)) / matches for weights in (counted * hits / (place + 1), counted)]
    return totals[0], totals[1]
