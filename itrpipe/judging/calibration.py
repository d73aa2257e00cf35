"""Calibration of judges by people's decisions: from log-odds to probabilities that a pair is right.

Shapes: n decisions, P pairs, J judges.

Sources: Hanley and McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC) curve",
1982, with the variance as Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney
statistic", 2006, has it.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from itrpipe.judging.shares import LEAST, wilson

RIDGE = 0.3
"""Penalty of half the squares of the distance from the default curve, for standardised log-odds.

It is small beside what `LEAST` decisions tell. It keeps weights finite where judges separate all answers, and near the
default curve where few answers are right.
"""
LEAST_OF_A_KIND = 10
"""Answers of the rarer kind from which on a judge is said to know nothing if they do not show that it does."""
_FOLDS = 5
_BINS = 10
_LEAST_SPREAD = 1e-3


class Area(NamedTuple):
    """An area under the ROC curve, with its 95 % interval."""

    value: float
    low: float
    high: float


class Bin(NamedTuple):
    """Decisions whose probabilities lie in one tenth of 0..1: their mean, the share that is right, their number."""

    probability: float
    share: float
    decisions: int


@dataclass(frozen=True)
class Calibration:
    """A logistic curve over the log-odds of judges, and how good it is.

    What is said of it is cross-fitted: of each decision by a curve that saw no decision about its image. It holds for
    the decisions; where likely pairs were asked more often than others, more of all right pairs are missed than
    `recall` says.

    Attributes:
        weights: of each judge, 0 or more.
        bias: of the curve.
        decisions: n.
        knows: False where the answers do not show that the judges know anything, by the area's interval of 99 %,
            although ten are of either kind, or where all are the same; then all pairs have the same probability: the
            share of right answers, at most one half.
        auc: None where nothing was fitted, or all answers are the same.
        precision, recall: of the pairs above one half; None where there are none.
        reliability: bins by rising probability that hold decisions.
        held_out: cross-fitted probability of each decision, in their order.
    """

    weights: tuple[float, ...]
    bias: float
    decisions: int
    knows: bool = True
    auc: Area | None = None
    precision: float | None = None
    recall: float | None = None
    reliability: tuple[Bin, ...] = ()
    held_out: tuple[float, ...] = ()

    def probabilities(self, log_odds: np.ndarray) -> np.ndarray:
        """Return how likely pairs of these log-odds [P, J] are right, float32 [P]."""
        joined = log_odds @ np.array(self.weights) + self.bias
        return _sigmoid(joined).astype(np.float32)


def calibrate(log_odds: np.ndarray, answers: np.ndarray, images: np.ndarray) -> Calibration:
    """Fit the curve to people's decisions.

    Decisions may be drawn by strata of the log-odds: choosing by what a curve is given does not change how likely an
    answer is given that. Below `LEAST` decisions, or where all are about one image, nothing is fitted; the curve is
    the mean of the judges' log-odds.

    Args:
        log_odds: [n, J], finite.
        answers: bool [n], which pairs are right.
        images: [n], row of each decision's image.
    """
    log_odds = log_odds.astype(np.float64)
    decisions, judges = log_odds.shape
    image_rows, places = np.unique(images, return_inverse=True)
    if decisions < LEAST or len(image_rows) < 2:
        held_out = _sigmoid(log_odds.mean(axis=1))
        weights = (1 / judges,) * judges
        return Calibration(weights, 0.0, decisions, held_out=tuple(held_out.tolist()))

    fold_of_image = np.random.default_rng(0).permutation(len(image_rows)) % _FOLDS
    folds = fold_of_image[places]
    scores = np.empty(decisions)
    held_out = np.empty(decisions)
    for fold in range(_FOLDS):
        is_unseen = folds == fold
        weights, bias = _fit(log_odds[~is_unseen], answers[~is_unseen])
        joined = log_odds @ weights
        held_out[is_unseen] = _sigmoid(joined + bias)[is_unseen]
        # Bias and size of the weights differ by fold and would rank the pairs of one before those of another. What is
        # alike stays alike, whatever the rounding.
        standard = (joined - joined.mean()) / max(joined.std(), _LEAST_SPREAD)
        scores[is_unseen] = standard[is_unseen].round(6)

    auc = None
    knows = False
    if answers.any() and not answers.all():
        area, draws = area_under_curve(scores, answers)
        auc = Area(area, *wilson(area, draws))
        low, _ = wilson(area, draws, NormalDist().inv_cdf(0.995))
        right = int(answers.sum())
        knows = low > 0.5 or min(right, decisions - right) < LEAST_OF_A_KIND
    if knows:
        weights, bias = _fit(log_odds, answers)
    else:
        weights = np.zeros(judges)
        bias = min(_share_log_odds(answers), 0.0)
        held_out = np.full(decisions, _sigmoid(bias))

    precision = None
    recall = None
    called_right = answers[held_out > 0.5]
    if len(called_right):
        precision = float(called_right.mean())
    if answers.any():
        recall = float(called_right.sum() / answers.sum())
    return Calibration(
        weights=tuple(weights.tolist()),
        bias=float(bias),
        decisions=decisions,
        knows=knows,
        auc=auc,
        precision=precision,
        recall=recall,
        reliability=reliability_bins(held_out, answers),
        held_out=tuple(held_out.tolist()),
    )


def reliability_bins(probabilities: np.ndarray, answers: np.ndarray) -> tuple[Bin, ...]:
    """Compare probabilities [n] with answers, bool [n], in ten bins of equal width."""
    numbers = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    bins = []
    for number in np.unique(numbers):
        inside = numbers == number
        probability = float(probabilities[inside].mean())
        share = float(answers[inside].mean())
        bins.append(Bin(probability, share, int(inside.sum())))
    return tuple(bins)


def area_under_curve(scores: np.ndarray, answers: np.ndarray) -> tuple[float, float]:
    """Compute the area under the ROC curve, ties as half, and of how many draws a share would be as well known."""
    right = int(answers.sum())
    wrong = len(answers) - right
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = mean_ranks[places][answers].sum()
    area = float((rank_sum - right * (right + 1) / 2) / (right * wrong))
    # Two comparisons that share their right pair, or their wrong one, depend on each other.
    shared = (1 - area) / (2 - area) + area / (1 + area)
    return area, right * wrong / (1 + (len(answers) / 2 - 1) * shared)


def _fit(log_odds: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, float]:
    """Fit weights [J] and bias.

    A judge that says the same of all is left out, and one whose weight would be negative, the worst first.
    """
    centre = log_odds.mean(axis=0)
    spread = log_odds.std(axis=0)
    standard = (log_odds - centre) / np.maximum(spread, _LEAST_SPREAD)
    weights = np.zeros(len(centre))
    bias = _share_log_odds(answers)
    used = np.flatnonzero(spread > _LEAST_SPREAD)
    while len(used):
        features = np.column_stack([standard[:, used], np.ones(len(answers))])
        default = np.append(spread[used] / len(used), centre[used].mean())
        *slopes, bias = _maximise_likelihood(features, answers, default)
        if min(slopes) >= 0:
            weights[used] = slopes / spread[used]
            break
        used = np.delete(used, np.argmin(slopes))
    return weights, float(bias - weights @ centre)


def _maximise_likelihood(features: np.ndarray, answers: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Fit the weights of a logistic curve by Newton's method, with a ridge around `start`."""

    def loss(weights: np.ndarray) -> float:
        log_odds = features @ weights
        distances = weights - start
        return np.logaddexp(0, log_odds).sum() - answers @ log_odds + RIDGE / 2 * distances @ distances

    weights = start
    for _ in range(50):
        probabilities = _sigmoid(features @ weights)
        gradient = features.T @ (answers - probabilities) - RIDGE * (weights - start)
        curvature = (features.T * (probabilities * (1 - probabilities))) @ features + RIDGE * np.eye(len(start))
        step = np.linalg.solve(curvature, gradient)
        # Where judges nearly separate the answers, a full step may go far beyond.
        while loss(weights + step) > loss(weights):
            step /= 2
        weights = weights + step
        if np.abs(step).max() < 1e-4:
            break
    return weights


def _share_log_odds(answers: np.ndarray) -> float:
    """Return the log-odds of the share of right answers, half an answer added to either side."""
    right = answers.sum()
    return math.log((right + 0.5) / (len(answers) - right + 0.5))


def _sigmoid(log_odds: np.ndarray | float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(log_odds, -30, 30)))
