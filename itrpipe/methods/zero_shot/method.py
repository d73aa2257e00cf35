"""Nothing is trained: a pretrained joint model becomes an artifact that can be evaluated, mined with and exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from itrpipe.methods.base import Batch, PairSource, positive_pairs
from itrpipe.methods.zero_shot.declaration import ZeroShot
from itrpipe.models.base import Matcher


class ZeroShotMethod:
    """Has batches, as every method, and no loss.

    Args:
        data: the training set.
    """

    means = True

    def __init__(self, data: PairSource) -> None:
        self._data = data

    def collate(self, captions: np.ndarray, rng: np.random.Generator) -> Batch:
        """The captions and their images."""
        return positive_pairs(self._data, captions, rng)

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """None."""
        return {}


def build(settings: ZeroShot, data: PairSource, lists: Mapping[str, np.ndarray]) -> ZeroShotMethod:
    """Makes the method."""
    return ZeroShotMethod(data)
