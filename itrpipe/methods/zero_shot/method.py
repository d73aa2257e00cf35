"""Nothing is trained: a pretrained joint model becomes an artifact that can be evaluated, mined with and exported."""

from __future__ import annotations

from torch import Tensor

from itrpipe.methods.base import AnyMatcher, Batch, Method
from itrpipe.methods.zero_shot.declaration import ZeroShot


class ZeroShotMethod(Method[ZeroShot]):
    """Has batches, as every method, and no loss."""

    def losses(self, model: AnyMatcher, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """Return no loss."""
        return {}


build = ZeroShotMethod
