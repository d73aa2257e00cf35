"""Where computing happens."""

from __future__ import annotations

from itrpipe.errors import UsageError

CUDA = "cuda"


def resolve_device(device: str) -> str:
    """`auto` becomes `cuda` where there is one, else `cpu`.

    Raises:
        UsageError: CUDA was asked for and is not there.
    """
    import torch

    if device == CUDA and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is visible; use --device cpu or check `itrpipe doctor`")
    if device != "auto":
        return device
    return CUDA if torch.cuda.is_available() else "cpu"
