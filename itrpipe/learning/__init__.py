"""Losses, sources of negatives, and estimates of false ones: functions of scores that know nothing of models.

The functions for users of other trainers are exported here. A batch of B pairs has scores [B, B], image i in row i and
text j in column j. The losses of one paper alone are in the folders of its methods: `itrpipe.methods.aoq.method` draws
from the lists of `itrpipe.mine` one image and one text for each pair; `itrpipe.methods.fne.method` has a memory of
earlier batches. `MinedCandidates` draws several negatives of one side.
"""

from itrpipe.learning.false_negatives import SimilarityStatistics, estimate_gaussians, probabilities
from itrpipe.learning.losses import hardest_triplet, infonce, sigmoid, sum_of_triplets, triplet_loss
from itrpipe.learning.mined import MinedCandidates

__all__ = [
    "MinedCandidates",
    "SimilarityStatistics",
    "estimate_gaussians",
    "hardest_triplet",
    "infonce",
    "probabilities",
    "sigmoid",
    "sum_of_triplets",
    "triplet_loss",
]
