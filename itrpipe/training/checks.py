"""Refuse, before anything runs, a training that cannot work."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from itrpipe.config import COMMAND_LINE
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import passes_of
from itrpipe.features.hub import require_encoder, require_reachable
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.methods.declaration import mined_by
from itrpipe.models.declaration import backbone_family
from itrpipe.training.settings import MineSettings, TrainSettings

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


def refuse_unread(settings: TrainSettings, origins: Mapping[str, str], conf: str) -> None:
    """Refuse options of the command line that change nothing.

    Args:
        settings, origins, conf: as of `require_encoders`.

    Raises:
        UsageError: there is one.
    """
    for name in settings.unused_options():
        if origins.get(name) != COMMAND_LINE:
            continue
        value = attrgetter(name)(settings)
        if name == "loss.teacher":
            raise UsageError(f"--negatives-from {value} is for mined negatives; add --negatives mined")
        raise UsageError(
            f"{conf}: {name} = {value} changes nothing with the other settings as they are; leave it out, or see "
            f"`itrpipe show train {conf}` for what is read"
        )


def refuse_method(settings: TrainSettings) -> None:
    """Refuse a method that does not train a backbone.

    Raises:
        UsageError: likewise.
    """
    model, loss, mined = settings.model, settings.loss, mined_by(settings.loss)
    method, backbone = f"method {settings.method!r}", f"backbone {settings.backbone!r}"
    measure = getattr(model, "measure", "cosine")
    # Where the model itself mines again, it is searched by inner product.
    compares = loss.compares_embeddings or (mined is not None and mined.refresh_every > 0)
    if compares and (not model.embeds or measure != "cosine"):
        how = f"compares by {measure}" if model.embeds else "scores pairs and has no embeddings"
        raise UsageError(
            f"{method} compares embeddings by inner product and {backbone} {how}; train another --backbone, such as "
            "vsepp"
        )
    reason = model.refuses(loss)
    if not reason and loss.only_backbone not in ("", backbone_family(settings.backbone)):
        reason = f"it trains {loss.only_backbone} and nothing else"
    if reason:
        raise UsageError(f"{method} does not train {backbone}: {reason}; leave --backbone out or name another --method")
    untrained = model.untrained()
    if untrained and not loss.trains:
        raise UsageError(f"{method} needs a model that is trained already: {untrained}")
    if untrained and isinstance(loss, Contrastive) and loss.reads_pretrained_scale():
        raise UsageError(
            f"temperature or bias = own is that of a pretrained joint model: {untrained}; or give a number, as in "
            "--set loss.temperature=0.07"
        )


def refuse_further_candidates(mining: MineSettings, conf: str) -> None:
    """Refuse lists with candidates from outside the training set, which a training has not.

    Args:
        mining: settings of the lists.
        conf: configuration of the training, for the message.

    Raises:
        UsageError: likewise.
    """
    if mining.candidates:
        raise UsageError(
            f"{conf} reads images and captions of the training set, and candidates = {mining.candidates} adds others "
            "to its lists; leave it out"
        )


def refuse_refreshing(settings: TrainSettings, mining: MineSettings, conf: str) -> None:
    """Refuse to mine again where steps are counted before there are lists, or where a second model orders these.

    Args:
        settings: of the training.
        mining: settings of its lists.
        conf: configuration of the training, for the message.

    Raises:
        UsageError: likewise.
    """
    mined = mined_by(settings.loss)
    if mined is None or not mined.refresh_every:
        return
    reason = ""
    if settings.batch_by == "tokens":
        reason = "batches of tokens are counted before training begins; give --set train.batch_by=pairs"
    if mining.rescore_with:
        reason = f"{mining.rescore_with} orders the lists, and does not learn meanwhile; leave rescore_with out"
    if reason:
        raise UsageError(f"{conf} mines again every {mined.refresh_every} epochs, but {reason}")
