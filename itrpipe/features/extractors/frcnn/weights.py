"""Weights of torchvision's Faster R-CNN: found, read, checked and put into the network."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection import (
    FasterRCNN,
    FasterRCNN_ResNet50_FPN_V2_Weights,
    fasterrcnn_resnet50_fpn_v2,
)

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.extractors.frcnn.declaration import Frcnn
from itrpipe.features.extractors.state_dict import first_line, read_state

RANDOM = "random"
SUFFIXES = (".pth", ".pt", ".safetensors")
NAMES = tuple(FasterRCNN_ResNet50_FPN_V2_Weights.__members__)

_SEED = 0
_CLASS_SCORES = "roi_heads.box_predictor.cls_score.weight"
# Counters of batches serve training only; not every file has them.
_COUNTER = ".num_batches_tracked"
_RANDOM_CLASSES = 91
# Boxes per level of the feature pyramid before NMS, in torchvision; must not be fewer than are left after it.
_PRE_NMS_PROPOSALS = 1000
_REMEDY = "name weights of torchvision's fasterrcnn_resnet50_fpn_v2"


def load_network(settings: Frcnn) -> tuple[FasterRCNN, tuple[str, ...]]:
    """Returns the network with the weights that the settings name, and notes for the user.

    Raises:
        MissingInputError: there is no such file, or torchvision's weights cannot be fetched.
        DataError: the file is damaged, is not a state dict, or is of another network; names the tensor.
    """
    if settings.weights == RANDOM:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return _network(settings, _RANDOM_CLASSES), ("random weights: these features are noise",)
    path, state = _find(settings.weights)
    if _CLASS_SCORES not in state:
        raise DataError(f"{path} lacks '{_CLASS_SCORES}'; {_REMEDY}.")
    with torch.device("meta"):  # without memory: the tensors of the file take their place
        network = _network(settings, classes=len(state[_CLASS_SCORES]))
    network.load_state_dict(_check(path, state, network.state_dict()), assign=True)
    return network, ()


def _network(settings: Frcnn, classes: int) -> FasterRCNN:
    return fasterrcnn_resnet50_fpn_v2(
        weights=None,
        weights_backbone=None,
        num_classes=classes,
        min_size=settings.short_side,
        max_size=settings.long_side,
        rpn_pre_nms_top_n_test=max(_PRE_NMS_PROPOSALS, settings.proposals),
        rpn_post_nms_top_n_test=settings.proposals,
    )


def _find(weights: str) -> tuple[Path, Mapping[str, Tensor]]:
    """Returns the file of the weights, fetched if it is torchvision's, and its tensors."""
    if weights in NAMES:
        return _fetch(FasterRCNN_ResNet50_FPN_V2_Weights[weights])
    path = Path(weights).expanduser()
    if not path.is_file():
        raise MissingInputError(f"weights '{weights}' are neither a file nor one of {', '.join(NAMES)}; name one.")
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path} is no file of weights; name one that ends in {', '.join(SUFFIXES)}.")
    return path, read_state(path)


def _fetch(weights: Any) -> tuple[Path, Mapping[str, Tensor]]:
    cached = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    was_there = cached.is_file()
    try:
        return cached, weights.get_state_dict(progress=sys.stderr.isatty(), check_hash=True, weights_only=True)
    except Exception as error:  # of HTTP, of the disk or of the reader
        reason = first_line(error)
        if was_there:
            raise DataError(f"{cached} is damaged ({reason}); remove it, then it is fetched again.") from error
        raise MissingInputError(
            f"{weights.url} cannot be fetched ({reason}); put that file at {cached}, or name a local file as weights."
        ) from error


def _check(path: Path, state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns all tensors that the network wants, in float32.

    Raises:
        DataError: a tensor is missing, is one too many, has another shape, or holds no finite numbers.
    """
    counters = {name: torch.zeros((), dtype=torch.int64) for name in wanted if name.endswith(_COUNTER)}
    shapes = {name: tensor.shape for name, tensor in wanted.items() if name not in counters}
    for name in sorted(shapes.keys() | {name for name in state if not name.endswith(_COUNTER)}):
        if name not in state:
            raise DataError(f"{path} lacks '{name}'; {_REMEDY}.")
        if name not in shapes:
            raise DataError(f"{path} holds '{name}', which this network does not have; {_REMEDY}.")
        if state[name].shape != shapes[name]:
            found, due = (" x ".join(map(str, shape)) or "one number" for shape in (state[name].shape, shapes[name]))
            raise DataError(f"{path}: '{name}' has the shape {found}, this network's is {due}; {_REMEDY}.")
        if not state[name].is_floating_point() or not state[name].isfinite().all():
            raise DataError(f"{path}: '{name}' ({state[name].dtype}) holds no finite numbers; get the file again.")
    if len(state[_CLASS_SCORES]) < 2:
        raise DataError(f"{path} knows no class beside the background; {_REMEDY}.")
    return {name: state[name].float() for name in shapes} | counters
