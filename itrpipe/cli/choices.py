"""What the options of `itrpipe train` ask for, as a configuration and assignments to its settings."""

from __future__ import annotations

import json
from pathlib import Path

from itrpipe.errors import UsageError


def encoders(vision: str | None, text: str | None) -> list[str]:
    """The encoders of a dual encoder as assignments to every training step, folders by their whole path."""
    given = {"vision": vision, "text": text}
    paths = {name: Path(value).expanduser() for name, value in given.items() if value}
    return [f"train.model.{name}={path.resolve() if path.is_dir() else given[name]}" for name, path in paths.items()]


def backbone_for(method: str, **encoders: str | None) -> str:
    """The usual backbone of a method, or `dual-encoder` where that one has no such encoders.

    Raises:
        UsageError: there is no such method.
    """
    from itrpipe.training.settings import settings_of, usual_backbone

    usual = usual_backbone(method)
    named = {name for name, value in encoders.items() if value}
    return usual if named <= settings_of(usual).model_fields.keys() else "dual-encoder"


def both_encoders(method: str, vision: str | None, text: str | None) -> tuple[str | None, str | None]:
    """The encoders that were named; of a method whose own are those of one joint model, one stands for both."""
    if (vision is None) == (text is None):
        return vision, text
    from itrpipe.training.settings import declared_encoders, method_of

    own = declared_encoders(method)
    joint = not method_of(method).trains or (len(own) > 1 and own["vision"] == own["text"])
    return (vision or text, text or vision) if joint else (vision, text)


def followed_by(trackers: list[str] | None) -> list[str]:
    """The trackers as an assignment to every training step."""
    return [f"train.trackers={json.dumps(trackers)}"] if trackers else []


def chosen_negatives(method: str, **given: str | None) -> tuple[str, list[str]]:
    """The training configuration, and assignments to its settings, that negatives ask for.

    Args:
        method: configuration of `train`.
        given: `negatives`, `weigh`, `objective` and `batches`; None where not given.

    Raises:
        UsageError: there are no such negatives, or the method has none of them.
    """
    named = {name: value for name, value in given.items() if value}
    if not named:
        return method, []
    from itrpipe.training.settings import method_of

    if named.keys() <= method_of(method).model_fields.keys():
        values = {name: value.split(",") if name == "negatives" else value for name, value in named.items()}
        return method, [f"loss.{name}={json.dumps(value)}" for name, value in values.items()]
    other = next((name for name in named if name != "negatives"), None)
    if other:
        raise UsageError(f"--{other} {named[other]} is for --method contrastive, not for {method}")
    if named["negatives"] != "synthetic":
        raise UsageError(
            f"--negatives {named['negatives']}: {method} has none of this name; --method contrastive takes batch, "
            "mined and synthetic"
        )
    if method not in ("triplet", "synthetic-triplet"):
        raise UsageError(
            f"--negatives synthetic adds sentences to --method triplet and contrastive, not to {method}; "
            "tags-synthetic reads them with UNITER"
        )
    return "synthetic-triplet", []


def with_positives(method: str, positives: str | None) -> str:
    """The training configuration that adds further positives to another.

    Raises:
        UsageError: there are no such positives, or the method has none of them.
    """
    if positives is None:
        return method
    if positives != "ascl":
        raise UsageError(f"--positives {positives}: there are none of this name; known: ascl")
    if method == "synthetic-triplet":
        raise UsageError(
            "--positives ascl and --negatives synthetic are two configurations; for both give --positives ascl --set "
            "loss.synthetic_sentences=4"
        )
    if method not in ("triplet", "positives-triplet"):
        raise UsageError(
            f"--positives ascl adds captions to --method triplet, not to {method}; --method ascl makes them for "
            "its own backbone"
        )
    return "positives-triplet"
