"""Judge pairs by their scores in the mining model alone: the posterior of false-negative elimination.

It knows what the model knows, and where that ranks its own pairs far above others, it calls nothing a match.

Source: FNE (Li et al., ACM MM 2023), Eq. 9; see `itrpipe.learning.false_negatives`.
"""

from dataclasses import dataclass

import numpy as np
import torch

from itrpipe.errors import UsageError
from itrpipe.judging.dual import DualJudge
from itrpipe.judging.material import Material
from itrpipe.learning.false_negatives import Gaussians, estimate_gaussians, match_log_odds


@dataclass(eq=False)
class FneJudge(DualJudge):
    """Turns scores of the mining model into log-odds of a match.

    Attributes:
        gaussians: of the scores of matches and mismatches.
        prior: share of matches among all pairs, 0..1.
    """

    gaussians: Gaussians
    prior: float

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return log-odds [P] float32 of rows [P] and [P]."""
        scores = torch.from_numpy(super().__call__(images, captions))
        return match_log_odds(scores, self.gaussians, self.prior, monotone=True).numpy()


def build(model: str, material: Material, device: str, revision: str) -> FneJudge:
    """Open the judge.

    Args:
        model: prior, share of matches among all pairs.
        material: with vectors of the mining model.
        device, revision: of no use here.

    Raises:
        UsageError: there are no vectors, or the model ranks hardly any pair above the others of its batch.
    """
    if material.vectors is None:
        raise UsageError("judge fne reads the vectors of the mining model, and there are none; name another judge")
    images, captions = (rows.read(0, rows.shape[0]) for rows in material.vectors)
    with_owner = np.flatnonzero(material.owners >= 0)
    gaussians = estimate_gaussians(
        images,
        captions[with_owner],
        material.owners[with_owner],
        batch_size=32,
    )
    if not gaussians.usable():
        raise UsageError(
            f"judge fne: the mining model ranks {int(gaussians.count[0])} training pairs above all others of their "
            "batch, too few to estimate from; train it longer or name another judge"
        )
    return FneJudge(images, captions, material, gaussians, float(model))
