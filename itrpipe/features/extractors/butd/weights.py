"""Weights of the bottom-up-attention detector: found, read, checked, converted and put into the network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from torch import Tensor
from torchvision.models.resnet import Bottleneck

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.butd.network import ButdNetwork
from itrpipe.features.extractors.state_dict import first_line, read_state

RANDOM = "random"
HUB_FILE = "pytorch_model.bin"
SUFFIXES = (".bin", ".pth", ".safetensors")

_SEED = 0
# Parts of the network's names -> those of the published conversion.
_NAMES = (
    (r"^rpn_head\.", "proposal_generator.rpn_head."),
    (r"^box_predictor\.", "roi_heads.box_predictor."),
    (r"^res5\.", "roi_heads.res5."),
    (r"\.bn(\d)\.", r".conv\1.norm."),
    (r"\.downsample\.0\.", ".shortcut."),
    (r"\.downsample\.1\.", ".shortcut.norm."),
)
# Counters of batches serve training only, and the mean of the pixels is a constant here. Anchors are Caffe's own, and
# no box is regressed.
_KNOWN_UNUSED = re.compile(r"\.num_batches_tracked$|pixel_(mean|std)$|\.cell_anchors\.|\.bbox_pred\.")


def load_network(settings: Butd) -> tuple[ButdNetwork, tuple[str, ...]]:
    """Returns the network with the weights that the settings name, and notes for the user.

    Raises:
        MissingInputError: there is no such file, or the hub does not give it.
        DataError: the file is damaged, is not a state dict, or is of another network; names the tensor.
    """
    if settings.weights == RANDOM:
        return random_network(), ("random weights: these features are noise",)
    path = find_weights(settings.weights, settings.revision)
    content = read_state(path)
    with torch.device("meta"):  # without memory: the tensors of the file take their place
        network = ButdNetwork()
    shapes = {file_name(name): tensor.shape for name, tensor in network.state_dict().items()}
    state, notes = check_state(path, content, shapes)
    network.load_state_dict({name: state[file_name(name)] for name in network.state_dict()}, assign=True)
    return network, tuple(notes)


def file_name(name: str) -> str:
    """Returns the name that a tensor of `ButdNetwork` has in the published conversion."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def random_network() -> ButdNetwork:
    """Returns a network with weights from a fixed seed, scaled so that features stay within float16."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = ButdNetwork()
    network.backbone.get_submodule("stem.bn1").get_buffer("weight").fill_(1 / 64)  # of grey levels
    for block in network.modules():
        if isinstance(block, Bottleneck):
            # Else each of the 33 sums of a block with its shortcut would double the variance.
            block.bn3.get_buffer("weight").fill_(0.2)
    return network


def find_weights(weights: str, revision: str) -> Path:
    """Returns the file of the weights, fetched from the hub if it is not a local one.

    Args:
        weights: file, folder with one file of weights, or hub id.
        revision: branch, tag or commit of the hub id.

    Raises:
        MissingInputError: there is no such file, or the hub does not give it.
        DataError: the file has another suffix than `SUFFIXES`, or the folder holds several.
    """
    path = Path(weights).expanduser()
    if path.is_dir():
        return _only_weights(path)
    if path.suffix not in SUFFIXES and path.exists():
        raise DataError(f"{path} is no file of weights; name one that ends in {', '.join(SUFFIXES)}.")
    if path.exists():
        return path
    if path.suffix in SUFFIXES or path.is_absolute():
        raise MissingInputError(f"{path} does not exist; name a file of weights, a folder that holds one, or a hub id.")
    return _fetch(weights, revision)


def _only_weights(folder: Path) -> Path:
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not files:
        raise MissingInputError(f"{folder} holds no file that ends in {', '.join(SUFFIXES)}; put the weights there.")
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise DataError(f"{folder} holds {len(files)} files of weights ({names}); name one of them.")
    return files[0]


def _fetch(hub_id: str, revision: str) -> Path:
    try:
        return Path(hf_hub_download(hub_id, HUB_FILE, revision=revision))
    except Exception as error:  # of the hub's client, of its HTTP library, or of the disk
        raise MissingInputError(
            f"{HUB_FILE} of '{hub_id}', revision '{revision}', is neither here nor comes from the hub "
            f"({first_line(error)}); check the name and the network, or name a file of yours with "
            "--set weights=FILE."
        ) from error


def check_state(
    path: Path, state: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]
) -> tuple[dict[str, Tensor], list[str]]:
    """Checks the tensors of a file and brings them into float32.

    Args:
        path: the file, for messages.
        state: its tensors.
        shapes: for each name that is wanted the shape of the tensor.

    Returns:
        The tensors that are wanted, and notes for the user.

    Raises:
        DataError: a tensor is missing, has another shape, or holds no finite numbers.
    """
    missing = [key for key in shapes if key not in state]
    if missing:
        more = f" and {len(missing) - 1} more tensors" if len(missing) > 1 else ""
        raise DataError(f"{path} lacks '{missing[0]}'{more}; name the published unc-nlp/frcnn-vg-finetuned.")
    for key, shape in shapes.items():
        _check_tensor(path, key, state[key], shape)
    return {key: state[key].float() for key in shapes}, _unused_notes(path, state.keys() - shapes.keys())


def _check_tensor(path: Path, key: str, tensor: Tensor, shape: torch.Size) -> None:
    if tensor.shape != shape:
        found, due = (" x ".join(map(str, each)) for each in (tensor.shape, shape))
        raise DataError(f"{path}: '{key}' has the shape {found}, this detector's is {due}; name weights that fit.")
    if not tensor.is_floating_point() or not tensor.isfinite().all():
        raise DataError(
            f"{path}: '{key}' ({tensor.dtype}) holds values that are not finite numbers; get the file again."
        )


def _unused_notes(path: Path, keys: set[str]) -> list[str]:
    unused = sorted(key for key in keys if not _KNOWN_UNUSED.search(key))
    return [f"{path}: {len(unused)} tensors, such as '{unused[0]}', are not of this detector: unused"] if unused else []
