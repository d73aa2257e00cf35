"""Nothing is trained: a pretrained joint model becomes an artifact that can be evaluated, mined with and exported."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from itrpipe.methods.base import Batch, PairsMethod
from itrpipe.methods.zero_shot.declaration import ZeroShot
from itrpipe.models.base import Matcher


class ZeroShotMethod(PairsMethod[ZeroShot]):
    """Has batches, as every method, and no loss."""

    def losses(self, model: Matcher[Any, Any], batch: Batch, epoch: int) -> dict[str, Tensor]:
        """None."""
        return {}


build = ZeroShotMethod
