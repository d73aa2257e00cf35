"""Weights of detectors and of published models, in one file: found, read, and given to a network.

Code that a file of weights holds is never run.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from itrpipe.encoders.encoder import refuse_not_finite
from itrpipe.errors import DataError, MissingInputError
from itrpipe.storage.disk import reading

RANDOM_NOTE = "random weights: these features are noise"
SUFFIXES = (".bin", ".pth", ".pt", ".safetensors")
# Counters of batches serve training only; not every file has them.
_COUNTER = ".num_batches_tracked"


def local_weights(weights: str) -> Path | None:
    """Return the file of weights that a setting names, itself or by the folder that holds it; None if it is neither.

    Raises:
        MissingInputError: the folder holds no such file, or the setting can name nothing else.
        DataError: the file has another suffix than `SUFFIXES`, or the folder holds several.
    """
    path = Path(weights).expanduser()
    if not path.exists():
        if path.suffix in SUFFIXES or path.is_absolute():
            raise MissingInputError(f"{path} does not exist; name a file of weights, or a folder that holds one.")
        return None
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [file for file in candidates if file.suffix in SUFFIXES]
    if len(files) != 1:
        is_empty = path.is_dir() and not files
        error = MissingInputError if is_empty else DataError
        raise error(f"{path} holds {len(files)} files of weights; name one that ends in {', '.join(SUFFIXES)}.")
    return files[0]


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Draw weights that are the same every time, and leave the caller's random numbers as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of the CPU alone, which is what is forked
        yield


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict, alone in its file or under the key `model`; code in the file is never run.

    Raises:
        DataError: the file is damaged, or holds something else.
    """
    remedy = "get it again, or name a plain state dict"
    with reading(path, "weights", remedy):
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            try:
                content = torch.load(path, "cpu", weights_only=True)
            except pickle.UnpicklingError:  # its message advises to run whatever the file holds
                raise DataError(
                    f"{path} is damaged or holds objects besides tensors, which are never loaded; {remedy}"
                ) from None
        state = {}
        for name, value in dict(content.get("model", content)).items():
            if not isinstance(value, Tensor):
                raise TypeError(f"'{name}' is not a tensor")
            state[str(name)] = value
    return state


def fill(network: nn.Module, path: Path, state: Mapping[str, Tensor], remedy: str) -> tuple[str, ...]:
    """Give a network all its tensors, in float32; it may have been made without memory for them.

    Args:
        network: it gets the tensors themselves, where they are float32 already.
        path: where they are from, for messages.
        state: the tensors of the file, by their names in the network.
        remedy: for messages.

    Returns:
        A note on tensors that the network does not have, if there are some.

    Raises:
        DataError: a tensor is missing, has another shape, or holds no finite numbers.
    """
    tensors = {name: torch.tensor(0) for name in network.state_dict() if name.endswith(_COUNTER)}
    for name, tensor in state.items():
        if tensor.is_floating_point():
            tensor = tensor.float()
        tensors[name] = tensor
    with reading(path, "weights", remedy):
        missing, unexpected = network.load_state_dict(tensors, strict=False, assign=True)
    if missing:
        raise DataError(f"{path} lacks '{missing[0]}', {len(missing)} tensors in all; {remedy}.")
    refuse_not_finite(path, network, remedy)
    further = [name for name in unexpected if not name.endswith(_COUNTER)]
    if not further:
        return ()
    return (f"{path}: '{further[0]}', one of {len(further)} tensors, is none of this network",)
