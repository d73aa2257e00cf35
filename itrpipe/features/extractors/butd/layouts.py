"""How the bottom-up-attention detector's weights are named and laid out in published files.

Two layouts are known. The published conversion ("hub") has the background last, one objectness logit per anchor, and
anchors by size, then ratio. MILVLG's files keep Caffe's ways: the background first, a score for background and one
for foreground per anchor, anchors by ratio, then size, and box deltas that are not enlarged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from itrpipe.features.extractors.butd.anchors import ANCHORS, from_caffe_order
from itrpipe.features.extractors.butd.hub_profile import DELTA_WEIGHTS

RPN = "proposal_generator.rpn_head."
PREDICTOR = "roi_heads.box_predictor."
CELL_ANCHORS = "proposal_generator.anchor_generator.cell_anchors.0"

# Names of the network's parts -> names in the hub file; the first that fits.
_PARTS = (
    (r"^cell_anchors$", CELL_ANCHORS),
    (r"^rpn_head\.", RPN),
    (r"^box_predictor\.", PREDICTOR),
    (r"^res5\.", "roi_heads.res5."),
)
_LAYERS = (
    (r"\.bn(\d)\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut."),
    (r"\.downsample\.1\.", ".shortcut.norm."),
)
_MILVLG_NAMES = {"cls_embedding": "cls_embed", "fc_attr": "attr_linear1", "attr_score": "attr_linear2"}
# Rows by which MILVLG's tensors are longer: background scores, and the background's box.
_MILVLG_MORE_ROWS = {f"{RPN}objectness_logits": ANCHORS, f"{PREDICTOR}bbox_pred": 4}


def full_name(key: str) -> str:
    """Returns a file's key with the place of the RPN, which some of MILVLG's files leave out."""
    return re.sub(r"^rpn_head\.", RPN, key)


def hub_name(name: str) -> str:
    """Returns the hub file's name of a tensor of `ButdNetwork`."""
    for pattern, replacement in (*_PARTS, *_LAYERS):
        name = re.sub(pattern, replacement, name)
    return name


def milvlg_name(name: str) -> str:
    """Returns MILVLG's name of a tensor of the hub file."""
    part, _, rest = name.removeprefix(PREDICTOR).partition(".")
    return f"{PREDICTOR}{_MILVLG_NAMES[part]}.{rest}" if part in _MILVLG_NAMES else name


def milvlg_shape(name: str, shape: torch.Size) -> torch.Size:
    """Returns the shape that a tensor of the hub file has in MILVLG's."""
    more = _MILVLG_MORE_ROWS.get(name.rpartition(".")[0], 0)
    return torch.Size([shape[0] + more, *shape[1:]])


def is_milvlg(state: Mapping[str, Tensor]) -> bool:
    """Whether a state dict has MILVLG's names."""
    return any(f"{PREDICTOR}{name}.weight" in state for name in _MILVLG_NAMES.values())


def from_milvlg(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turns MILVLG's layout into the hub's; `state` has MILVLG's names and shapes."""
    names = {f"{PREDICTOR}{theirs}.": f"{PREDICTOR}{ours}." for ours, theirs in _MILVLG_NAMES.items()}
    converted = {}
    for key, tensor in state.items():
        stem = f"{key.rpartition('.')[0]}."
        name = key.replace(stem, names.get(stem, stem))
        convert = _CONVERSIONS.get(name.rpartition(".")[0])
        converted[name] = convert(tensor) if convert else tensor
    return converted


def _background_last(tensor: Tensor) -> Tensor:
    return tensor.roll(-1, dims=0)


def _objectness(tensor: Tensor) -> Tensor:
    """Softmax over background and foreground is the sigmoid of their difference."""
    background, foreground = tensor.split(ANCHORS)
    return (foreground - background)[from_caffe_order()]


def _by_size(tensor: Tensor) -> Tensor:
    """Four rows per anchor, or one row of four."""
    return tensor.view(ANCHORS, -1)[from_caffe_order()].view_as(tensor)


def _box_regression(tensor: Tensor) -> Tensor:
    """Without the background's box, and with the factors by which the network's deltas are too large."""
    boxes = tensor[4:].unflatten(0, (-1, 4))
    factors = tensor.new_tensor(DELTA_WEIGHTS).view(4, *(1 for _ in tensor.shape[1:]))
    return (boxes * factors).flatten(0, 1)


_CONVERSIONS = {
    f"{RPN}objectness_logits": _objectness,
    f"{RPN}anchor_deltas": _by_size,
    CELL_ANCHORS.rpartition(".")[0]: _by_size,
    f"{PREDICTOR}cls_score": _background_last,
    f"{PREDICTOR}cls_embedding": _background_last,
    f"{PREDICTOR}attr_score": _background_last,
    f"{PREDICTOR}bbox_pred": _box_regression,
}
