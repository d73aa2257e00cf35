"""Encoders that torch compiles for the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from itrpipe.errors import UsageError


def compile_encoders(model: nn.Module, device: torch.device) -> None:
    """Lets torch compile the parts of a model when they are first called; their weights and names stay as they are.

    Lengths of captions and sizes of batches may differ from step to step. A copy of the model is not compiled.

    Args:
        model: is changed, on its device.
        device: that of the model.

    Raises:
        UsageError: torch cannot compile for this device, for example because there is no compiler.
    """
    try:
        torch.compile(torch.sin, dynamic=True)(torch.zeros(8, device=device))
    except Exception as error:  # torch raises errors of its own, of the compiler and of the system
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"compile = true, but torch cannot compile for {device.type} here ({reason}); install what it misses, or "
            "give --set train.compile=false"
        ) from None
    for part in _called(model):
        part.compile(dynamic=True)


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module; of lists, what they hold, since nothing calls a list."""
    for part in module.children():
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            yield from _called(part)
        else:
            yield part
