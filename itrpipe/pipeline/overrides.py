"""Values that replace what the declarations say: which steps they are for, and what of them is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from itrpipe.config import COMMAND_LINE, Declaration, Resolved, Settings, did_you_mean
from itrpipe.errors import UsageError
from itrpipe.stages.base import Need, Stage

EVERYWHERE = "*"
"""Scope of execution settings of all steps that have them, upstream ones included."""


@dataclass(frozen=True)
class Override:
    """One value that replaces what the declarations say.

    Attributes:
        scope: a stage or configuration name it is limited to; None for the requested step only; `EVERYWHERE`.
        key: dotted or short name of the setting.
        value: the value.
        origin: where it was given, for messages.
        backbone: it is limited to steps that are asked for with this one; empty for any.
    """

    scope: str | None
    key: str
    value: Any
    origin: str = COMMAND_LINE
    backbone: str = ""


def refuse_unused(overrides: Iterable[Override], known: Iterable[str] = ()) -> None:
    """Refuses overrides that no step reads.

    Args:
        overrides: likewise.
        known: settings that the steps have.

    Raises:
        UsageError: there is one.
    """
    for item in overrides:
        name = f"{item.scope}.{item.key}" if item.scope else item.key
        remedy = did_you_mean(item.key, known) or "; leave it out"
        raise UsageError(f"setting {name} (from {item.origin}) is read by no step of this plan{remedy}")


def is_execution(override: Override, stage: Stage) -> bool:
    """Whether a value changes how a step is executed, and not its result."""
    return override.key.removeprefix("execution.") in stage.execution.model_fields


def below_part(override: Override, conf: str, stage: Stage) -> Override:
    """In a combination `a+b` a value scoped to `a` belongs below that name, unless it is about execution."""
    if override.scope in conf.split("+") and override.scope != conf and not is_execution(override, stage):
        return replace(override, key=f"{override.scope}.{override.key}")
    return override


def split_execution(
    stage: Stage, declaration: Declaration, overrides: list[Override]
) -> tuple[Resolved, list[Override]]:
    """Execution settings with their origins, and the overrides that are of other settings."""
    execution, others = Resolved(), []
    execution.merge(declaration.execution, f"{declaration.path.name} [execution]")
    for item in overrides:
        if is_execution(item, stage):
            execution.merge({item.key.removeprefix("execution."): item.value}, item.origin)
        else:
            others.append(item)
    return execution, others


def refuse_contradictions(need: Need, overrides: list[tuple[dict[str, Any], str]]) -> None:
    """An input that is not what its reader asked for would carry a name that it does not deserve."""
    for values, origin in overrides:
        for key, value in values.items():
            if key in need.settings and need.settings[key] != value:
                raise UsageError(
                    f"{need.stage}.{key} = {value!r} (from {origin}) contradicts {key} = {need.settings[key]!r} "
                    f"of the step that reads it; set {key} of that step instead"
                )


def has_setting(settings: Settings, key: str) -> bool:
    """Whether a step has a setting of this dotted key; tables of free names have every key."""
    value: Any = settings
    for part in key.split("."):
        if not isinstance(value, Settings):
            return isinstance(value, Mapping)
        if part not in type(value).model_fields:
            return False
        value = getattr(value, part)
    return True
