"""How many images or captions an encoder computes at a time, by the memory that a GPU has left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from itrpipe.training.data import SplitData
from itrpipe.training.encode import AnyMatcher
from itrpipe.training.spread import tensors_of

_FEW, _MORE = 8, 32
_SHARE = 0.6
"""Of the free memory, for the encoders; scores, twins of a model and further captions of a method take the rest."""
_STATE = 8
"""Bytes that Adam keeps of each weight."""


def chosen_chunk(model: AnyMatcher, data: SplitData, pairs: int, device: torch.device, precision: str) -> int:
    """Rows of a chunk with which a step fits in the free memory of a GPU; 0 where the whole batch does.

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
    """The largest power of two of rows that fit; 0 where all pairs do, and 1 where nothing does.

    Args:
        pairs: of the batch.
        room: bytes.
        needed: bytes that so many rows need, which grow evenly with them.
    """
    few, more = needed(_FEW), needed(_MORE)
    each = (more - few) / (_MORE - _FEW)
    fitting = (room - few) / each + _FEW if each > 0 else pairs
    return 0 if fitting >= pairs else 1 << max(1, int(fitting)).bit_length() - 1


def _bytes(model: AnyMatcher, data: SplitData, device: torch.device, precision: str, rows: int) -> float:
    """Memory of a forward and backward pass through both encoders, of the longest captions."""
    longest = np.argsort(-data.pair_sizes(), kind="stable")[:rows]
    images, texts = data.pairs(data.caption_image[longest], longest)
    images, texts = images.to(device), texts.to(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.random.fork_rng([device]):
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            encoded = [*tensors_of(model.encode_images(images)), *tensors_of(model.encode_texts(texts))]
        torch.stack([each.float().sum() for each in encoded if each.requires_grad]).sum().backward()
    model.zero_grad(set_to_none=True)
    return float(torch.cuda.max_memory_allocated(device) - before)
