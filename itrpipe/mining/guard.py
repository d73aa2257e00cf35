"""The guard of mined lists: how likely each candidate is a false negative, by FNE's estimate.

Shapes: A anchors, K candidates of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.mining.lists import CandidateLists
from itrpipe.negatives.false_negatives import estimate_gaussians, probabilities

LEVELS = (0.5, 0.01)
"""Probabilities above which candidates are counted: likelier a match than not, and lambda of FNE (Eq. 13)."""


def guarded(
    embeddings: SplitEmbeddings, lists: Mapping[str, CandidateLists], *, prior: float, batch_size: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Estimates the probability of every candidate.

    Args:
        embeddings: of the training set, which the lists were mined with.
        lists: direction -> lists after all filters.
        prior: share of matches among all pairs, 0..1.
        batch_size: pairs whose negatives compete in the statistics of mismatches.

    Returns:
        Direction -> [A, K] float32, 0 behind the end of a shorter list; and figures ready for JSON: `mean` and
        `variance` of `matches` and `mismatches`, and `above`: direction -> level -> candidates above it.

    Raises:
        UsageError: the model ranks hardly any pair above the others of its batch, so that there is no estimate.
    """
    rows = (embeddings.images, embeddings.texts, embeddings.caption_image)
    gaussians = estimate_gaussians(*rows, batch_size=batch_size)
    if not gaussians.usable():
        raise UsageError(
            f"--guard fne: the mining model ranks {int(gaussians.count[0])} training pairs above all others of their "
            "batch, too few to estimate from; train it longer or leave --guard out"
        )
    found = {name: probabilities(each.scores, gaussians, prior) for name, each in lists.items()}
    sides = ("matches", "mismatches")
    facts: dict[str, Any] = {
        name: {side: round(value, 6) for side, value in zip(sides, moment.tolist(), strict=True)}
        for name, moment in (("mean", gaussians.mean), ("variance", gaussians.variance))
    }
    facts["above"] = {name: {str(level): int((each > level).sum()) for level in LEVELS} for name, each in found.items()}
    return found, facts
