"""The steps of a plan, each of which makes one artifact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from itrpipe.config import Resolved, Settings
from itrpipe.datasets.definition import StageDefinition
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import Location

State = Literal["up to date", "missing", "interrupted", "running", "new settings", "stale", "damaged"]
"""`missing`: nothing of this name was ever made; `new settings`: another version of it was, which stays right; `stale`:
what was made is overtaken by a source that changed, by a newer version of a stage, or because something that it read
was made again with another result."""


@dataclass(frozen=True)
class Step:
    """One artifact of a plan.

    Attributes:
        need: what was asked for.
        settings, execution: validated.
        resolved: values with origins, for `itrpipe show`.
        inputs: input name -> step that makes it.
        sources: digests of files outside the data folder.
        definition: where those files lie.
        location: where the artifact lies or will lie.
        state, reason: what the plan found.
    """

    need: Need
    settings: Settings
    execution: Settings
    resolved: Resolved
    inputs: dict[str, Step]
    sources: dict[str, str]
    definition: StageDefinition | None
    location: Location
    state: State
    reason: str = ""

    @property
    def finished(self) -> Path | None:
        """Folder of the artifact, once it is whole."""
        return self.location.folder if self.state != "damaged" and self.location.folder.exists() else None

    def upstream(self) -> Iterator[Step]:
        """Yields every step this one depends on, then itself, in an order in which they can run."""
        for step in self.inputs.values():
            yield from step.upstream()
        yield self


def pending_steps(steps: Iterable[Step]) -> list[Step]:
    """The steps that have to run, in order: those asked for that are not up to date, and what these read."""
    ordered: dict[Path, Step] = {}

    def visit(step: Step) -> None:
        if step.state != "up to date" and step.location.folder not in ordered:
            for upstream in step.inputs.values():
                visit(upstream)
            ordered[step.location.folder] = step

    for step in steps:
        visit(step)
    return list(ordered.values())


def unique_steps(steps: Iterable[Step]) -> list[Step]:
    """All steps of several plans, each once, in an order in which they can run."""
    ordered: dict[Path, Step] = {}
    for step in steps:
        for each in step.upstream():
            ordered.setdefault(each.location.folder, each)
    return list(ordered.values())
