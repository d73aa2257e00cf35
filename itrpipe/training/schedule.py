"""Learning rates: schedules as in the papers, and rates for batches of other sizes than theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence

_POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


def scaled_rate(rate: float, pairs: int, base_pairs: int, rule: str) -> float:
    """Learning rate for another batch size than that for which it was found.

    Args:
        rate: found with `base_pairs`.
        pairs: of an update.
        base_pairs: of an update then.
        rule: `none`, `linear` in the batch size, or `sqrt`, its square root.

    Source: linear, of SGD: Goyal et al., "Accurate, Large Minibatch SGD", 2017, which asks for a warm-up beside it.
        Square root, of Adam: Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022.
    """
    return rate * (pairs / base_pairs) ** _POWERS[rule]


def warmed_up(rate: float, update: int, warmup: int) -> float:
    """Learning rate of an update (0-based), which rises linearly over the first ones.

    Source: Goyal et al., 2017, gradual warm-up.
    """
    return rate * min(1.0, (update + 1) / max(1, warmup))


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


def warmup_and_cosine_decay(base: float, update: int, *, warmup: int, total: int) -> float:
    """Learning rate of an update: rising linearly to `base`, then falling to 0 along half a cosine.

    Arguments as in `warmup_and_linear_decay`.

    Source: Loshchilov and Hutter, "SGDR", 2017; Radford et al., "CLIP", 2021.
    """
    if update < warmup:
        return warmed_up(base, update, warmup)
    return base * (1 + math.cos(math.pi * min(1.0, (update - warmup) / max(1, total - warmup)))) / 2


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
