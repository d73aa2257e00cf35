"""Checks around a training: options that choose it, settings that cannot work, and whether it has converged.

The command line asks `both_encoders`, `backbone_for` and `chosen_loss`; the plan of a training is refused by the
functions that begin with `refuse` and `require`; `why_longer` reads the history of a finished one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from itrpipe.config import COMMAND_LINE, baseline_kind, root_conf
from itrpipe.encoders.folders import require_model
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import passes_of
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.models.declaration import backbone_family, settings_of
from itrpipe.training.search_settings import MineSettings
from itrpipe.training.settings import TrainSettings, declared_encoders, method_of, usual_backbone

TWINS = 0.5
"""Twins for each pair of a batch under `--negatives twins`."""
_NAMES = {"regions": "regions", "boxes": "the boxes of regions", "global": "global vectors"}
_REMEDIES = {
    "regions": "add --features hog, which has regions and needs no weights",
    "boxes": "add --features hog, which has boxes and needs no weights; where regions are the cells of a grid, say of "
    "which by --set precomp.grid=[6,6]",
    "global": "add --features hog, which has global vectors and needs no weights",
}
RISING = 3.0
"""RSum gained over the last third of the epochs, above which validation still rises."""
ANSWERS = 3.0
"""Answers that it has to gain as well; one counts 100 / N in a recall among N images."""


# The configuration, from the options of the command line


def both_encoders(method: str, vision: str | None, text: str | None) -> dict[str, str]:
    """Return the named encoders; one counts for both where the method has those of one joint model."""
    if (vision is None) != (text is None):
        declared = declared_encoders(method)
        is_joint = len(declared) > 1 and declared["vision"] == declared["text"]
        if is_joint or not method_of(method).trains:
            vision = text = vision or text
    encoders = {}
    if vision:
        encoders["vision"] = vision
    if text:
        encoders["text"] = text
    return encoders


def backbone_for(method: str, encoders: dict[str, str]) -> str:
    """Return the usual backbone of a method, or `dual-encoder` where that one has no such encoders."""
    backbone = usual_backbone(method)
    if encoders.keys() <= settings_of(backbone).model_fields.keys():
        return backbone
    return "dual-encoder"


def chosen_loss(method: str, named: dict[str, str], positives: str | None) -> tuple[str, dict[str, Any]]:
    """Return the training configuration, and settings of its loss, that options ask for.

    Args:
        method: configuration of `train`.
        named: the options that were typed, of `negatives`, `weigh`, `judged`, `objective` and `batches`.
        positives: further positives.

    Raises:
        UsageError: the method has none of them.
    """
    loss: dict[str, Any] = {}
    options: dict[str, Any] = dict(named)
    if "negatives" in named:
        if baseline_kind("train", method):  # no baseline any more
            method = root_conf("train", method)
        sources = named["negatives"].split(",")
        if "twins" in sources and "twins" in method_of(method).model_fields:
            loss = {"loss.twins": TWINS, "sentences": "twins"}
            sources.remove("twins")
        options["negatives"] = sources
        if not sources:
            del options["negatives"]
    if options.keys() <= method_of(method).model_fields.keys():
        for name, value in options.items():
            loss[f"loss.{name}"] = value
    elif options == {"negatives": ["synthetic"]} and method in ("triplet", "synthetic-triplet"):
        method = "synthetic-triplet"
    else:
        others = [name for name in named if name != "negatives"]
        name = others[0] if others else "negatives"
        raise UsageError(f"--{name} {named[name]} is for --method contrastive, not for {method}; leave one of them out")
    if positives:
        if method not in ("triplet", "positives-triplet"):
            raise UsageError(
                f"--positives {positives} is for --method triplet, not for {method}; leave one of them out"
            )
        method = "positives-triplet"
    return method, loss


# Settings that cannot work, before a training


def refuse_other_features(settings: TrainSettings, extracted: Any) -> None:
    """Refuse features that a model cannot read.

    Args:
        settings: of the training.
        extracted: settings of the features.

    Raises:
        UsageError: they do not hold the features that the backbone reads.
    """
    parts = passes_of("", extracted).values()
    groups = set()
    for part in parts:
        groups |= part.may_hold()
    for name in settings.model.reads():
        if name not in groups:
            kinds = "+".join(part.kind.replace("_", "-") for part in parts)
            remedy = _REMEDIES[name]
            alternative = settings.model.without(name)
            if alternative:
                remedy += f", or {alternative}"
            raise UsageError(
                f"backbone {settings.backbone!r} reads {_NAMES[name]}, which features {settings.features!r} (made by "
                f"{kinds}) do not hold; {remedy}"
            )


def require_encoders(settings: TrainSettings, origins: Mapping[str, str], conf: str) -> None:
    """Refuse encoders that cannot be fetched, and adapters without their package.

    Args:
        settings: of the training.
        origins: dotted key of a setting -> where its value is from.
        conf: configuration of the training, for the message.

    Raises:
        MissingInputError: an encoder cannot be fetched; unless its name was typed, the message says how to name one.
        UsageError: peft is not installed.
    """
    for name, model in settings.model.pretrained().items():
        if not model:
            continue
        option = f"--set model.{name}"
        side = ()
        if name in ("vision", "text"):
            option = f"--{name}"
            side = (name,)
        if settings.model.joint():
            option = "--vision"
        try:
            require_model(model, getattr(settings.model, f"{name}_revision", "main"), side)
        except MissingInputError as error:
            if origins.get(f"model.{name}") == COMMAND_LINE:
                raise
            message = f"{str(error).rstrip('.')}; or name another by {option}"
            raise MissingInputError(message) from None
    if settings.adapts and importlib.util.find_spec("peft") is None:
        raise UsageError(
            f"{conf}: adapter = {settings.adapter} needs peft, which is not installed; run `pip install "
            "'itrpipe[lora]'` or leave it out"
        )


def refuse_unread(settings: TrainSettings, origins: Mapping[str, str], conf: str) -> None:
    """Refuse options of the command line that change nothing.

    Args:
        settings, origins, conf: see `require_encoders`.

    Raises:
        UsageError: the command line gives such an option.
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
    """Refuse a method that does not train the backbone of the settings.

    Raises:
        UsageError: the method does not train it.
    """
    model = settings.model
    loss = settings.loss
    method = f"method {settings.method!r}"
    backbone = f"backbone {settings.backbone!r}"
    mined = loss.mined()
    # Where the model itself mines again, it is searched by inner product.
    if loss.compares_embeddings or (mined is not None and mined.refresh_every > 0):
        measure = getattr(model, "measure", "cosine")
        comparison = ""
        if not model.embeds:
            comparison = "scores pairs and has no embeddings"
        elif measure != "cosine":
            comparison = f"compares by {measure}"
        if comparison:
            raise UsageError(
                f"{method} compares embeddings by inner product and {backbone} {comparison}; train another --backbone, "
                "such as vsepp"
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


def refuse_lists(settings: TrainSettings, mining: MineSettings, conf: str) -> None:
    """Refuse lists that a training cannot read, and to mine again where that cannot be.

    Candidates from outside the training set have no images and captions there. A training cannot mine again where steps
    are counted before there are lists, or where a second model orders these.

    Args:
        settings: of the training.
        mining: settings of its lists.
        conf: configuration of the training, for the message.

    Raises:
        UsageError: the training cannot read the lists, or cannot mine again.
    """
    if mining.candidates:
        raise UsageError(
            f"{conf} reads images and captions of the training set, and candidates = {mining.candidates} adds others "
            "to its lists; leave it out"
        )
    mined = settings.loss.mined()
    if mined is None or not mined.refresh_every:
        return
    reason = ""
    if settings.batch_by == "tokens":
        reason = "batches of tokens are counted before training begins; give --set train.batch_by=pairs"
    if mining.rescore_with:
        reason = f"{mining.rescore_with} orders the lists, and does not learn meanwhile; leave rescore_with out"
    if reason:
        raise UsageError(f"{conf} mines again every {mined.refresh_every} epochs, but {reason}")


# A finished training


def why_longer(history: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], images: int) -> str:
    """Return why a training is to go on before negatives are mined or models compared; empty if nothing says so.

    A learning rate that falls lifts validation at the end in any case, so that a rise then says nothing.

    Args:
        history: a row for each validation, with `epoch` and `val_rsum`; empty for a model that was not trained.
        settings: of the training, as manifests keep them.
        images: of the validation split.
    """
    if not history or history[-1]["epoch"] == 0:
        return ""
    epochs = history[-1]["epoch"]
    before = [row["val_rsum"] for row in history if 0 < row["epoch"] <= 2 * epochs / 3]
    if not before:
        return "too few epochs to see whether it has converged"
    gained = max(row["val_rsum"] for row in history) - max(before)
    if gained <= RISING or gained <= 100 * ANSWERS / min(images, settings["validation_images"]):
        return ""
    patience = settings["patience"]
    was_flat = patience > 0 and not any(row["best"] for row in history[-patience:])
    rate_falls = True
    if settings["schedule"] == "step":
        planned = settings["epochs"]
        ends = settings["decay_at"] or range(settings["decay_every"], planned, settings["decay_every"])
        rate_falls = any(2 * planned / 3 <= end < planned for end in ends)
    if was_flat or rate_falls:
        return ""
    return f"validation gained {gained:.1f} RSum over the last third of its epochs"
