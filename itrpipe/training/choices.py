"""Choose the configuration of a training by a few words: encoders, negatives, weights."""

from __future__ import annotations

from typing import Any

from itrpipe.config import baseline_kind, root_conf
from itrpipe.errors import UsageError
from itrpipe.models.declaration import settings_of
from itrpipe.training.settings import declared_encoders, method_of, usual_backbone

TWINS = 0.5
"""Of `--negatives twins`, for each pair of a batch."""


def both_encoders(method: str, vision: str | None, text: str | None) -> dict[str, str]:
    """Return the named encoders; one counts for both where the method has those of one joint model."""
    if (vision is None) != (text is None):
        own = declared_encoders(method)
        if not method_of(method).trains or (len(own) > 1 and own["vision"] == own["text"]):
            vision = text = vision or text
    return {name: value for name, value in {"vision": vision, "text": text}.items() if value}


def backbone_for(method: str, encoders: dict[str, str]) -> str:
    """Return the usual backbone of a method, or `dual-encoder` where that one has no such encoders."""
    usual = usual_backbone(method)
    return usual if encoders.keys() <= settings_of(usual).model_fields.keys() else "dual-encoder"


def chosen_loss(method: str, named: dict[str, str], positives: str | None) -> tuple[str, dict[str, Any]]:
    """Return the training configuration, and settings of its loss, that options ask for.

    Args:
        method: configuration of `train`.
        named: `negatives`, `weigh`, `objective` and `batches`, those that were given.
        positives: further positives.

    Raises:
        UsageError: the method has none of them.
    """
    sources = named.get("negatives", "").split(",")
    loss = {}
    if "negatives" in named and baseline_kind("train", method):  # no baseline any more
        method = root_conf("train", method)
    if "twins" in sources and "twins" in method_of(method).model_fields:
        loss = {"loss.twins": TWINS, "sentences": "twins"}
        others = ",".join(name for name in sources if name != "twins")
        named = {**named, "negatives": others} if others else {k: v for k, v in named.items() if k != "negatives"}
    if named.keys() <= method_of(method).model_fields.keys():
        loss |= {f"loss.{name}": each.split(",") if name == "negatives" else each for name, each in named.items()}
    elif named == {"negatives": "synthetic"} and method in ("triplet", "synthetic-triplet"):
        method = "synthetic-triplet"
    else:
        name = next((name for name in named if name != "negatives"), "negatives")
        raise UsageError(f"--{name} {named[name]} is for --method contrastive, not for {method}; leave one of them out")
    if positives and method not in ("triplet", "positives-triplet"):
        raise UsageError(f"--positives {positives} is for --method triplet, not for {method}; leave one of them out")
    return "positives-triplet" if positives else method, loss
