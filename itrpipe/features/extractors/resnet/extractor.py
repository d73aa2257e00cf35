"""Convolutional networks of transformers: a vector per cell of the last feature map, and their pool for the image.

ResNet, RegNet, ConvNeXT and ConvNeXT V2. `/regions` are the cells of the last feature map, `/global` is the pooled
output: the mean over the cells, normed in ConvNeXT. A cell's box is its share of the frame, which the feature map
divides evenly.

Source: "Deep Residual Learning for Image Recognition" (ResNet), "Designing Network Design Spaces" (RegNet),
"A ConvNet for the 2020s" (ConvNeXT), "ConvNeXt V2".
"""

from __future__ import annotations

from typing import Any

import torch

from itrpipe.features.extractors.pretrained import Family, Grid, GridExtractor, GridVectors, Pretrained, load_pretrained
from itrpipe.features.extractors.resnet.declaration import Resnet


def build(settings: Resnet, device: str | torch.device) -> GridExtractor:
    """Returns the extractor of a convolutional network.

    Raises:
        MissingInputError, DataError, UsageError: as of `load`.
    """
    return GridExtractor(
        load(settings), torch.device(device), bf16=settings.precision == "bf16", memory_format=torch.channels_last
    )


def load(settings: Resnet) -> Pretrained:
    """Returns a convolutional network with its preprocessing.

    Raises:
        MissingInputError, DataError, UsageError: as of `load_pretrained`.
    """
    return load_pretrained(settings, FAMILIES)


def _read_feature_map(model: Any, pixels: torch.Tensor) -> GridVectors:
    found = model(pixels)
    rows, columns = found.last_hidden_state.shape[2:]  # [B, D, rows, columns]
    grid = Grid(rows, columns, pixels.shape[2] / rows, pixels.shape[3] / columns)
    return GridVectors(found.last_hidden_state.flatten(2).transpose(1, 2), found.pooler_output.flatten(1), grid)


# Counters of batches serve training alone; old checkpoints lack them.
_COUNTERS = ("num_batches_tracked",)

FAMILIES: dict[str, Family] = {
    "resnet": Family("ResNetModel", _read_feature_map, unused=_COUNTERS, any_frame=True, attention=None),
    "regnet": Family("RegNetModel", _read_feature_map, unused=_COUNTERS, any_frame=True, attention=None),
    "convnext": Family("ConvNextModel", _read_feature_map, any_frame=True, attention=None),
    "convnextv2": Family("ConvNextV2Model", _read_feature_map, any_frame=True, attention=None),
}
