"""Which precision trains a model faster on this device: measured on its own first batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from itrpipe.artifacts.artifact import partial_of
from itrpipe.artifacts.disk import read_stamped_json, write_stamped_json
from itrpipe.mining.arithmetic import Faster, Seconds, best_seconds
from itrpipe.models.base import DualEncoder
from itrpipe.training.data import SplitData
from itrpipe.training.encode import AnyMatcher

AUTO, CHOSEN = "auto", "precision.json"
_ROWS, _ROWS_OF_PAIRS = 128, 16
"""Images and captions at most, of models that compare embeddings, and of those that score pair by pair."""


def chosen_precision(
    work: Path, model: AnyMatcher, data: SplitData, batch_size: int, device: str, like: str = ""
) -> Faster:
    """The faster one, which an interrupted training keeps when it goes on, wherever that is.

    What is compared is to differ in nothing else, and which one is faster may be a matter of what else a machine does.
    So a training takes that of an earlier one that is otherwise alike.

    Args:
        work: folder of the unfinished artifact.
        model: as it will be trained.
        data: the training set.
        batch_size: pairs that are encoded and scored.
        device: `cpu` or `cuda`.
        like: that of an earlier training; empty where there is none.

    Raises:
        DataError: what was chosen before cannot be read.
    """
    path = work / CHOSEN
    if not path.exists() and like:
        write_stamped_json(path, {"precision": like, "seconds": {}})
    if not path.exists():
        found = training_seconds(model, data, batch_size, torch.device(device))
        write_stamped_json(path, {"precision": found.faster, "seconds": {"fp32": found.fp32, "bf16": found.bf16}})
    return read_stamped_json(path, f"remove {partial_of(path)} and run the same command again")["precision"]


def training_seconds(model: AnyMatcher, data: SplitData, batch_size: int, device: torch.device) -> Seconds:
    """Times of a forward and backward pass through the encoders and all scores of a batch.

    The model is left as it was: no weight is updated, no gradient kept, nothing drawn.
    """
    most = _ROWS if isinstance(model, DualEncoder) else _ROWS_OF_PAIRS
    rows = np.arange(min(batch_size, most, data.num_captions))
    model.to(device).eval()
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.train()  # cuDNN has no backward pass of these in evaluation mode
    images, texts = data.images(data.caption_image[rows]).to(device), data.texts(rows).to(device)

    def step(bf16: bool) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
        scores.sum().backward()
        model.zero_grad(set_to_none=True)

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        return best_seconds(partial(step, False), partial(step, True), device)
