"""Refuses, before anything runs, a training whose model cannot read its features or whose encoders are not there."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import passes_of
from itrpipe.features.hub import require_encoder, require_reachable
from itrpipe.training.settings import TrainSettings

_NAMES = {"regions": "regions", "boxes": "the boxes of regions", "global": "global vectors", "pixels": "pixels"}
_REMEDIES = {
    "regions": "add --features hog, which has regions and needs no weights",
    "boxes": "add --features hog, which has boxes and needs no weights; where regions are the cells of a grid, say of "
    "which by --set precomp.grid=[6,6]",
    "global": "add --features hog, which has global vectors and needs no weights",
    "pixels": "give --features pixels",
}


def refuse_other_features(settings: TrainSettings, extracted: Any) -> None:
    """Refuse features that a model cannot read.

    Args:
        settings: of the training.
        extracted: settings of the features.

    Raises:
        UsageError: they do not hold what the backbone reads.
    """
    parts = passes_of("", extracted).values()
    held = frozenset().union(*(part.may_hold() for part in parts))
    for name in settings.model.reads():
        if name in held:
            continue
        made = "+".join(part.kind.replace("_", "-") for part in parts)
        encoders = "name encoders that read pixels by --vision and --text" if "pixels" in held else ""
        remedy = ", or ".join(filter(None, (_REMEDIES[name], encoders, settings.model.without(name))))
        raise UsageError(
            f"backbone {settings.backbone!r} reads {_NAMES[name]}, which features {settings.features!r} (made by "
            f"{made}) do not hold; {remedy}"
        )


def require_encoders(settings: TrainSettings, origins: Mapping[str, str], conf: str) -> None:
    """Refuse encoders that cannot be fetched, and adapters without their package.

    Args:
        settings: of the training.
        origins: dotted key of a setting -> where its value is from.
        conf: configuration of the training, for the message.

    Raises:
        MissingInputError: an encoder cannot be fetched; where it is a default, the message says how to name another.
        UsageError: peft is not installed.
    """
    for name, model in settings.model.pretrained().items():
        if not model:
            continue
        of_a_side = name in ("vision", "text")
        try:
            if of_a_side:
                require_encoder(name, model, getattr(settings.model, f"{name}_revision", "main"))
            else:
                require_reachable(model, getattr(settings.model, f"{name}_revision", "main"))
        except MissingInputError as error:
            if not origins.get(f"model.{name}", "").endswith("]"):  # of a declaration
                raise
            option = f"--{name}" if of_a_side else f"--set model.{name}=…"
            if settings.model.joint():
                option = "--vision"
            message = f"{str(error).rstrip('.')}; or name another than this default: {option}"
            raise MissingInputError(message) from None
    if settings.adapts and importlib.util.find_spec("peft") is None:
        raise UsageError(
            f"{conf}: adapter = {settings.adapter} needs peft, which is not installed; run `pip install "
            "'itrpipe[lora]'` or leave it out"
        )
