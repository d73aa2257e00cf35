"""The dual encoders that transformers has a class for: which, and what it calls their weights.

One table of names serves both directions: `names_of` tells under which name a class of transformers stores a weight of
ours, to write a folder that it opens and to open one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from itrpipe.models.dual_encoder.network import TransformerDualEncoder

_CLIP, _SIGLIP = "CLIPModel", "SiglipModel"
_ARCHITECTURES = {
    ("CLIPVisionModelWithProjection", "CLIPTextModelWithProjection"): _CLIP,
    ("SiglipVisionModel", "SiglipTextModel"): _SIGLIP,
}
"""Networks of images and captions -> the class that has both."""
_SIDES = {"vision": ("vision_model.", "visual_projection."), "text": ("text_model.", "text_projection.")}
"""Side -> how names begin in a joint class; a tower alone may leave the first out."""
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


def names_of(ours: Iterable[str]) -> dict[str, str]:
    """Name of a weight of ours -> its name in a joint class of transformers.

    Args:
        ours: names of the state of a `TransformerDualEncoder` without projections of its own.
    """
    return {name: _joint_name(name) for name in ours}


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
    sizes = {"projection_dim": model.embed_dim} if architecture == _CLIP else {}
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
    if model.vision is None:
        raise NoEquivalent("its images are frozen features")
    kinds = type(model.vision.network).__name__, type(model.text.network).__name__
    if kinds not in _ARCHITECTURES:
        raise NoEquivalent(f"{kinds[0]} and {kinds[1]} are not the encoders of a CLIP or of a SigLIP")
    if (pools := (model.vision.pool, model.text.pool)) != ("own", "own"):
        raise NoEquivalent(f"its vectors are pooled by {pools[0]} and {pools[1]}, not by the encoders themselves")
    if model.settings.embed_dim:
        raise NoEquivalent(f"its projections to embed_dim = {model.embed_dim} have no place there")
    if any(isinstance(part, torch.nn.Identity) for part in model.text.network.children()):
        raise NoEquivalent("its text encoder has no projection")
    return _ARCHITECTURES[kinds]


def _logits(architecture: str, scale: tuple[float, float]) -> dict[str, Tensor]:
    if architecture == _CLIP:
        return {"logit_scale": torch.tensor(math.log(scale[0]))}
    return {"logit_scale": torch.tensor([math.log(scale[0])]), "logit_bias": torch.tensor([scale[1]])}


def _check_whole(architecture: str, config: Any, weights: dict[str, Tensor]) -> None:
    """Every weight of the class is there in its shape, and none more; no memory is taken for that."""
    with torch.device("meta"):
        expected = getattr(transformers, architecture)(config).state_dict()
    assert {name: each.shape for name, each in weights.items()} == {name: each.shape for name, each in expected.items()}
