"""Where negatives come from at training time: mined lists, memories of earlier batches, what is known of false ones.

What a training loop needs stands here. `OfflineNegatives` draws from the lists of `itrpipe.mine`, one image and one
text for each pair; `MinedCandidates` several of one side.
"""

from itrpipe.negatives.false_negatives import estimate_gaussians, probabilities
from itrpipe.negatives.memory import FeatureQueues, MomentumTwin, same_image_columns
from itrpipe.negatives.mined_candidates import MinedCandidates
from itrpipe.negatives.offline import FalseNegativeGuard, OfflineNegatives, OfflineQuintuplets

__all__ = [
    "FalseNegativeGuard",
    "FeatureQueues",
    "MinedCandidates",
    "MomentumTwin",
    "OfflineNegatives",
    "OfflineQuintuplets",
    "estimate_gaussians",
    "probabilities",
    "same_image_columns",
]
