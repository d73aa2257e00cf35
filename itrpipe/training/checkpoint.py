"""Everything a training run needs to go on at the exact step, in one safetensors file.

Model, optimiser moments, the method's state, random-number states, position in the epoch, running sums
and history go into tensors and one JSON text; nothing is pickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.storage.artifact import partial_of
from itrpipe.storage.disk import CHECKSUM, STAMP_HERE, check_stamp, stamped, unavailable, write_bytes
from itrpipe.storage.integrity import checked


@dataclass
class Position:
    """How far a run has come.

    Attributes:
        epoch: epochs finished.
        step: steps finished inside the current epoch.
        updates: optimiser updates finished.
        sums: running sums of losses and statistics since the last validation.
        history: one row per validation.
        best_score, best_row: best validation so far; the row is -1 before the first.
        plateaus: numbers of validations after which the rate fell because they were flat.
        seconds: training time spent so far in all runs.
    """

    epoch: int = 0
    step: int = 0
    updates: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best_score: float = float("-inf")
    best_row: int = -1
    plateaus: list[int] = field(default_factory=list)
    seconds: float = 0.0


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    method_state: nn.Module | None = None,
    average: nn.Module | None = None,
) -> None:
    """Writes a checkpoint atomically, with the states of the method and of an average of weights, if there are any."""
    tensors = {}
    for prefix, part in (("model", model), ("method", method_state), ("average", average)):
        if part is not None:
            tensors |= {f"{prefix}/{name}": tensor for name, tensor in part.state_dict().items()}
    tensors |= {f"optimizer/{name}": tensor for name, tensor in _optimizer_tensors(optimizer).items()}
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    # Under one key, because safetensors writes several in any order.
    known = json.dumps({**asdict(position), CHECKSUM: STAMP_HERE})
    write_bytes(path, stamped(save(tensors, {"position": known})))


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method_state: nn.Module | None = None,
    average: nn.Module | None = None,
) -> Position:
    """Puts model, optimiser, method, average and random-number state back to where the checkpoint was written.

    Raises:
        DataError: the file is damaged or of another model.
    """
    try:
        check_stamp(path, _remedy(path))
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            known = json.loads(file.metadata()["position"])
            position = Position(**{key: value for key, value in known.items() if key != CHECKSUM})
        _restore_optimizer(optimizer, _with_prefix(tensors, "optimizer/"))
        for prefix, part in (("model/", model), ("method/", method_state), ("average/", average)):
            if part is not None:
                part.load_state_dict(_with_prefix(tensors, prefix))
    except (SafetensorError, KeyError, RuntimeError, TypeError, OSError) as error:
        reason = str(error).splitlines()[0]
        damage = DataError(f"{path} is not a checkpoint of this run ({reason}); {_remedy(path)}")
        raise unavailable(error, path) or damage from None
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random/cuda"])
    return position


def save_weights(path: Path, model: nn.Module, *, unfinished: bool = False) -> None:
    """Writes the weights of a model as safetensors, atomically and byte-deterministically.

    Args:
        path: of the file.
        model: whose weights they are.
        unfinished: give it a checksum of its own, because no manifest lists it yet.
    """
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()}
    content = save(tensors, {CHECKSUM: STAMP_HERE} if unfinished else {"format": "pt"})
    write_bytes(path, stamped(content) if unfinished else content)


def load_weights(path: Path, model: nn.Module, *, unfinished: bool = False) -> None:
    """Loads weights written by `save_weights`.

    Args:
        path: of the file.
        model: to be filled.
        unfinished: whether the file has a checksum of its own.

    Raises:
        DataError: the file is damaged or of another model.
        UnavailableError: it cannot be read now.
    """
    try:
        check_stamp(path, _remedy(path)) if unfinished else checked(path)
        with safe_open(path, framework="pt") as file:
            model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a mapping)
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        damage = DataError(f"{path} does not hold the weights of this model ({reason}); run `itrpipe train` again")
        raise unavailable(error, path) or damage from None


def _remedy(path: Path) -> str:
    return f"remove {partial_of(path)} and run the same command again"


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of every parameter under `<number>/<name>`."""
    states = optimizer.state_dict()["state"]
    return {
        f"{index}/{name}": torch.as_tensor(value) for index, state in states.items() for name, value in state.items()
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state = optimizer.state_dict()
    restored: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition("/")
        restored.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": restored, "param_groups": state["param_groups"]})


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
