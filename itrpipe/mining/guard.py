"""The guard of mined lists: how likely each candidate is a false negative, by FNE's estimate.

Shapes: A anchors, K candidates of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.mining.lists import CandidateLists
from itrpipe.mining.mined import DIRECTIONS
from itrpipe.negatives.false_negatives import estimate_gaussians, probabilities

LEVELS = (0.5, 0.01)
"""Probabilities above which candidates are counted: likelier a match than not, and lambda of FNE (Eq. 13)."""


class Guard:
    """Estimates how likely each candidate is a false negative, some anchors at a time, and counts.

    Args:
        embeddings: of the training set, which the lists were mined with.
        prior: share of matches among all pairs, 0..1.
        batch_size: pairs whose negatives compete in the statistics of mismatches.

    Raises:
        UsageError: the model ranks hardly any pair above the others of its batch, so that there is no estimate.
    """

    def __init__(self, embeddings: SplitEmbeddings, *, prior: float, batch_size: int) -> None:
        rows = (embeddings.images, embeddings.texts, embeddings.caption_image)
        self._gaussians, self._prior = estimate_gaussians(*rows, batch_size=batch_size), prior
        self._above = {name: dict.fromkeys(map(str, LEVELS), 0) for name in DIRECTIONS}
        if not self._gaussians.usable():
            raise UsageError(
                f"--guard fne: the mining model ranks {int(self._gaussians.count[0])} training pairs above all others "
                "of their batch, too few to estimate from; train it longer or leave --guard out"
            )

    def probability(self, direction: str, lists: CandidateLists) -> np.ndarray:
        """Probability [a, K] float32 of every candidate; 0 behind the end of a shorter list."""
        found = probabilities(lists.scores, self._gaussians, self._prior)
        for level in LEVELS:
            self._above[direction][str(level)] += int((found > level).sum())
        return found

    def facts(self) -> dict[str, Any]:
        """Figures ready for JSON: `mean` and `variance` of `matches` and `mismatches`, and `above`.

        The last is direction -> level -> candidates above it.
        """
        sides = ("matches", "mismatches")
        moments = (("mean", self._gaussians.mean), ("variance", self._gaussians.variance))
        found: dict[str, Any] = {
            name: {side: round(value, 6) for side, value in zip(sides, moment.tolist(), strict=True)}
            for name, moment in moments
        }
        return found | {"above": self._above}
