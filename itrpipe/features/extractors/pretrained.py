"""Pretrained vision networks of transformers: loading them, and extracting a grid of vectors with them.

A `Family` says how one kind of network is loaded and where its outputs are; `load_pretrained` gives a `VisionNetwork`
that looks the same for all of them and can be trained like any module; `GridExtractor` fills feature files with it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import transformers
from safetensors import safe_open
from torch import nn

from itrpipe.errors import DataError, UsageError
from itrpipe.features.extractors.base import Images
from itrpipe.features.extractors.model_files import CONFIG, PICKLES, SAFETENSORS, find_folder, has_any, quiet
from itrpipe.features.extractors.pretrained_pixels import Preprocessing, load_preprocessing
from itrpipe.features.extractors.resnet.declaration import Resnet
from itrpipe.features.extractors.state_dict import refuse_not_finite
from itrpipe.features.extractors.vit.declaration import Vit
from itrpipe.features.store import FeatureSpec
from itrpipe.storage.disk import reading

RANDOM_NOTE = "random weights: these features are noise"
_FRESH = "no weights of its {module}, which starts at random; where the encoder is frozen or adapted it stays so"

_BATCH = 32


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


class GridVectors(NamedTuple):
    """What a network sees in frames.

    Attributes:
        regions: [B, R, D] one vector per cell, row by row.
        global_: [B, G] one vector per image.
        grid: the cells; R = rows * columns.
    """

    regions: torch.Tensor
    global_: torch.Tensor
    grid: Grid


@dataclass(frozen=True)
class Kind:
    """How one kind of network is loaded.

    Attributes:
        network: class of transformers.
        part: the sub-configuration of this network where a checkpoint holds more than that, else empty.
        options: of the network's constructor.
        optional: modules that become the identity where a checkpoint lacks them.
        unused: last names of parameters that a checkpoint may lack because nothing uses them.
        fresh: modules that start at random where a checkpoint lacks them.
        attention: implementation of attention, or None where there is no choice.
    """

    network: str
    part: str = field(default="", kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    optional: tuple[str, ...] = field(default=(), kw_only=True)
    unused: tuple[str, ...] = field(default=(), kw_only=True)
    fresh: tuple[str, ...] = field(default=(), kw_only=True)
    attention: str | None = field(default="sdpa", kw_only=True)


@dataclass(frozen=True)
class Family(Kind):
    """How one kind of vision network is loaded and read.

    Attributes:
        read: runs the network on pixels [B, 3, h, w] and finds its vectors.
        any_frame: whether the network takes frames of other sizes than its `image_size`.
    """

    read: Callable[[Any, torch.Tensor], GridVectors]
    any_frame: bool = field(default=False, kw_only=True)


KindOrFamily = TypeVar("KindOrFamily", bound=Kind)


def with_poolers(kinds: Mapping[str, KindOrFamily]) -> dict[str, KindOrFamily]:
    """The same kinds of networks, with the pooler that options leave out; a checkpoint may lack its weights."""
    return {name: replace(kind, options={}, fresh=("pooler",)) for name, kind in kinds.items()}


class VisionNetwork(nn.Module):
    """A network of any family; trainable.

    Attributes:
        model: the network of transformers.
    """

    def __init__(self, model: nn.Module, family: Family) -> None:
        super().__init__()
        self.model = model
        self._read = family.read

    def forward(self, pixels: torch.Tensor) -> GridVectors:
        """Returns the vectors of normalised pixels [B, 3, h, w] float32."""
        return self._read(self.model, pixels)


class Pretrained(NamedTuple):
    """A loaded network.

    Attributes:
        network: in float32, on the CPU, in evaluation mode.
        preprocessing: what happens to an image before it.
        notes: what a user should know of it.
    """

    network: VisionNetwork
    preprocessing: Preprocessing
    notes: tuple[str, ...]


class GridExtractor:
    """Fills `/regions`, `/count`, `/boxes` and `/global` with the vectors of a network's grid.

    Boxes are the grid's cells in the original image: a cell is what a vector stands for, not all that it has seen.

    Attributes:
        spec, transform, notes: as of `Extractor`.
        network: in evaluation mode, on `device`.
        device: where it computes.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        device: torch.device,
        *,
        bf16: bool,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """Moves the network to `device` and runs it once, to learn its widths.

        Args:
            pretrained: network and preprocessing.
            device: where it computes.
            bf16: whether it computes in bfloat16 where autocast does.
            memory_format: of the pixels and of convolutions.
        """
        preprocessing = pretrained.preprocessing
        self.transform, self.notes = preprocessing.transform, pretrained.notes
        self.batch = _BATCH
        self.device, self._bf16, self._memory_format = device, bf16, memory_format
        network = pretrained.network.eval().to(device)
        self.network = network.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]
        self._normalization = preprocessing.normalization.to(device)
        self._framing = preprocessing.framing
        probe = self._forward(torch.zeros(1, 3, *preprocessing.frame, dtype=torch.uint8))
        self._cells = probe.grid.cells(preprocessing.frame)
        _, regions, width = probe.regions.shape
        assert len(self._cells) == regions, "one vector per cell"
        self.spec = FeatureSpec(regions, width, probe.global_.shape[1], boxes=True)

    def group(self, height: int, width: int) -> tuple[int, int]:
        """All images share batches, because they have one size after the transform."""
        return 0, 0

    def __call__(self, images: Images, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """Extracts the features of a batch.

        Args:
            images: results of `transform`, B of [3, h, w] uint8.
            sizes: [B, 2] height and width of the image files.

        Returns:
            regions [B, R, D] and global [B, G] float16, infinite where a value does not fit; count [B] int16, always
            R; boxes [B, R, 4] float32 in 0..1.
        """
        batch = images if isinstance(images, torch.Tensor) else torch.stack(list(images))
        found = self._forward(batch)
        return {
            "regions": found.regions.half().cpu().numpy(),
            "global": found.global_.half().cpu().numpy(),
            "count": np.full(len(batch), self.spec.regions, dtype=np.int16),
            "boxes": self._framing.boxes(self._cells, sizes),
        }

    @torch.inference_mode()
    def _forward(self, images: torch.Tensor) -> GridVectors:
        pixels = self._normalization(images.to(self.device, non_blocking=True))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            return self.network(pixels.contiguous(memory_format=self._memory_format))


def load_pretrained(settings: Vit | Resnet, families: Mapping[str, Family]) -> Pretrained:
    """Loads network and image processor from a local folder or the hub.

    Args:
        settings: which, and whether with its weights.
        families: model types that are supported.

    Raises:
        MissingInputError: there is no such folder or hub id, it lacks a file, or the hub cannot be reached.
        DataError: a file is damaged, or the weights are of another network.
        UsageError: the model type or the image processor is not supported, or the two do not fit each other.
    """
    random = settings.weights == "random"
    folder, notes = find_folder(settings.model, settings.revision, weights=not random)
    with quiet():
        family, config = load_config(folder, families)
        preprocessing = load_preprocessing(folder)
        _check_frame(folder, family, config, preprocessing.frame)
        if random:
            model, more = _random_model(family, config), (RANDOM_NOTE,)
        else:
            model, more = load_noted(folder, family, config)
    notes += preprocessing.notes + more
    return Pretrained(VisionNetwork(model, family).eval(), preprocessing, notes)


def load_config(folder: Path, families: Mapping[str, KindOrFamily]) -> tuple[KindOrFamily, Any]:
    """Returns the family, and the configuration of its network.

    Raises:
        DataError: the configuration is damaged.
        UsageError: the model type is not among the families.
    """
    path = folder / CONFIG
    with reading(path, "a configuration", "download the model again"):
        kind = str(json.loads(path.read_text("utf-8")).get("model_type"))
        if kind not in families:
            known = ", ".join(families)
            raise UsageError(
                f"{path}: model type '{kind}' is not supported, supported are {known}; choose another model."
            )
        family = families[kind]
        whole = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config = getattr(whole, family.part) if family.part else whole
    if family.part and hasattr(whole, "projection_dim"):
        config.projection_dim = whole.projection_dim  # the joint model uses this one, whatever the tower's own says
    # A configuration can name an implementation that would be downloaded from the hub as code.
    config._attn_implementation = family.attention
    # Only the last hidden state is read, and by its name.
    config.output_hidden_states, config.output_attentions, config.return_dict = False, False, True
    return family, config


def _check_frame(folder: Path, family: Family, config: Any, frame: tuple[int, int]) -> None:
    """Says whether the image processor gives what the network takes, before transformers fails on a batch."""
    if family.any_frame:
        return
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    if frame != (height, width):
        raise UsageError(
            f"{folder}: the image processor gives {frame[0]} x {frame[1]} pixels and the network takes {height} x "
            f"{width}; correct the sizes in its preprocessor_config.json."
        )


def _random_model(family: Family, config: Any) -> nn.Module:
    """Returns the network with the same random weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of the CPU alone, which is what is forked
        model = getattr(transformers, family.network)(config, **family.options)
    if family.network not in (config.architectures or ()):
        _drop(model, family.optional)
    return model


def load_weights(folder: Path, family: Kind, config: Any) -> nn.Module:
    """The network of `load_noted`."""
    return load_noted(folder, family, config)[0]


def load_noted(folder: Path, family: Kind, config: Any) -> tuple[nn.Module, tuple[str, ...]]:
    """Returns the network with the weights in `folder`, safetensors if there are any, and what a user should know.

    Raises:
        DataError: the weights are damaged, of another network, or not finite.
    """
    attention = {"attn_implementation": family.attention} if family.attention else {}
    with reading(folder, "weights", "download them again"):
        try:
            model, report = getattr(transformers, family.network).from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=has_any(folder, SAFETENSORS),
                weights_only=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # they are in the report
                output_loading_info=True,
                **attention,
                **family.options,
            )
        except pickle.UnpicklingError:  # its message advises to run whatever the file holds
            raise DataError(
                f"{folder}: {PICKLES[0]} is damaged or holds more than tensors, which is never loaded; download the "
                f"weights again, as {SAFETENSORS[0]} if there is one."
            ) from None
    fresh = _check_report(folder, family, model, report)
    refuse_not_finite(folder, model.state_dict(), "download the weights again")
    return model, tuple(f"{folder}: {_FRESH.format(module=module)}" for module in fresh)


def load_tensors(folder: Path, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Those of some tensors that the weights in `folder` have.

    Raises:
        DataError: the weights are damaged.
    """
    with reading(folder, "weights", "download them again"):
        if has_any(folder, SAFETENSORS):
            found = {}
            for path in sorted(folder.glob("*.safetensors")):
                with safe_open(path, framework="pt") as file:
                    found |= {name: file.get_tensor(name) for name in set(names) & set(file.keys())}
            return found
        states = [torch.load(path, weights_only=True, mmap=True) for path in sorted(folder.glob("pytorch_model*.bin"))]
        return {name: state[name] for state in states for name in names if name in state}


def _check_report(folder: Path, family: Kind, model: nn.Module, report: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuses parameters that transformers would leave random, and drops optional modules that are not there.

    Returns:
        Modules that may be random, and are.
    """
    for name, found, expected in sorted(report["mismatched_keys"]):
        raise DataError(
            f"{folder}: '{name}' has shape {tuple(found)} in the weights and {tuple(expected)} by {CONFIG}; "
            "download the model again."
        )
    missing = {name for name in report["missing_keys"] if name.rpartition(".")[2] not in family.unused}
    absent, fresh = (
        tuple(module for module in modules if any(name.startswith(f"{module}.") for name in missing))
        for modules in (family.optional, family.fresh)
    )
    missing = {name for name in missing if not name.startswith(tuple(f"{module}." for module in absent + fresh))}
    if missing:
        raise DataError(
            f"{folder}: the weights lack {len(missing)} parameters of {family.network}, such as '{min(missing)}'; they "
            "are damaged or of another network, download them again."
        )
    _drop(model, absent)
    return fresh


def _drop(model: nn.Module, modules: tuple[str, ...]) -> None:
    for name in modules:
        setattr(model, name, nn.Identity())
