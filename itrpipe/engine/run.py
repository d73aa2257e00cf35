"""Makes the parts of a map that are not there yet, on the engine that the settings name. Light: plans read it."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import Field, field_validator

from itrpipe.config import Settings
from itrpipe.engine.work import Crew, Maker, Part, Work
from itrpipe.errors import DataError, ItrpipeError, UnavailableError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, note_memory
from itrpipe.storage.artifact import DIVISION
from itrpipe.storage.disk import TEMPORARY, make_folder, read_stamped_json, write_stamped_json

MOST_DEATHS = 3
"""Workers that a part may kill before it is given up."""
PATIENCE = 30.0
"""Seconds without a worker after which the user is told."""
_SHARE = re.compile(r"([1-9]\d*)/([1-9]\d*)")
AnySettings = TypeVar("AnySettings", bound=Settings)
AnyPart = TypeVar("AnyPart")


@dataclass(frozen=True)
class Share:
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

    @property
    def name(self) -> str:
        """As part of a file name."""
        return f"{self.number}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, parts: Sequence[AnyPart]) -> list[AnyPart]:
        """Every n-th part."""
        return list(parts[self.number - 1 :: self.count])


class MapExecution(Settings):
    """Where a stage makes the parts of its maps; every choice gives the same bytes.

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
        return str(Share.parse(value)) if value else ""


def share_of(execution: Settings) -> Share | None:
    """The share of its parts that a step makes; None where it makes all of them."""
    part = getattr(execution, "part", "")
    return Share.parse(part) if part else None


def whole(execution: AnySettings) -> AnySettings:
    """The same settings of a job that makes all parts."""
    return execution.model_copy(update={"part": ""}) if share_of(execution) else execution


class OthersMissing(Exception):  # noqa: N818 - no error: this job is done
    """This job has made its share of a map, and what follows needs the shares of other jobs.

    Attributes:
        share: that is made.
        rows: units of the map in this share.
        unit: what these are, in the plural.
        paths: files of all parts of the map.
        more: whether another map follows, which jobs can share again.
    """

    def __init__(self, share: Share, rows: int, unit: str, paths: Sequence[Path], more: bool) -> None:
        super().__init__(str(share))
        self.share, self.rows, self.unit, self.paths, self.more = share, rows, unit, list(paths), more

    def missing(self) -> int:
        """Parts that nobody has made yet."""
        return sum(not path.exists() for path in self.paths)


class Made(NamedTuple):
    """What became of a map.

    Attributes:
        paths: files of all parts, in their order; each was made in this run or compared with its checksum.
        rows: units that this run made.
        seconds: that it took.
    """

    paths: list[Path]
    rows: int
    seconds: float


def make_parts(
    work: Work,
    folder: Path,
    execution: MapExecution,
    reporter: Reporter,
    warn: Callable[[str], None],
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
    _require_same_division(work, folder, remove=share is None, say=reporter.say)
    every = [(part, folder / f"{part.name}{work.suffix}") for part in work.parts()]
    own = share.of(every) if share else every
    total = sum(part.rows for part, _ in own)
    _remove_leftovers(folder, own)
    todo = _todo(work, own, reporter, warn)
    rows, started = 0, time.monotonic()
    if todo or not own:
        try:
            with (
                reporter.task(work.title, total, work.unit, total - sum(part.rows for part, _ in todo)) as task,
                closing(_made(work, todo, execution, reporter)) as made,
            ):
                for part, workers in made:
                    rows += part.rows
                    task.advance(part.rows, f"{workers} workers" if workers > 1 else "")
        finally:
            _remove_leftovers(folder, own)  # of workers that were ended or died
    paths = [path for _, path in every]
    if share is not None:
        raise OthersMissing(share, total, work.unit, paths, more)
    return Made(paths, rows, time.monotonic() - started)


def _require_same_division(work: Work, folder: Path, *, remove: bool, say: Callable[[str], Any]) -> None:
    """Removes parts of another division, which this work cannot use; a record beside them says what they depend on.

    Raises:
        DataError: there are such parts and others may be at work on them, or the record of the division is damaged.
    """
    path, wanted = folder / DIVISION, {"key": work.key}
    if path.exists():
        if read_stamped_json(path, f"remove {folder} and run the same command again") == wanted:
            return
        if not remove:
            raise DataError(
                f"{folder} holds parts of another division; give every part the same settings, or remove that folder"
            )
        say(f"  {work.title}: parts of another division are removed")
        for other in folder.iterdir():  # before the record, without which they would count as parts of this division
            if other != path:
                other.unlink()
    write_stamped_json(path, wanted)


def _remove_leftovers(folder: Path, parts: Iterable[tuple[Part, Path]]) -> None:
    """Removes what workers that were killed have begun to write: nobody else makes these parts."""
    own = tuple(f".{path.name}." for _, path in parts)
    for path in folder.glob(f".*{TEMPORARY}"):
        if path.name.startswith(own):
            path.unlink(missing_ok=True)


def _todo(
    work: Work, parts: Sequence[tuple[Part, Path]], reporter: Reporter, warn: Callable[[str], None]
) -> list[tuple[Part, Path]]:
    """The parts that no earlier run made, and those that were damaged since."""
    found = [path for _, path in parts if path.exists()]
    kept, damaged = set(), 0
    if found:
        with reporter.task("checking what is done", len(found), "parts") as task:
            for path in found:
                try:
                    if work.keeps(path):
                        kept.add(path)
                except DataError:
                    damaged += 1
                task.advance()
    if damaged:
        warn(f"{damaged:,} of {len(found):,} parts in {found[0].parent} were damaged; they are made again")
    return [(part, path) for part, path in parts if path not in kept]


def _made(
    work: Work, todo: Sequence[tuple[Part, Path]], execution: MapExecution, reporter: Reporter
) -> Generator[tuple[Part, int], None, None]:
    """Yields the parts as they are made, and how many make them; when it is closed, no maker is left.

    Raises:
        ItrpipeError: some killed their makers.
    """
    if execution.engine == "ray":
        from itrpipe.engine import ray

        opened = ray.crew(work, execution.workers, execution.address)
    else:
        from itrpipe.engine import local

        opened = local.crew(work, execution.workers, len(todo))
    with opened as crew:
        failed = yield from _AtWork(crew, todo, reporter).made()
    if failed:
        raise ItrpipeError(
            f"{work.title}: {quantity(len(failed), 'part')} ({', '.join(failed[:3])}) killed a worker {MOST_DEATHS} "
            "times, perhaps for lack of memory; all others are made. Run the same command again, it goes on where it "
            "stopped, with fewer --workers"
        )


class _AtWork:
    """A crew that makes parts.

    A part that was there when its maker died is made again, alone: of those that were there together, only one may be
    the cause. One that kills again and again is given up.

    Args:
        crew: makes them.
        todo: parts and their files.
        reporter: is told of deaths.
    """

    def __init__(self, crew: Crew, todo: Sequence[tuple[Part, Path]], reporter: Reporter) -> None:
        self._crew, self._reporter = crew, reporter
        self._waiting = deque(todo)
        self._makers: dict[int, Maker] = {}
        self._deaths: Counter[str] = Counter()
        self._stillborn, self._reason = 0, ""
        self._failed: list[str] = []

    def made(self) -> Generator[tuple[Part, int], None, list[str]]:
        """Yields the parts as they are made, and how many makers there are, of whom none is left in the end.

        Returns:
            Names of the parts that were given up.

        Raises:
            UnavailableError: nobody begins.
            Exception: a maker said so.
        """
        try:
            while self._waiting or any(each.parts for each in self._makers.values()):
                for number in range(min(self._crew.count, len(self._waiting))):
                    if number not in self._makers and self._stillborn < MOST_DEATHS + self._crew.count:
                        self._makers[number] = self._crew.begin(number)
                if not self._makers:
                    raise UnavailableError(f"no worker begins ({self._reason}); {self._crew.remedy}")
                answers = [answer for each in self._makers.values() for answer in each.parts]
                awaited = answers + [each.begun for each in self._makers.values() if not each.begun.done()]
                if awaited and not wait(awaited, PATIENCE, FIRST_COMPLETED).done and not answers:
                    self._reporter.say("  no worker is there yet; waiting for one", style="yellow")
                for number, each in list(self._makers.items()):
                    yield from self._read(number, each)
                for each in self._makers.values():
                    while self._takes(each):
                        given = self._waiting.popleft()
                        each.parts[each.send(*given)] = given
            return self._failed
        finally:
            for each in self._makers.values():
                each.end()

    def _takes(self, maker: Maker) -> bool:
        """Whether a maker gets the next part."""
        if not (maker.begun.done() and self._waiting and len(maker.parts) < self._crew.room):
            return False
        return not maker.parts or not any(
            self._deaths[part.name] for part, _ in (*maker.parts.values(), self._waiting[0])
        )

    def _read(self, number: int, maker: Maker) -> Iterator[tuple[Part, int]]:
        """Yields the parts that a maker has made since; takes its parts back if it has died."""
        for answer in [each for each in (maker.begun, *maker.parts) if each.done()]:
            try:
                error, memory = answer.result()
            except maker.died as death:
                self._bury(number, death)
                return
            if error is not None:
                raise error
            if answer in maker.parts:
                note_memory(memory)
                yield maker.parts.pop(answer)[0], len(self._makers)

    def _bury(self, number: int, death: BaseException) -> None:
        """Takes back the parts of a maker that has died."""
        dead = self._makers.pop(number)
        dead.end()
        self._stillborn += not dead.parts
        self._reason = [type(death).__name__, *str(death).strip().splitlines()][-1]
        for part, path in dead.parts.values():
            self._deaths[part.name] += 1
            if self._deaths[part.name] < MOST_DEATHS:
                self._reporter.say(f"  the worker of part {part.name} died; it is made again", style="yellow")
                self._waiting.append((part, path))
            else:
                self._failed.append(part.name)
