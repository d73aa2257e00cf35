"""What a GPU would be waited for, seen on a processor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_BY_INDEX = ("index", "index_put", "index_put_")
_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")


class Waits(TorchDispatchMode):
    """Notes each operation that waits for a device: it reads a value, or its shape depends on values.

    Attributes:
        seen: their names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in _WAITING or (name in _BY_INDEX and any(map(_is_mask, args[1]))):
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


def _is_mask(index: Tensor | Iterable | None) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool
