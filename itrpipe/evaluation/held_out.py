"""How well one number tells where something pays: a threshold, fitted without the settings that it is tried on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """How often a rule was right in settings that it had not seen.

    Attributes:
        agreed: trials in which it told the sign of the gain.
        trials: all of them.
        constant: trials in which the better of "it always pays" and "it never pays" was right, chosen likewise.
        threshold: of the rule, fitted to all trials.
    """

    agreed: int
    trials: int
    constant: int
    threshold: float


def leave_one_out(values: Sequence[float], paid: Sequence[bool], settings: Sequence[Hashable]) -> Agreement:
    """Tries the rule `it pays where the value is above a threshold` on every setting, fitted to all others.

    Args:
        values: of the number, one for each trial.
        paid: whether there was a gain.
        settings: of each trial; all trials of one are left out together. There are two at least.
    """
    numbers, signs = np.asarray(values, dtype=float), np.asarray(paid, dtype=bool)
    agreed = constant = 0
    for setting in dict.fromkeys(settings):
        held = np.array([each == setting for each in settings])
        threshold = fitted_threshold(numbers[~held], signs[~held])
        agreed += int(((numbers[held] > threshold) == signs[held]).sum())
        constant += int((signs[held] == (2 * signs[~held].sum() > (~held).sum())).sum())
    return Agreement(agreed, len(numbers), constant, fitted_threshold(numbers, signs))


def fitted_threshold(values: np.ndarray, paid: np.ndarray) -> float:
    """The threshold that agrees most often; of several the middle of the widest gap between two values.

    Args:
        values: float [n].
        paid: bool [n].

    Returns:
        Minus or plus infinity where no value between is better than always or never.
    """
    order = np.sort(np.unique(values))
    between = (order[:-1] + order[1:]) / 2
    candidates = np.concatenate([[-np.inf], between, [np.inf]])
    widths = np.concatenate([[0.0], np.diff(order), [0.0]])
    right = ((values[None, :] > candidates[:, None]) == paid).sum(axis=1)
    best = np.flatnonzero(right == right.max())
    return float(candidates[best[np.argmax(widths[best])]])
