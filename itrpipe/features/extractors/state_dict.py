"""State dicts in files of any origin, read without running what may be in them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from itrpipe.errors import DataError
from itrpipe.storage.disk import reading


def read_state(path: Path) -> dict[str, Tensor]:
    """Reads a state dict, alone in its file or under the key `model`; code in the file is never run.

    Raises:
        DataError: the file is damaged, or holds something else.
    """
    with reading(path, "weights", "get it again"):
        try:
            content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise DataError(
                f"{path} is damaged or holds Python objects beside its tensors, which are never loaded; "
                "name a plain state dict, or convert it to .safetensors."
            ) from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping):
        raise DataError(f"{path} holds a {type(content).__name__}; name a plain state dict.")
    return {str(key): _require_tensor(path, key, value) for key, value in content.items()}


def _require_tensor(path: Path, key: object, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise DataError(f"{path}: '{key}' is not a tensor; name a plain state dict.")
    return value


def refuse_not_finite(where: Path, state: Mapping[str, Tensor], remedy: str) -> None:
    """Refuses weights that would make every score NaN, before anything is computed with them.

    Args:
        where: file or folder of the weights.
        state: name -> tensor; whole numbers are passed over.
        remedy: for the message.

    Raises:
        DataError: a tensor holds NaN or infinity.
    """
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            bad = tensor.numel() - int(tensor.isfinite().sum())
            raise DataError(f"{where}: '{name}' holds {bad:,} values that are no finite numbers; {remedy}")


def first_line(error: Exception) -> str:
    """Returns the first line of what a library says of a failure."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
