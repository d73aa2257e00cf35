"""What declarations say of configurations and backbones beside their settings: names, help, places and baselines."""

from __future__ import annotations

from collections.abc import Mapping

from itrpipe.config import ABOUT, BASELINE, SHOWN_AS, extended, load_declaration


def conf_title(stage: str, conf: str) -> str | None:
    """What people call a configuration; None where its declaration does not say."""
    return load_declaration(stage).confs.get(conf, {}).get(SHOWN_AS)


def described(stage: str, table: str) -> list[tuple[str, str]]:
    """Names of a declaration, each with what it is in one line.

    Args:
        stage: name.
        table: `conf` for all configurations, `defaults` for backbones that have such a line.
    """
    declaration = load_declaration(stage)
    if table == "conf":
        return [(name, str(values.get(ABOUT, ""))) for name, values in declaration.confs.items()]
    tables = {name: values for name, values in declaration.defaults.items() if isinstance(values, Mapping)}
    return [(name, str(values[ABOUT])) for name, values in tables.items() if ABOUT in values]


def backbone_shown_as(name: str) -> str | None:
    """What people call a backbone; None where its declaration does not say."""
    return load_declaration("train").defaults.get(name, {}).get(SHOWN_AS)


def root_conf(stage: str, conf: str) -> str:
    """The configuration that one extends in the end: itself where it extends none, or is not declared any more."""
    declaration = load_declaration(stage)
    return extended(declaration, conf)[0] if conf in declaration.confs else conf


def baseline_kind(stage: str, conf: str) -> str:
    """What a configuration that others are compared with has as much of as they: `updates` or `time`; often empty."""
    return load_declaration(stage).confs.get(conf, {}).get(BASELINE, "")
