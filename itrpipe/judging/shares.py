"""Shares of right answers among many pairs, estimated from few decisions of people.

Shapes: P pairs, n decisions.

Sources: Angelopoulos et al., "Prediction-powered inference", Science 2023; Wilson, "Probable inference, the law of
succession, and statistical inference", 1927.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from itrpipe.datasets.truth import PairSet

_NORMAL = NormalDist().inv_cdf(0.975)
_STRATUM_ENDS = (0.5, 0.75, 0.875, 0.9375)
_LEAST_DOUBT = 1e-6
LEAST = 50
"""Decisions of people from which they calibrate judges and correct shares; below, what judges say stands alone."""
TEN_HARDEST = "1-10"
"""Span that people are asked about."""
RANKS = {
    TEN_HARDEST: (1, 10),
    "1": (1, 1),
    "2": (2, 2),
    "3-5": (3, 5),
    "6-10": (6, 10),
    "11-60": (11, 60),
}
"""Spans of ranks of which shares are shown, with the first and the last rank of each."""


class Share(NamedTuple):
    """A share of many, with a 95 % interval.

    Attributes:
        value: 0..1.
        low, high: ends of the interval, 0 and 1 where nothing can be told.
        decisions: that it rests on.
    """

    value: float
    low: float
    high: float
    decisions: int

    def percent(self) -> dict[str, float]:
        """Return `value`, `low` and `high` in percent; the value alone where the interval is all of 0..1."""
        names = ["value"]
        if self.high - self.low < 1:
            names += ["low", "high"]
        return {name: 100 * getattr(self, name) for name in names}


def wilson(value: float, draws: float, quantile: float = _NORMAL) -> tuple[float, float]:
    """Compute the ends of Wilson's interval of a share that is known as from so many independent draws."""
    square = quantile * quantile
    centre = (value + square / (2 * draws)) / (1 + square / draws)
    variance = value * (1 - value) / draws + square / (4 * draws * draws)
    reach = quantile / (1 + square / draws) * math.sqrt(variance)
    # Of nothing, or of all, an end is the share itself, and rounding would put it beside.
    low = min(value, max(0.0, centre - reach))
    high = max(value, min(1.0, centre + reach))
    return low, high


def strata_of(scores: np.ndarray) -> np.ndarray:
    """Cut pairs into strata by their scores [P]: the lower half is 0, the next quarter 1, …, the top sixteenth 4."""
    places = np.empty(len(scores), dtype=np.int64)
    places[np.argsort(scores, kind="stable")] = np.arange(len(scores))
    ends = np.array(_STRATUM_ENDS) * len(scores)
    return np.searchsorted(ends, places, side="right")


def lots_of(pairs: PairSet) -> np.ndarray:
    """Return a random number of each pair, float64 [P] in 0..1, which depends on nothing else.

    It is the fraction of the sum of the image's and the caption's, so that those of any two pairs are independent.
    """
    images, captions = pairs.image_rows, pairs.caption_rows
    random = np.random.default_rng(0)
    of_images = random.random(pairs.images)
    of_captions = random.random(captions.max(initial=-1) + 1)
    return (of_images[images] + of_captions[captions]) % 1


def drawn_at_random(strata: np.ndarray, lots: np.ndarray, is_judged: np.ndarray) -> np.ndarray:
    """Return which pairs people judged that are random ones of their stratum, whatever else they judged; bool [P].

    Their lots are below all lots of the stratum that nobody judged.

    Args:
        strata: int [P] from 0.
        lots: [P] of `lots_of`.
        is_judged: bool [P], also by people who were not sure, since these pairs were drawn as well.
    """
    limits = np.full(strata.max(initial=0) + 1, np.inf)
    np.minimum.at(limits, strata[~is_judged], lots[~is_judged])
    return lots < limits[strata]


def share_with_doubts(probabilities: np.ndarray, rows: np.ndarray, answers: np.ndarray, strata: np.ndarray) -> Share:
    """Estimate a share as `share_right` does; doubtful answers do not count for its value, but for both ends.

    Args:
        probabilities, rows, strata: see `share_right`.
        answers: [n] 1 right, 0 wrong, NaN where nobody was sure, or people do not agree.
    """
    is_sure = ~np.isnan(answers)
    sure = share_right(probabilities, rows[is_sure], answers[is_sure] == 1, strata)
    low = share_right(probabilities, rows, answers == 1, strata).low
    high = share_right(probabilities, rows, answers != 0, strata).high
    return Share(sure.value, low, high, len(rows))


def share_right(probabilities: np.ndarray, rows: np.ndarray, answers: np.ndarray, strata: np.ndarray) -> Share:
    """Estimate the share of right pairs by a judge's probabilities, corrected by decisions.

    The mean probability is corrected by the mean of answer less probability among the decisions of each stratum, which
    is right however wrong the judge is, and the surer the better the judge. A stratum with fewer than two decisions is
    joined with the next one above it, the last with the one below.

    Args:
        probabilities: [P]. Those of decided pairs must not have seen their answers: `Calibration.held_out`. Without a
            judge all are the same, such as the share of right decisions.
        rows: [n] places of the decided pairs, each once, drawn at random within their stratum.
        answers: bool [n], which of them are right.
        strata: int [P] from 0, from which the decisions were drawn: `strata_of` the mean log-odds of the judges as they
            were then. Once calibrated, strata are others, of which these decisions are no random sample.

    Returns:
        The share. With fewer than two decisions it is the judge's alone, and its interval is all of 0..1.
    """
    probabilities = np.clip(probabilities, _LEAST_DOUBT, 1 - _LEAST_DOUBT, dtype=np.float64)
    decisions = len(rows)
    guess = float(probabilities.mean())
    if decisions < 2:
        return Share(guess, 0.0, 1.0, decisions)
    strata = _join_strata(strata, rows)
    stratum_of_decision = strata[rows]
    sizes = np.bincount(strata)
    counts = np.bincount(stratum_of_decision)
    weights = sizes / len(strata)

    errors = answers - probabilities[rows]
    means = np.bincount(stratum_of_decision, errors) / counts
    value = float(np.clip(guess + weights @ means, 0, 1))

    # Where right pairs are rare, few decisions have small errors by chance; a judge may be too sure of itself. So the
    # variance of an error is the mean of what is seen in its stratum, and of what the judge expects, made as large as
    # errors are in all.
    doubts = probabilities * (1 - probabilities)
    deviations = errors - means[stratum_of_decision]
    seen = np.bincount(stratum_of_decision, deviations**2) / (counts - 1)
    expected = np.bincount(strata, doubts) / sizes
    expected *= max(1.0, (errors**2).sum() / doubts[rows].sum())
    variance = float(weights**2 / counts * (1 - counts / sizes) @ (seen + expected) / 2)
    if not variance:
        return Share(value, value, value, decisions)
    middle = (value + guess) / 2
    draws = middle * (1 - middle) / variance
    student_quantile = _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * (decisions - len(counts)))
    low, high = wilson(value, draws, student_quantile)
    return Share(value, low, high, decisions)


def share_by_rank(
    probabilities: np.ndarray,
    rows: np.ndarray,
    answers: np.ndarray,
    strata: np.ndarray,
    ranks: np.ndarray,
) -> dict[str, Share]:
    """Estimate the share of right pairs as `share_right` does for each span of `RANKS`.

    All are of one kind, so that they can be compared. Spans with `LEAST` decisions or more are corrected by these, and
    the others left out; where no span has as many, all are the judge's alone.

    Args:
        answers: [n] 1 right, 0 wrong, NaN doubtful.
        ranks: int [P] from 1. Spans without any pair are left out.
    """
    spans = {}
    corrected = {}
    for span, (first, last) in RANKS.items():
        inside = (ranks >= first) & (ranks <= last)
        if inside.any():
            spans[span] = inside
        if np.count_nonzero(inside[rows]) >= LEAST:
            corrected[span] = inside
    if corrected:
        spans = corrected
    else:
        rows = rows[:0]  # the judge alone
        answers = answers[:0]

    shares = {}
    for span, inside in spans.items():
        place_in_span = np.cumsum(inside) - 1
        is_inside = inside[rows]
        places = place_in_span[rows[is_inside]]
        shares[span] = share_with_doubts(probabilities[inside], places, answers[is_inside], strata[inside])
    return shares


def _join_strata(strata: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Join strata [P] until each has two decisions, whose places are `rows`; return their new numbers [P]."""
    counts = np.bincount(strata[rows], minlength=strata.max() + 1)
    numbers = np.zeros(len(counts), dtype=np.int64)
    number = 0
    decisions = 0
    for stratum, count in enumerate(counts):
        numbers[stratum] = number
        decisions += count
        if decisions >= 2:
            number += 1
            decisions = 0
    return np.minimum(numbers, number - 1)[strata]
