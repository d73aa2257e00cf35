"""Learning-rate schedules as in the papers."""

from __future__ import annotations


def step_decay(base: float, epoch: int, *, every: int, factor: float) -> float:
    """Learning rate of an epoch: multiplied by `factor` after each `every` epochs.

    Args:
        base: rate of the first epoch.
        epoch: 0-based.
        every: epochs between decays.
        factor: multiplier, 0.1 in SCAN, BFAN, VSRN and VSE++.
    """
    return base * factor ** (epoch // every)
