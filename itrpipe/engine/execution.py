"""Settings of stages with maps: where their parts are made. Light: plans read it."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field, field_validator

from itrpipe.config import Settings
from itrpipe.engine.part import Share, parse_share

MOST_WORKERS = 4_096


class MapExecution(Settings):
    """Where a stage makes the parts of its maps; every choice gives the same bytes.

    Attributes:
        engine: `local` makes them in this process, or in several of this machine; `ray` on a Ray cluster.
        workers: processes; 0 takes what suits the stage on this machine, and of a cluster all there is.
        address: of the Ray cluster, `auto` for the one that this machine belongs to; empty starts one on this machine.
    """

    engine: Literal["local", "ray"] = "local"
    workers: int = Field(default=0, ge=0, le=MOST_WORKERS)
    address: str = ""


class SharedExecution(MapExecution):
    """The same of a stage whose parts several jobs can share.

    Attributes:
        part: `i/n` makes one of n shares only; empty for all.
    """

    part: str = ""

    @field_validator("part")
    @classmethod
    def _is_share(cls, value: str) -> str:
        return str(parse_share(value)) if value else ""


def share_of(execution: Settings) -> Share | None:
    """The share of its parts that a step makes; None where it makes all of them."""
    part = getattr(execution, "part", "")
    return parse_share(part) if part else None


AnySettings = TypeVar("AnySettings", bound=Settings)


def whole(execution: AnySettings) -> AnySettings:
    """The same settings of a job that makes all parts."""
    return execution.model_copy(update={"part": ""}) if share_of(execution) else execution
