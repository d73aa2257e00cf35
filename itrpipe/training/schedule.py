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


def warmup_and_linear_decay(base: float, update: int, *, warmup: int, total: int) -> float:
    """Learning rate of an update: rising linearly to `base` over the first ones, then falling linearly to 0.

    Args:
        base: highest rate, reached at update `warmup`.
        update: 0-based.
        warmup: updates until then.
        total: updates of the whole training; the rate would be 0 at the next one.

    Source: Devlin et al. (BERT), NAACL 2019, appendix; used by SSAMT, UNITER and TAGS-DC.
    """
    if update < warmup:
        return base * (update + 1) / warmup
    return base * max(0.0, (total - update) / max(1, total - warmup))
