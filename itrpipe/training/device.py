"""Encoders fitted to the device that trains them: in chunks that its memory holds, and compiled where it pays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from itrpipe.engine.work import CUDA
from itrpipe.errors import UsageError, reason_of
from itrpipe.training.data import SplitData
from itrpipe.training.distributed import AnyMatcher, World, tensors_of

_FEW, _MORE = 8, 32
_SHARE = 0.6
"""Share of the free memory for the encoders; scores, twins of a model and further captions take the rest."""
_STATE = 8
"""Bytes that Adam keeps of each weight."""
_COMPILED_FROM = 2_000
"""Steps of a training from which on compiling pays."""
_WORDS_OF_A_TILE = 8


def chunk_of(job: Any, model: AnyMatcher, data: SplitData, device: torch.device, precision: str) -> int:
    """Return the `encode_chunk` of a job; for `auto` what fits in memory, which is told and recorded."""
    settings = job.settings
    world = World.joined()
    asked = job.execution.encode_chunk
    rows = 0
    if isinstance(asked, int):
        return asked
    if world.leads:
        each = data.pair_sizes().mean() if settings.batch_by == "tokens" else 1
        rows = chosen_chunk(model, data, -(-int(settings.batch_size / each) // world.size), device, precision)
    job.metrics["encode_chunk"] = rows = world.agreed(rows)
    job.reporter.say(f"  encode_chunk {rows} ({'by free memory' if rows else 'the whole batch'})")
    return rows


def chosen_chunk(model: AnyMatcher, data: SplitData, pairs: int, device: torch.device, precision: str) -> int:
    """Return the rows of a chunk with which a step fits in the free memory of a GPU; 0 where the whole batch does.

    Models that look at the whole batch, and processors, take whole batches. The model is left as it was, on its device.

    Args:
        model: as it will be trained.
        data: the training set.
        pairs: of a batch that this process encodes.
        device: where it is trained.
        precision: of the encoders.
    """
    if device.type != "cuda" or any(isinstance(module, _BatchNorm) for module in model.modules()):
        return 0
    model.to(device).train()
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    states = _STATE * sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
    return fitting_chunk(pairs, _SHARE * free - states, partial(_bytes, model, data, device, precision))


def fitting_chunk(pairs: int, room: float, needed: Callable[[int], float]) -> int:
    """Return the largest power of two of rows that fit; 0 where all pairs do, and 1 where nothing does.

    Args:
        pairs: of the batch.
        room: bytes.
        needed: bytes that so many rows need, which grow evenly with them.
    """
    few = needed(_FEW)
    more = needed(_MORE)
    each = (more - few) / (_MORE - _FEW)
    fitting = (room - few) / each + _FEW if each > 0 else pairs
    return 0 if fitting >= pairs else 1 << max(1, int(fitting)).bit_length() - 1


def _bytes(model: AnyMatcher, data: SplitData, device: torch.device, precision: str, rows: int) -> float:
    """Return the bytes of a forward and backward pass through both encoders, of the longest captions."""
    longest = np.argsort(-data.pair_sizes(), kind="stable")[:rows]
    images, texts = data.pairs(data.caption_image[longest], longest)
    images = images.to(device)
    texts = texts.to(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.random.fork_rng([device]):
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            encoded = [*tensors_of(model.encode_images(images)), *tensors_of(model.encode_texts(texts))]
        torch.stack([each.float().sum() for each in encoded if each.requires_grad]).sum().backward()
    model.zero_grad(set_to_none=True)
    return float(torch.cuda.max_memory_allocated(device) - before)


def compile_for(job: Any, model: AnyMatcher, train: SplitData, device: torch.device, steps: int) -> bool:
    """Compile the encoders where that is asked for, or pays, and return whether they are.

    It pays for those of transformers on a GPU, in a long training.
    """
    asked = job.execution.compile
    pays = device.type == CUDA and job.settings.model.opens_encoders and steps >= _COMPILED_FROM
    if not (pays if asked == "auto" else asked):
        return False
    try:
        compile_encoders(model, device)
    except UsageError as error:
        if asked != "auto":
            raise
        job.warn(str(error))
        return False
    train.pad_texts(_WORDS_OF_A_TILE)
    job.reporter.say("  encoders are compiled, which takes a minute at the first steps")
    return True


def compile_encoders(model: AnyMatcher, device: torch.device) -> None:
    """Let torch compile the parts of a model when they are first called; their weights and names stay as they are.

    A vision encoder is compiled for each size of a batch, since images are all of one shape; other parts for any size
    from the second one on. A copy of the model is not compiled.

    Args:
        model: is changed.
        device: where it is trained.

    Raises:
        UsageError: torch cannot compile for this device, for example because there is no compiler.
    """
    try:
        torch.compile(torch.sin, dynamic=True)(torch.zeros(8, device=device))
    except Exception as error:  # torch raises errors of its own, of the compiler and of the system
        raise UsageError(
            f"torch cannot compile encoders for {device.type} here ({reason_of(error)}), to be faster; install "
            "what it misses, or give --set train.compile=false"
        ) from None
    vision = model.encoders().get("vision")
    parts = list(model.children())
    for part in parts:  # grows: nothing calls a list, but what it holds
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            parts.extend(part.children())
        elif part is vision:
            part.compile(dynamic=False)
        else:
            part.compile()
