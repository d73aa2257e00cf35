"""The dual encoders that transformers has a class for: which, and what it calls their weights.

One table of names serves both directions: `names_of` tells what a class of transformers calls a weight of ours, to
write a folder that it opens and to open one. Files are written and read by transformers itself, because some of its
networks are stored by other names than they have in memory.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from itrpipe.errors import DataError
from itrpipe.features.hub import TEXT_KINDS, VISION_KINDS, Kind, quiet
from itrpipe.features.towers import kind_of, open_network
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.network import TransformerDualEncoder, VisionTower
from itrpipe.storage.disk import require_space

CLIP = "CLIPModel"
SIGLIP = "SiglipModel"
PAIR = "VisionTextDualEncoderModel"
JOINT = {"clip": Kind(CLIP), "siglip": Kind(SIGLIP), "vision-text-dual-encoder": Kind(PAIR)}
"""Model type -> the class of both encoders."""
_ARCHITECTURES = {
    ("CLIPVisionModelWithProjection", "CLIPTextModelWithProjection"): CLIP,
    ("SiglipVisionModel", "SiglipTextModel"): SIGLIP,
}
"""Networks of images and captions -> the class that has both."""
_SIDES = {"vision": ("vision_model.", "visual_projection."), "text": ("text_model.", "text_projection.")}
"""Side -> how names begin in a joint class; a tower alone may leave the first out."""
_PAIRED = {"project_images.weight": "visual_projection.weight", "project_texts.weight": "text_projection.weight"}
"""Projections to `embed_dim`, which a pair of encoders has."""
_AS_PAIR = " ".join(f"--set train.model.{each}" for each in ("image_pool=own", "text_pool=own", "embed_dim=512"))
_DEFAULT_SCALE = math.exp(2.6592)
"""Scale of logits of a CLIP before training. Source: CLIP §2.5, 1/0.07."""


class NoEquivalent(Exception):  # noqa: N818 (a finding, not a failure)
    """A model, or what it reads, has no equivalent elsewhere; the message says what of it."""


@dataclass(frozen=True)
class Layout:
    """A model in the layout of a class of transformers.

    Attributes:
        architecture: the class.
        config: its configuration, as `config.json` has it.
        weights: its state.
    """

    architecture: str
    config: dict[str, Any]
    weights: dict[str, Tensor]

    def write(self, folder: Path) -> None:
        """Writes the weights, and a `config.json`, as the class stores them.

        Raises:
            DiskFullError: no space is left.
        """
        require_space(folder, sum(each.nbytes for each in self.weights.values()), "the weights")
        made = getattr(transformers, self.architecture)
        with quiet():
            with torch.device("meta"):
                model = made(made.config_class.from_dict(self.config))
            model.load_state_dict(self.weights, assign=True)
            model.save_pretrained(folder)
        for weights in folder.glob("*.safetensors"):  # which safetensors makes for their owner alone
            shutil.copymode(folder / "config.json", weights)


def load_joint(folder: Path, model: TransformerDualEncoder) -> None:
    """Gives a model the weights that a class of transformers stores in a folder.

    Raises:
        DataError: they are damaged or of another model.
        UsageError: the folder is of another class.
    """
    state = open_network(str(folder), "", JOINT).network.state_dict()
    try:
        model.load_state_dict({ours: state[theirs] for ours, theirs in names_of(model.state_dict()).items()})
    except (KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{folder} does not hold the weights of this model ({reason}); run `itrpipe export` again"
        ) from None


def names_of(ours: Iterable[str]) -> dict[str, str]:
    """Name of a weight of ours -> its name in a joint class of transformers.

    Args:
        ours: names of the state of a `TransformerDualEncoder` whose projections, if it has some, have no bias.
    """
    names = {name: _PAIRED.get(name, name) for name in ours}
    for name in names:
        side, _, inside = name.partition(".network.")
        if side in _SIDES:
            names[name] = inside if inside.startswith(_SIDES[side]) else f"{_SIDES[side][0]}{inside}"
    return names


def layout_of(model: Any, scale: tuple[float, float] | None) -> Layout:
    """A dual encoder in the layout of transformers.

    Args:
        model: a trained model.
        scale: scale and bias of its logits; None where nobody knows them, which leaves those of an untrained model.

    Raises:
        NoEquivalent: transformers has no class that embeds as this model does.
    """
    architecture = architecture_of(model)
    vision = model.vision.network.config.to_dict()
    text = model.text.network.config.to_dict()
    sizes = {} if architecture == SIGLIP else {"projection_dim": model.embed_dim}
    made = getattr(transformers, architecture)
    config = made.config_class(vision_config=vision, text_config=text, **sizes)
    weights = {theirs: model.state_dict()[ours] for ours, theirs in names_of(model.state_dict()).items()}
    factor, bias = scale or (_DEFAULT_SCALE, 0.0)
    if architecture == SIGLIP:
        weights |= {"logit_scale": torch.tensor([math.log(factor)]), "logit_bias": torch.tensor([bias])}
    else:
        weights |= {"logit_scale": torch.tensor(math.log(factor))}
    about = {**config.to_diff_dict(), "architectures": [architecture], "dtype": "float32"}
    return Layout(architecture, about, weights)


def architecture_of(model: Any) -> str:
    """The class of transformers that embeds as a model does.

    Raises:
        NoEquivalent: there is none.
    """
    if not isinstance(model, TransformerDualEncoder):
        raise NoEquivalent("its backbone is none of transformers")
    if not isinstance(model.vision, VisionTower):
        raise NoEquivalent("its images are frozen features")
    vision = model.vision.network
    text = model.text.network
    projected = model.settings.embed_dim
    pools = model.vision.pool, model.text.pool
    architecture = _ARCHITECTURES.get((type(vision).__name__, type(text).__name__), PAIR)
    if architecture != PAIR:
        if pools != ("own", "own"):
            raise NoEquivalent(f"its vectors are pooled by {pools[0]} and {pools[1]}, not by the encoders themselves")
        if projected:
            raise NoEquivalent(f"its projections to embed_dim = {projected} have no place there")
        if any(isinstance(part, torch.nn.Identity) for part in text.children()):
            raise NoEquivalent("its text encoder has no projection")
        return architecture
    if model.settings.text == RANDOM:
        raise NoEquivalent("its captions are words of a vocabulary of its own")
    for network, has_pooler in (
        (text, kind_of(text, TEXT_KINDS).own == "pooler"),
        (vision, kind_of(vision, VISION_KINDS).own),
    ):
        if not has_pooler:
            raise NoEquivalent(f"its {type(network).__name__} has no pooler, as a {PAIR} needs")
    if pools != ("own", "own") or not projected:
        raise NoEquivalent(
            f"its vectors are pooled by {pools[0]} and {pools[1]} and {'projected' if projected else 'not projected'}; "
            f"{_AS_PAIR} trains a {PAIR} of these encoders"
        )
    if not isinstance(getattr(vision, "visual_projection", torch.nn.Identity()), torch.nn.Identity):
        raise NoEquivalent(
            "its image vectors are projected twice, by CLIP's projection and to embed_dim; name as --vision a folder "
            "of its CLIPVisionModel, which has no projection"
        )
    return PAIR
