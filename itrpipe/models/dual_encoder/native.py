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
from itrpipe.features.hub import quiet
from itrpipe.features.towers import Kind, kind_of, open_network
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.network import TransformerDualEncoder
from itrpipe.models.dual_encoder.towers import TEXT_KINDS, VISION_KINDS, VisionTower
from itrpipe.storage.disk import require_space

CLIP, SIGLIP, PAIR = "CLIPModel", "SiglipModel", "VisionTextDualEncoderModel"
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
_OWN_NAME = "{side}.network."
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
    return {name: _PAIRED.get(name) or _joint_name(name) for name in ours}


def _joint_name(name: str) -> str:
    side = name.partition(".")[0]
    if side not in _SIDES:
        return name
    inside = name.removeprefix(_OWN_NAME.format(side=side))
    return inside if inside.startswith(_SIDES[side]) else f"{_SIDES[side][0]}{inside}"


def layout_of(model: Any, scale: tuple[float, float] | None) -> Layout:
    """A dual encoder in the layout of transformers.

    Args:
        model: a trained model.
        scale: scale and bias of its logits; None where nobody knows them, which leaves those of an untrained model.

    Raises:
        NoEquivalent: transformers has no class that embeds as this model does.
    """
    architecture = architecture_of(model)
    vision, text = model.vision.network.config.to_dict(), model.text.network.config.to_dict()
    sizes = {} if architecture == SIGLIP else {"projection_dim": model.embed_dim}
    made = getattr(transformers, architecture).config_class(vision_config=vision, text_config=text, **sizes)
    weights = {theirs: model.state_dict()[ours] for ours, theirs in names_of(model.state_dict()).items()}
    weights |= _logits(architecture, scale or (_DEFAULT_SCALE, 0.0))
    _check_whole(architecture, made, weights)
    config = {**made.to_diff_dict(), "architectures": [architecture], "dtype": "float32"}
    return Layout(architecture, config, weights)


def architecture_of(model: Any) -> str:
    """The class of transformers that embeds as a model does.

    Raises:
        NoEquivalent: there is none.
    """
    if not isinstance(model, TransformerDualEncoder):
        raise NoEquivalent("its backbone is none of transformers")
    if not isinstance(model.vision, VisionTower):
        raise NoEquivalent("its images are frozen features")
    kinds = type(model.vision.network).__name__, type(model.text.network).__name__
    if kinds not in _ARCHITECTURES:
        _check_pair(model)
        return PAIR
    if (pools := (model.vision.pool, model.text.pool)) != ("own", "own"):
        raise NoEquivalent(f"its vectors are pooled by {pools[0]} and {pools[1]}, not by the encoders themselves")
    if model.settings.embed_dim:
        raise NoEquivalent(f"its projections to embed_dim = {model.embed_dim} have no place there")
    if any(isinstance(part, torch.nn.Identity) for part in model.text.network.children()):
        raise NoEquivalent("its text encoder has no projection")
    return _ARCHITECTURES[kinds]


def _check_pair(model: TransformerDualEncoder) -> None:
    """Whether `VisionTextDualEncoderModel` embeds as two encoders do that are of no joint model.

    Raises:
        NoEquivalent: it does not.
    """
    assert isinstance(model.vision, VisionTower)
    vision, text = model.vision.network, model.text.network
    if model.settings.text == RANDOM:
        raise NoEquivalent("its captions are words of a vocabulary of its own")
    has_pooler = kind_of(text, TEXT_KINDS).own == "pooler"
    if not (kind_of(vision, VISION_KINDS).own and has_pooler):
        lacks = vision if has_pooler else text
        raise NoEquivalent(
            f"{type(vision).__name__} and {type(text).__name__} are not the encoders of a CLIP or of a SigLIP, and "
            f"{type(lacks).__name__} has no pooler, as a {PAIR} needs"
        )
    wanted = {"image_pool": model.vision.pool, "text_pool": model.text.pool}
    sets = [f"--set train.model.{name}=own" for name, pool in wanted.items() if pool != "own"]
    sets += [] if model.settings.embed_dim else ["--set train.model.embed_dim=512"]
    if sets:
        pools = " and ".join(wanted.values())
        projected = f"projected to embed_dim = {model.embed_dim}" if model.settings.embed_dim else "not projected"
        raise NoEquivalent(
            f"its vectors are pooled by {pools} and {projected}; {' '.join(sets)} trains a {PAIR} of these encoders"
        )
    if not isinstance(getattr(vision, "visual_projection", torch.nn.Identity()), torch.nn.Identity):
        raise NoEquivalent(
            "its image vectors are projected twice, by CLIP's projection and to embed_dim; name as --vision a folder "
            "of its CLIPVisionModel, which has no projection"
        )


def _logits(architecture: str, scale: tuple[float, float]) -> dict[str, Tensor]:
    if architecture != SIGLIP:
        return {"logit_scale": torch.tensor(math.log(scale[0]))}
    return {"logit_scale": torch.tensor([math.log(scale[0])]), "logit_bias": torch.tensor([scale[1]])}


def _check_whole(architecture: str, config: Any, weights: dict[str, Tensor]) -> None:
    """Every weight of the class is there in its shape, and none more; no memory is taken for that."""
    with torch.device("meta"):
        expected = getattr(transformers, architecture)(config).state_dict()
    assert {name: each.shape for name, each in weights.items()} == {name: each.shape for name, each in expected.items()}
