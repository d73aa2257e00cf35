"""What people call backbones and methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from itrpipe.declared import backbone_shown_as, conf_title
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.methods.declaration import methods

_FIRST = "first training"


def backbone_title(name: str) -> str:
    """A backbone as papers write it, with its variant: `scan-i2t` is `SCAN i2t`; the name of given embeddings."""
    if is_given(name):
        return name.removeprefix(f"{GIVEN}-")
    parts = name.split("-")
    for end in range(len(parts), 0, -1):
        if title := backbone_shown_as("-".join(parts[:end])):
            return " ".join([title, *parts[end:]])
    return " ".join([parts[0].upper(), *parts[1:]])


def model_title(backbone: str, method: str) -> str:
    """Titles of a backbone and a method as one name; a method that bears the name of its backbone stands alone."""
    named_after_it = method == backbone or method.startswith((f"{backbone} ", f"{backbone}, "))
    return method if named_after_it else f"{backbone}, {method}"


def method_title(name: str, baseline_method: str) -> str:
    """`first training` for the method of the first training, else what the declaration of `train` shows it as."""
    return _FIRST if name == baseline_method else conf_title("train", name) or name.upper()


def choices_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """What the method of a trained model was put together from, see `MethodSettings.choices`; often nothing.

    Args:
        settings: of the trained model.
    """
    declared = methods().get(settings["method"])  # none of a plug-in that was removed
    return {} if declared is None else declared.model_construct(**settings.get("loss", {})).choices()  # of any version


def title_by_choices(name: str, settings: Mapping[str, Any]) -> str:
    """The choices of a model as a name, where its configuration is that of the method itself; often empty.

    Args:
        name: of the configuration.
        settings: of the trained model.
    """
    return ", ".join(filter(None, choices_of(settings).values())) if settings["method"] == name else ""


def told_by_title(name: str, settings: Mapping[str, Any]) -> set[str]:
    """Settings, by dotted key, that `title_by_choices` tells."""
    return {f"loss.{key}" for key in methods()[name].chosen} if title_by_choices(name, settings) else set()
