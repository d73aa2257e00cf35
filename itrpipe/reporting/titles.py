"""What people call backbones and methods."""

from __future__ import annotations

from itrpipe.declared import backbone_shown_as, conf_title

_ROUND_ONE = "round one"


def backbone_title(name: str) -> str:
    """A backbone as papers write it, with its variant: `scan-i2t` is `SCAN i2t`."""
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
    """`round one` for the method of round one, else what the declaration of `train` shows it as."""
    return _ROUND_ONE if name == baseline_method else conf_title("train", name) or name.upper()
