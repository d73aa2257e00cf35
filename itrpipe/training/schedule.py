"""Learning-rate schedules as in the papers."""

from __future__ import annotations

from collections.abc import Sequence


def step_decay(base: float, epoch: int, *, every: int, factor: float) -> float:
    """Learning rate of an epoch: multiplied by `factor` after each `every` epochs.

    Args:
        base: rate of the first epoch.
        epoch: 0-based.
        every: epochs between decays.
        factor: multiplier, 0.1 in SCAN, BFAN, VSRN and VSE++.
    """
    return base * factor ** (epoch // every)


def decay_after(base: float, epoch: int, *, ends: Sequence[int], factor: float) -> float:
    """Learning rate of an epoch: multiplied by `factor` after each of the given numbers of epochs.

    Args:
        base: rate of the first epoch.
        epoch: 0-based.
        ends: numbers of epochs; FNE's code decays after 5 and 15.
        factor: multiplier.
    """
    return base * factor ** sum(epoch >= end for end in ends)


def warmup_and_linear_decay(base: float, update: int, *, warmup: int, total: int) -> float:
    """Learning rate of an update: rising linearly to `base` over the first ones, then falling linearly to 0.

    Args:
        base: highest rate, reached at update `warmup`.
        update: 0-based.
        warmup: updates until then.
        total: updates of the whole training; the rate would be 0 at the next one.

    Source: Devlin et al. (BERT), NAACL 2019, appendix; used by SSAMT.
    """
    if update < warmup:
        return base * (update + 1) / warmup
    return base * max(0.0, (total - update) / max(1, total - warmup))


def warmup_and_decay_to_floor(base: float, update: int, *, warmup: int, total: int, floor: float = 1e-8) -> float:
    """Learning rate of an update, as UNITER counts: the decay ends at the last update, and never below `floor`.

    Args:
        base: highest rate, reached at update `warmup`, counted from 1.
        update: 0-based.
        warmup: updates until then.
        total: updates of the whole training.
        floor: lowest rate.

    Source: UNITER and TAGS-DC, released code.
    """
    step = update + 1
    if step < warmup:
        return base * step / warmup
    return max(floor, base * (total - step) / max(1, total - warmup))
