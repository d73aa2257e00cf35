"""The embedded dataset's truth in the place of a reviewer, so that plans of judging can be tried."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from itrpipe.datasets.pairs import PairSet
from itrpipe.review.agreement import Share, share_of
from itrpipe.review.decisions import DIFFERS, FITS, DecisionFile
from itrpipe.review.queue import Queue

NAME = "oracle"
WITHIN = 0.02
"""Half of the interval at which a share counts as known."""


@dataclass(frozen=True)
class Trial:
    """How fast judgements of a random order tell the share of false negatives.

    Attributes:
        true: share among all, 0..1.
        steps: judgements -> what they tell.
        needed: judgements from which on half of the interval is at most `WITHIN`; None where all are too few.
    """

    true: float
    steps: dict[int, Share]
    needed: int | None


def judge(queue: Queue, true: PairSet, file: DecisionFile, budget: int) -> int:
    """Answers the next pairs of a queue by the truth.

    Returns:
        How many were left to answer, at most `budget`.
    """
    places = queue.upcoming(file.read().of(NAME), budget)
    own = queue.candidates
    fits = true.has(own.captions[places], own.images[places])
    file.add([queue.judgement(place, NAME, FITS if fit else DIFFERS) for place, fit in zip(places, fits, strict=True)])
    return len(places)


def trial(queue: Queue, true: PairSet) -> Trial:
    """Judges all of a random order, without writing anything.

    Args:
        queue: in a random order.
        true: all true matches.
    """
    own, places = queue.candidates, queue.places
    found = np.cumsum(true.has(own.captions[places], own.images[places]))
    steps = [count for count in (50, 100, 200, 500, 1_000, 2_000, 5_000) if count <= len(places)]
    known = (share_of(int(fits), count, len(places)) for count, fits in enumerate(found, 1))
    shares = {count: share_of(int(found[count - 1]), count, len(places)) for count in steps}
    needed = next((each.judged for each in known if each.half_width <= WITHIN), None)
    return Trial(float(found[-1] / len(places)), shares, needed)
