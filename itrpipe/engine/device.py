"""Where computing happens."""

from __future__ import annotations

from itrpipe.errors import UsageError

CUDA = "cuda"


def resolve_device(device: str) -> str:
    """`auto` becomes `cuda` where there is one, else `cpu`.

    On a GPU, cuDNN is told for this process to keep single precision: by itself it multiplies in TF32, which keeps 10
    bits of a factor, and the same captions would score differently by 1e-4 in another batch.

    Raises:
        UsageError: it is none of these, or CUDA was asked for and is not there.
    """
    import torch

    if device not in ("auto", "cpu", CUDA):
        raise UsageError(f"device {device!r} is none of auto, cpu and {CUDA}; choose one")
    if device == CUDA and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is visible; use --device cpu or check `itrpipe doctor`")
    if device == "auto":
        device = CUDA if torch.cuda.is_available() else "cpu"
    if device == CUDA:
        torch.backends.cudnn.allow_tf32 = False
    return device


def has_bfloat16_units(device: str) -> bool:
    """Whether products in bfloat16 are faster there: on GPUs of compute capability 8 or higher and processors with AMX.

    Processors that have AVX-512's instructions for it alone took half as long again with them.
    """
    import torch

    if device == CUDA:
        return torch.cuda.get_device_capability() >= (8, 0)
    return torch.cpu._is_amx_tile_supported()
