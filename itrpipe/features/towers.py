"""Networks of transformers: loaded from folders or the hub, one way for all, and what vision networks make of images.

A `Kind` says how one kind of network is loaded; `open_network` gives it with its weights, and can be trained like any
module. `see` runs a vision network of any kind and finds its vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from itrpipe.errors import DataError, UsageError
from itrpipe.features import hub
from itrpipe.features.frames import PREPROCESSOR, Preprocessing, load_preprocessing
from itrpipe.features.hub import Kind
from itrpipe.storage.disk import reading

_FRESH = "no weights of its pooler, which starts at random; where the encoder is frozen or adapted it stays so"
# Parameters that serve training alone: checkpoints may lack them.
_UNUSED = ("mask_token", "num_batches_tracked")


class Opened(NamedTuple):
    """A network in float32, on the CPU, in evaluation mode.

    Attributes:
        folder: of its files.
        kind: of the network.
        network: of transformers.
        notes: what a user should know of it.
    """

    folder: Path
    kind: Kind
    network: Any
    notes: tuple[str, ...]


def open_network(
    model: str,
    revision: str,
    kinds: Mapping[str, Kind],
    required: tuple[str, ...] = (hub.CONFIG,),
    further: tuple[str, ...] = (),
    *,
    pooled: bool = False,
) -> Opened:
    """Loads a network from a folder or the hub.

    Args:
        model: folder or hub id.
        revision: of the hub id.
        kinds: model types that are supported.
        required, further: files beside, as of `find_folder`.
        pooled: with its pooler.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or the weights are of another network.
        UsageError: the model type is not supported.
    """
    folder, notes = hub.find_folder(model, revision, weights=True, required=required, further=further)
    with hub.quiet():
        kind, config = load_config(folder, kinds)
        network, more = load_weights(folder, kind, config, pooled=pooled)
    return Opened(folder, kind, network, notes + more)


def open_vision(
    model: str, revision: str, kinds: Mapping[str, Kind], *, random: bool = False, pooled: bool = False
) -> tuple[Opened, Preprocessing]:
    """Loads a vision network with its preprocessing, which is looked at before the weights are read.

    Args:
        model, revision, kinds, pooled: as of `open_network`.
        random: with the same random weights every time, in place of its own.

    Raises:
        MissingInputError, DataError: as of `open_network`.
        UsageError: likewise; or the image processor is not supported, or the two do not fit each other.
    """
    folder, notes = hub.find_folder(model, revision, weights=not random)
    with hub.quiet():
        preprocessing = load_preprocessing(folder)
        kind, config = load_config(folder, kinds)
        if not getattr(config, "vision_use_head", True):
            raise UsageError(
                f"{model}: this vision tower has no pooling head ('vision_use_head' is false), so no vector for the "
                "image; choose a whole SigLIP checkpoint."
            )
        frame = preprocessing.framing.frame
        taken = frame if kind.any_frame else sides(config.image_size)
        if frame != taken:
            raise UsageError(
                f"{folder}: the image processor gives {frame} pixels and the network takes {taken}; correct the sizes "
                f"in its {PREPROCESSOR}."
            )
        network, more = load_weights(folder, kind, config, random=random, pooled=pooled)
    return Opened(folder, kind, network, notes + more + preprocessing.notes), preprocessing


def load_config(folder: Path, kinds: Mapping[str, Kind]) -> tuple[Kind, Any]:
    """Returns the kind of a network, and its configuration.

    Raises:
        DataError, UsageError: as of `read_kind`; or transformers cannot read the configuration.
    """
    kind = hub.read_kind(folder, kinds)
    with reading(folder / hub.CONFIG, "a configuration", "download the model again"):
        whole = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = getattr(whole, kind.part) if kind.part else whole
    if kind.part and hasattr(whole, "projection_dim"):
        config.projection_dim = whole.projection_dim  # the joint model uses this one, whatever the tower's own says
    # A configuration can name an implementation that would be downloaded from the hub as code.
    config._attn_implementation = None
    # Only the last hidden state is read, and by its name.
    config.output_hidden_states = False
    config.output_attentions = False
    config.return_dict = True
    return kind, config


def load_weights(
    folder: Path, kind: Kind, config: Any, *, random: bool = False, pooled: bool = False
) -> tuple[Any, tuple[str, ...]]:
    """Returns the network with the weights in `folder`, safetensors if there are any, and what a user should know.

    Raises:
        DataError: the weights are damaged, of another network, or not finite.
    """
    made = getattr(transformers, kind.network)
    if random:
        with hub.same_random_numbers():
            network = made(config, **kind.options(pooled)).eval()
        if kind.projection and kind.network not in (config.architectures or ()):
            setattr(network, kind.projection, nn.Identity())
        return network, (hub.RANDOM_NOTE,)
    with hub.reading_weights(folder, "download them again, as safetensors if there are some"):
        network, report = made.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=hub.has_any(folder, hub.SAFETENSORS),
            weights_only=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are in the report
            output_loading_info=True,
            **kind.options(pooled),
        )
    wrong = [
        f"'{name}' {list(found)} is {list(due)} by config.json"
        for name, found, due in sorted(report["mismatched_keys"])
    ]
    # Transformers would leave these random.
    missing = [name for name in sorted(report["missing_keys"]) if name.rpartition(".")[2] not in _UNUSED]
    parts = {name.partition(".")[0] for name in missing}
    optional = (kind.projection, "pooler" if pooled else "")
    wrong += [f"they lack '{name}'" for name in missing if name.partition(".")[0] not in optional]
    if wrong:
        raise DataError(
            f"{folder}: {len(wrong)} of the weights do not fit {kind.network}, such as: {wrong[0]}; they are damaged "
            "or of another network, download the model again."
        )
    if kind.projection in parts:
        setattr(network, kind.projection, nn.Identity())
    hub.refuse_not_finite(folder, network.state_dict(), "download the weights again")
    return network, (f"{folder}: {_FRESH}",) if "pooler" in parts else ()


def load_tensors(folder: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Those of some tensors that the weights in `folder` have.

    Raises:
        DataError: the weights are damaged.
    """
    pattern = "*.safetensors" if hub.has_any(folder, hub.SAFETENSORS) else "pytorch_model*.bin"
    states = [hub.read_state(path) for path in sorted(folder.glob(pattern))]
    return {name: state[name] for state in states for name in names if name in state}


class Grid(NamedTuple):
    """Cells of a frame, row by row from its upper left corner.

    Attributes:
        rows, columns: how many.
        cell_height, cell_width: of a cell, in pixels of the frame.
    """

    rows: int
    columns: int
    cell_height: float
    cell_width: float

    def cells(self, frame: tuple[int, int]) -> np.ndarray:
        """Returns the cells [R, 4] x0, y0, x1, y1 as fractions of a frame of height and width in pixels."""
        y, x = (part.ravel() for part in np.mgrid[: self.rows, : self.columns])
        corners = np.stack((x, y, x + 1, y + 1), 1)
        return corners * np.tile([self.cell_width / frame[1], self.cell_height / frame[0]], 2)


class Seen(NamedTuple):
    """What a vision network makes of images.

    Attributes:
        tokens: [B, n, D]; the last are those of the cells, row by row, and class token and registers come before.
        own: [B, D'] the network's own vector of the image, or None where there is none.
        grid: the cells.
    """

    tokens: Tensor
    own: Tensor | None
    grid: Grid


def see(network: Any, pixels: Tensor) -> Seen:
    """Runs a network of `PATCHES` or `MAPS` on normalised pixels [B, 3, h, w] float32.

    What patches leave over at the right and the bottom is in no cell; a feature map divides the frame evenly.
    """
    found = network(pixels)
    states = found.last_hidden_state
    own = own_vector(found)
    height, width = pixels.shape[2:]
    if states.ndim == 4:  # [B, D, rows, columns]
        rows, columns = states.shape[2:]
        own = None if own is None else own.flatten(1)
        return Seen(states.flatten(2).transpose(1, 2), own, Grid(rows, columns, height / rows, width / columns))
    if type(network).__name__ == "CLIPVisionModelWithProjection":
        # CLIP trains the norm before its projection on the class token; it is applied to all, to keep one scale.
        states = network.vision_model.post_layernorm(states)
    side, across = sides(network.config.patch_size)
    return Seen(states, own, Grid(height // side, width // across, side, across))


def sides(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, which a configuration may give as one number."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def own_vector(found: Any) -> Tensor | None:
    """The vector [B, D] that stands for an image or a caption in what a network of transformers returns, if any."""
    names = ("image_embeds", "text_embeds", "pooler_output")
    return next((found[name] for name in names if found.get(name) is not None), None)


def kind_of(network: Any, kinds: Mapping[str, Kind]) -> Kind:
    """The kind of a network, one of the given."""
    return next(kind for kind in kinds.values() if kind.network == type(network).__name__)
