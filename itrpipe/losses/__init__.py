"""Losses, one file per paper: functions of score tensors, or of embeddings, that know nothing of models.

The most wanted stand here; those of all methods are in the modules below. A batch of B pairs has scores [B, B], image i
in row i and text j in column j.
"""

from itrpipe.losses.contrastive import hardest_triplet, infonce, sigmoid, sum_of_triplets
from itrpipe.losses.fne import SamplingRules
from itrpipe.losses.fne_loss import FneLoss
from itrpipe.losses.quintuplet import (
    OfflineScores,
    adaptive_offline_quintuplet_loss,
    offline_quintuplet_loss,
    offline_triplet_loss,
)
from itrpipe.losses.triplet import triplet_loss

__all__ = [
    "FneLoss",
    "OfflineScores",
    "SamplingRules",
    "adaptive_offline_quintuplet_loss",
    "hardest_triplet",
    "infonce",
    "offline_quintuplet_loss",
    "offline_triplet_loss",
    "sigmoid",
    "sum_of_triplets",
    "triplet_loss",
]
