"""What stands for a training that does not happen."""

from __future__ import annotations

from typing import ClassVar

from itrpipe.methods.declaration import MethodSettings
from itrpipe.papers import CLIP, Paper


class ZeroShot(MethodSettings):
    """The model keeps the weights that it was published with. Source: CLIP (Radford et al., ICML 2021)."""

    papers: ClassVar[tuple[Paper, ...]] = (CLIP,)
    trains: ClassVar[bool] = False
    unread: ClassVar[tuple[str, ...]] = ("auxiliary_weight", "mask_same_image", "sum_epochs")
