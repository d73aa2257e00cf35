"""Thresholds fitted to some settings and tried on another."""

from __future__ import annotations

import math

import numpy as np

from itrpipe.evaluation.held_out import fitted_threshold, leave_one_out


def test_a_number_that_tells_is_right_where_it_was_not_fitted() -> None:
    found = leave_one_out([1, 2, 3, 7, 8, 9], [False, False, False, True, True, True], "abcdef")
    assert (found.agreed, found.trials, found.threshold) == (6, 6, 5.0)
    assert found.constant == 0  # without one trial, the other sign is the more frequent one


def test_trials_of_one_setting_are_left_out_together() -> None:
    values, paid = [1, 9, 1, 9], [True, False, False, True]
    # The rule of b is wrong twice in a; of a "always" agrees as often as any threshold, which is right once in b.
    assert leave_one_out(values, paid, "aabb").agreed == 1


def test_where_everything_pays_the_threshold_is_below_all() -> None:
    assert fitted_threshold(np.array([1.0, 2.0]), np.array([True, True])) == -math.inf
    assert fitted_threshold(np.array([1.0, 2.0]), np.array([False, False])) == math.inf


def test_of_thresholds_that_agree_alike_the_widest_gap_is_taken() -> None:
    values, paid = np.array([0.0, 1.0, 6.0, 7.0]), np.array([False, False, True, True])
    assert fitted_threshold(values, paid) == 3.5
