"""The image side of a dual encoder: a vision network of transformers from bytes of pixels to one vector per image.

Shapes: B images, n tokens, D width of a token or of the network's own image vector.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from itrpipe.errors import UsageError
from itrpipe.features.towers import MAPS, PATCHES, Grid, Kind, Seen, open_vision, see
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.declaration import DualEncoder

KINDS = PATCHES | MAPS

# Mean and deviation of red, green and blue in bytes. Source: CLIP, also FNE's released code.
_CLIP_MEAN = tuple(255.0 * value for value in (0.48145466, 0.4578275, 0.40821073))
_CLIP_STD = tuple(255.0 * value for value in (0.26862954, 0.26130258, 0.27577711))


class VisionTower(nn.Module):
    """Normalises bytes, runs a network, pools its tokens.

    Args:
        network: of transformers.
        pool: `mean` of all tokens, the class token among them, as FNE's code has it; `cls`, the first; or `own`, that
            of CLIP and SigLIP and the output of the pooler of others.
        mean, std: of the colours [3], in bytes.
        frame: height and width of the images that the network takes.

    Attributes:
        network, pool, frame: as given.
        width: D of the vectors it gives.
        crops: whether it was trained on the middle of images that keep their shape; known of a pretrained one.
    """

    mean: Tensor
    std: Tensor

    crops = False

    def __init__(
        self, network: Any, pool: str, mean: Sequence[float], std: Sequence[float], frame: tuple[int, int]
    ) -> None:
        super().__init__()
        self.network, self.pool, self.frame = network, pool, frame
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.width = width_of(self, torch.zeros(1, 3, *frame, dtype=torch.uint8))

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns vectors [B, D] of images [B, 3, h, w] uint8 of the frame's size."""
        seen = self._see(pixels)
        if self.pool == "own":
            assert seen.own is not None
            return seen.own
        return seen.tokens[:, 0] if self.pool == "cls" else seen.tokens.mean(dim=1)

    def tokens(self, pixels: Tensor) -> Tensor:
        """Returns all tokens [B, n, D] of images [B, 3, h, w] uint8; the cells of `grid` are the last, row by row."""
        return self._see(pixels).tokens

    @torch.no_grad()
    def grid(self) -> Grid:
        """The cells of the frame that have tokens, found by running the network once."""
        return self._see(torch.zeros(1, 3, *self.frame, dtype=torch.uint8, device=self.mean.device)).grid

    def _see(self, pixels: Tensor) -> Seen:
        assert pixels.shape[1:] == (3, *self.frame)
        assert pixels.dtype == torch.uint8
        return see(self.network, (pixels.float() - self.mean) / self.std)

    def description(self) -> dict[str, Any]:
        """Everything but the weights, for `restored`."""
        colours = {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist()}
        return {**described(self.network), "pool": self.pool, "frame": list(self.frame), **colours}


def pretrained(settings: DualEncoder) -> tuple[VisionTower, tuple[str, ...]]:
    """Loads the vision encoder that settings name, and notes that a user should read.

    Raises:
        MissingInputError, DataError: as of `open_vision`.
        UsageError: likewise, or its tokens cannot be pooled so.
    """
    opened, frames = open_vision(settings.vision, settings.vision_revision, KINDS, pooled=settings.image_pool == "own")
    pool = pool_of(settings.image_pool, opened.kind, settings.vision, "image_pool")
    colours = _CLIP_MEAN, _CLIP_STD
    if settings.normalisation == "own" or (settings.normalisation == "auto" and opened.kind.own == "trained"):
        colours = frames.mean.flatten().tolist(), frames.std.flatten().tolist()
    tower = VisionTower(opened.network, pool, *colours, frames.framing.frame)
    tower.crops = not isinstance(frames.framing.resize, tuple)
    return tower, opened.notes


def random(settings: DualEncoder) -> VisionTower:
    """Makes a small ViT with random weights.

    Raises:
        UsageError: it has nothing that the settings ask for.
    """
    config = transformers.ViTConfig(
        image_size=settings.image_size,  # pyright: ignore[reportCallIssue]
        patch_size=settings.patch_size,  # pyright: ignore[reportCallIssue]
        hidden_size=settings.width,  # pyright: ignore[reportCallIssue]
        intermediate_size=4 * settings.width,  # pyright: ignore[reportCallIssue]
        num_hidden_layers=settings.vision_layers,  # pyright: ignore[reportCallIssue]
        num_attention_heads=settings.heads,  # pyright: ignore[reportCallIssue]
    )
    if settings.normalisation == "own":
        raise UsageError("a random vision encoder has no normalisation of its own; leave model.normalisation out")
    pool = pool_of(settings.image_pool, KINDS["vit"], RANDOM, "image_pool")
    network = transformers.ViTModel(config, add_pooling_layer=pool == "own")
    return VisionTower(network, pool, _CLIP_MEAN, _CLIP_STD, settings.image_size)


def restored(description: Mapping[str, Any]) -> VisionTower:
    """Makes a tower of `VisionTower.description` with random weights, to be filled."""
    network = rebuilt(description, KINDS)
    colours = description["mean"], description["std"]
    return VisionTower(network, description["pool"], *colours, tuple(description["frame"]))


def pool_of(wanted: str, kind: Kind, model: str, setting: str) -> str:
    """The pooling that `auto` stands for: that of CLIP and SigLIP, which are trained by it, else the mean.

    Args:
        wanted: the setting.
        kind: of the encoder.
        model: its name, for the message.
        setting: name of the setting.

    Raises:
        UsageError: the encoder has no vector of its own, and `own` was asked for.
    """
    if wanted == "own" and not kind.own:
        raise UsageError(
            f"{model} has no {'image' if setting == 'image_pool' else 'text'} vector of its own, as CLIP, SigLIP and "
            f"networks with a pooler have; give --set model.{setting}=mean"
        )
    return wanted if wanted != "auto" else "own" if kind.own == "trained" else "mean"


@torch.no_grad()
def width_of(tower: nn.Module, *inputs: Tensor) -> int:
    """D of the vectors that a tower gives, found by running it once; no random number is drawn."""
    training = tower.training
    width = tower.eval()(*inputs).shape[1]
    tower.train(training)
    return width


def described(network: Any) -> dict[str, Any]:
    """Class and configuration of a network; `rebuilt` makes it again."""
    config = json.loads(network.config.to_json_string(use_diff=False))
    identities = [name for name, part in network.named_children() if isinstance(part, nn.Identity)]
    return {
        "network": type(network).__name__,
        # Where it was loaded from is of no use to who gets the trained model.
        "config": {key: value for key, value in config.items() if key != "_name_or_path"},
        "identities": identities,
    }


def rebuilt(description: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Any:
    """Makes the network of a tower's description with random weights; one of the given kinds."""
    name = description["network"]
    kind = next(kind for kind in kinds.values() if kind.network == name)
    made = getattr(transformers, name)
    network = made(made.config_class.from_dict(description["config"]), **kind.options(description["pool"] == "own"))
    for part in description["identities"]:
        setattr(network, part, nn.Identity())
    return network
