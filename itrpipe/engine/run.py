"""Makes the parts of a map that are not there yet, on the engine that the settings name. Light: plans read it."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from itrpipe.config import Settings
from itrpipe.engine.work import Made, Runner, Work
from itrpipe.errors import DataError
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import DIVISION
from itrpipe.storage.disk import TEMPORARY, make_folder, read_stamped_json, write_stamped_json

PARTS = "parts"
_SHARE = re.compile(r"([1-9]\d*)/([1-9]\d*)")


class Share(NamedTuple):
    """Share `number` of `count` of the parts of a map, counted from 1, for the jobs of an array."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Reads `i/n`.

        Raises:
            ValueError: not of this form, or i is larger than n.
        """
        match = _SHARE.fullmatch(text)
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError("a part is given as i/n with 1 <= i <= n, such as 2/8")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


class MapExecution(Settings):
    """The place where a stage makes the parts of its maps; every choice gives the same bytes.

    Attributes:
        engine: `local` makes them in this process, or in several of this machine; `ray` on a Ray cluster.
        workers: processes; 0 takes what suits the stage on this machine, and of a cluster all there is.
        address: of the Ray cluster, `auto` for the one that this machine belongs to; empty starts one on this machine.
    """

    engine: Literal["local", "ray"] = "local"
    workers: int = Field(default=0, ge=0, le=4_096)
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
        return value and str(Share.parse(value))


def share_of(execution: Settings) -> Share | None:
    """The share of its parts that a step makes; None where it makes all of them."""
    part = getattr(execution, "part", "")
    return Share.parse(part) if part else None


def whole(execution: Settings) -> Settings:
    """The same settings of a job that makes all parts."""
    return execution.model_copy(update={"part": ""}) if share_of(execution) else execution


@dataclass(eq=False)
class OthersMissing(Exception):  # noqa: N818 - no error: this job is done
    """This job has made its share of a map, and what follows needs the shares of other jobs.

    Attributes:
        share: that is made.
        rows: units of the map in this share.
        unit: what these are, in the plural.
        paths: files of all parts of the map.
        more: whether another map follows, which jobs can share again.
    """

    share: Share
    rows: int
    unit: str
    paths: list[Path]
    more: bool

    def missing(self) -> int:
        """Parts that nobody has made yet."""
        return sum(not path.exists() for path in self.paths)


def make_parts(
    work: Work,
    folder: Path,
    execution: MapExecution,
    reporter: Reporter,
    warn: Callable[[str], object],
    *,
    more: bool = False,
) -> Made:
    """Makes every part of a map that is not there yet.

    Args:
        work: the map.
        folder: of the files of its parts, for nothing else.
        execution: where they are made, and which share of them.
        reporter: shows the progress.
        warn: is told what was damaged.
        more: another map of the same stage needs this one.

    Raises:
        OthersMissing: this job makes a share of the parts, and has made it.
        DataError: a worker said so, or the parts that are there are of another division.
        ItrpipeError: a worker said so, or some parts killed their workers.
    """
    make_folder(folder)
    share = share_of(execution)
    record = folder / DIVISION
    division = {"key": work.key}
    if record.exists() and read_stamped_json(record, f"remove {folder} and run the same command again") != division:
        if share is not None:  # others may be at work on them
            raise DataError(
                f"{folder} holds parts of another division; give every part the same settings, or remove that folder"
            )
        reporter.say(f"  {work.title}: parts of another division are removed")
        for other in folder.iterdir():  # before the record, without which they would count as parts of this division
            if other != record:
                other.unlink()
        record.unlink()
    if not record.exists():
        write_stamped_json(record, division)
    every = [(part, folder / f"{part.name}{work.suffix}") for part in work.parts()]
    own = every[share.number - 1 :: share.count] if share else every
    found = [path for _, path in own if path.exists()]
    kept = set()
    damaged = 0
    with reporter.task("checking what is done", len(found), "parts") as task:
        for path in found:
            try:
                if work.keeps(path):
                    kept.add(path)
            except DataError:
                damaged += 1
            task.advance()
    if damaged:
        warn(f"{damaged:,} of {len(found):,} parts in {folder} were damaged; they are made again")
    todo = [(part, path) for part, path in own if path not in kept]
    total, rows = (sum(part.rows for part, _ in parts) for parts in (own, todo))
    started = time.monotonic()
    try:
        if todo:
            engine = importlib.import_module(f"itrpipe.engine.{execution.engine}")
            with (
                reporter.task(work.title, total, work.unit, total - rows) as task,
                engine.crew(work, execution, len(todo)) as crew,
                closing(crew.made(work.title, todo, reporter)) as made,
            ):
                for part, workers in made:
                    task.advance(part.rows, f"{workers} workers" if workers > 1 else "")
    finally:  # what workers that were killed have begun to write is nobody else's
        begun = tuple(f".{path.name}." for _, path in own)
        for path in folder.glob(f".*{TEMPORARY}"):
            if path.name.startswith(begun):
                path.unlink(missing_ok=True)
    paths = [path for _, path in every]
    if share is not None:
        raise OthersMissing(share, total, work.unit, paths, more)
    return Made(paths, rows, time.monotonic() - started)


@dataclass
class Maps(Runner):
    """Makes maps where execution settings say, so that an interrupted run goes on.

    Args:
        folder, reporter, warn: as of `Runner`.
        execution: where parts are made, and which share of them.
    """

    reporter: Reporter
    execution: MapExecution

    def made(self, work: Work, name: str, *, more: bool = False) -> Made:
        """Makes every part of a map that is not there yet; see `make_parts`."""
        folder = self.folder / PARTS / name
        return make_parts(work, folder, self.execution, self.reporter, self.warn, more=more)
