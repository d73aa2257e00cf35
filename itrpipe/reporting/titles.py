"""What people call backbones and methods."""

from __future__ import annotations

from itrpipe.config import conf_title

_FAMILIES = {"vsepp": "VSE++"}
_ROUND_ONE = "round one"


def backbone_title(name: str) -> str:
    """A backbone as papers write it, with its variant: `scan-i2t` is `SCAN i2t`."""
    family, *variant = name.split("-")
    return " ".join([_FAMILIES.get(family, family.upper()), *variant])


def method_title(name: str, baseline_method: str) -> str:
    """`round one` for the method of round one, else what the declaration of `train` shows it as."""
    return _ROUND_ONE if name == baseline_method else conf_title("train", name) or name.upper()
