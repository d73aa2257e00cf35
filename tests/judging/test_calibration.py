"""Judges calibrated by decisions: how good the probabilities are, and that a judge that knows nothing marks nothing."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.judging.calibration import calibrate
from itrpipe.judging.shares import LEAST, strata_of
from tests.judging.populations import draw, population

RANDOM = np.random.default_rng


def area(scores: np.ndarray, answers: np.ndarray) -> float:
    """The area under the ROC curve of scores without ties."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(len(scores))
    right, wrong = answers.sum(), (~answers).sum()
    return float((ranks[answers].sum() - right * (right - 1) / 2) / (right * wrong))


def calibration_error(probabilities: np.ndarray, answers: np.ndarray) -> float:
    """The mean distance of probabilities in each tenth of 0..1 from the share that is right (Naeini et al., 2015)."""
    bins = (probabilities * 10).astype(int)
    errors = np.bincount(bins, probabilities - answers)
    return float(np.abs(errors).sum() / len(answers))


@pytest.mark.parametrize("share", [0.3, 0.45, 0.6])
def test_judges_that_know_nothing_mark_nothing_and_it_is_said(share: float) -> None:
    random = RANDOM(0)
    known, marked = 0, []
    for _ in range(50):
        log_odds = random.normal(size=(100, 2))
        calibration = calibrate(log_odds, random.random(100) < share, np.arange(100) // 3)
        known += calibration.knows
        marked.append((calibration.probabilities(random.normal(size=(1_000, 2))) > 0.5).mean())
    assert np.mean(marked) <= 0.02
    assert known <= 2


@pytest.mark.parametrize("drawn", ["strata", "random"])
def test_probabilities_are_the_shares_that_they_say(drawn: str) -> None:
    random = RANDOM(0)
    errors = []
    for _ in range(30):
        answers, log_odds = population(0.3, 0.85, 20_000, random)
        scores = 0.3 * log_odds + 2
        strata = strata_of(scores) if drawn == "strata" else np.zeros(20_000, np.int64)
        rows = draw(strata, 100, random)
        calibration = calibrate(scores[rows, None], answers[rows], rows // 5)
        assert calibration.knows
        probabilities = calibration.probabilities(scores[:, None])
        errors.append(calibration_error(probabilities, answers))
    assert np.mean(errors) <= 0.08


def test_judges_together_are_as_good_as_the_best_and_one_that_errs_is_left_out() -> None:
    random = RANDOM(0)
    gains = []
    for _ in range(30):
        answers = random.random(10_000) < 0.3
        noise = random.normal(size=(10_000, 3)) * [1, 2, 2]
        log_odds = noise + answers[:, None] * [1.5, 1.8, 0]
        calibration = calibrate(log_odds[:100], answers[:100], np.arange(100) // 3)
        best = max(area(log_odds[:, 0], answers), area(log_odds[:, 1], answers))
        gains.append(area(log_odds @ calibration.weights, answers) - best)
    assert np.mean(gains) >= -0.005

    both = np.stack([log_odds[:100, 0], -log_odds[:100, 1]], axis=1)
    alone = calibrate(both[:, :1], answers[:100], np.arange(100))
    assert calibrate(both, answers[:100], np.arange(100)).weights == pytest.approx((*alone.weights, 0))
    both[:, 1] = 1 / 3
    found = calibrate(both.astype(np.float32), answers[:100], np.arange(100))
    assert found.weights == pytest.approx((*alone.weights, 0), abs=1e-4)


def test_what_is_said_of_it_is_cross_fitted_by_image() -> None:
    """Decisions about one image are alike here: a curve that saw some of them would know the rest."""
    images = np.repeat(np.arange(20), 5)
    answers = images < 8
    log_odds = RANDOM(0).normal(size=(20, 30))[images]
    assert not calibrate(log_odds, answers, images).knows
    assert calibrate(log_odds, answers, np.arange(100)).knows


def test_figures_of_a_judge_that_separates_most_answers() -> None:
    answers = np.arange(100) % 4 == 0
    log_odds = np.where(answers, 4.0, -4.0)
    log_odds[:4] *= -1
    calibration = calibrate(log_odds[:, None], answers, np.arange(100))
    assert calibration.auc is not None
    assert calibration.auc.value == pytest.approx(0.96)  # most pairs are ordered, and many alike
    assert calibration.auc.low < calibration.auc.value < calibration.auc.high
    assert (calibration.precision, calibration.recall) == (24 / 27, 24 / 25)
    assert np.isfinite(calibrate(np.where(answers, 9.0, -9.0)[:, None], answers, np.arange(100)).weights).all()


@pytest.mark.parametrize("answer", [False, True])
def test_answers_that_are_all_the_same_tell_nothing(answer: bool) -> None:
    calibration = calibrate(RANDOM(0).normal(size=(60, 1)), np.full(60, answer), np.arange(60))
    assert (calibration.knows, calibration.auc) == (False, None)
    assert calibration.probabilities(np.zeros((1, 1)))[0] == pytest.approx(0.5 if answer else 0, abs=0.01)


def test_a_few_right_answers_lower_probabilities_and_leave_the_judge_its_order() -> None:
    random = RANDOM(0)
    for _ in range(30):
        answers = np.arange(60) < 3
        log_odds = random.normal(size=(60, 1)) + 1.5 * answers[:, None]
        calibration = calibrate(log_odds, answers, np.arange(60))
        assert calibration.knows is True
        assert calibration.weights[0] > 0
        probabilities = calibration.probabilities(log_odds)
        assert probabilities.mean() == pytest.approx(0.05, abs=0.03), "half of all, by the default curve"


def test_few_decisions_are_only_counted() -> None:
    log_odds = RANDOM(0).normal(size=(LEAST - 1, 2))
    calibration = calibrate(log_odds, log_odds[:, 0] > 0, np.arange(LEAST - 1))
    assert (calibration.decisions, calibration.auc) == (LEAST - 1, None)
    expected = 1 / (1 + np.exp(-log_odds.mean(axis=1)))
    assert calibration.probabilities(log_odds) == pytest.approx(expected)
    assert calibration.held_out == pytest.approx(expected)
