"""Makes the parts of a map that are not there yet, on the engine that the settings name."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.engine.execution import MapExecution, share_of
from itrpipe.engine.part import OthersMissing
from itrpipe.engine.queue import MOST_DEATHS, Outcome, Queue
from itrpipe.engine.work import Part, Work
from itrpipe.errors import DataError, ItrpipeError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, note_memory
from itrpipe.storage.artifact import DIVISION
from itrpipe.storage.disk import TEMPORARY, make_folder, read_stamped_json, write_stamped_json


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
    every = list(work.parts())
    paths = {part.name: folder / f"{part.name}{work.suffix}" for part in every}
    own = share.of(every) if share else every
    _remove_leftovers(folder, own, work.suffix)
    kept = _kept(work, [(part, paths[part.name]) for part in own], reporter, warn)
    todo = [(part, paths[part.name]) for part in own if part.name not in kept]
    done, rows, started = sum(part.rows for part in own if part.name in kept), 0, time.monotonic()
    if todo or not own:
        try:
            with (
                reporter.task(work.title, sum(part.rows for part in own), work.unit, done) as task,
                closing(_made(work, Queue(todo), execution, reporter)) as outcomes,
            ):
                for outcome in outcomes:
                    rows += outcome.part.rows
                    note_memory(outcome.memory)
                    task.advance(outcome.part.rows, f"{outcome.workers} workers" if outcome.workers > 1 else "")
        finally:
            _remove_leftovers(folder, own, work.suffix)  # of workers that were ended or died
    if share is not None:
        raise OthersMissing(share, sum(part.rows for part in own), work.unit, list(paths.values()), more)
    return Made(list(paths.values()), rows, time.monotonic() - started)


def _made(work: Work, queue: Queue, execution: MapExecution, reporter: Reporter) -> Generator[Outcome, None, None]:
    """Yields the parts as they are made; when it is closed, no worker is left.

    Raises:
        ItrpipeError: some killed their workers.
    """
    if execution.engine == "ray":
        from itrpipe.engine import ray

        made = ray.made(work, queue, execution, reporter)
    else:
        from itrpipe.engine import local

        made = local.made(work, queue, execution.workers)
    with closing(made):
        for outcome in made:
            if outcome.died:
                reporter.say(f"  the worker of part {outcome.part.name} died; it is made again", style="yellow")
            else:
                yield outcome
    if queue.failed:
        names = ", ".join(part.name for part in queue.failed[:3])
        raise ItrpipeError(
            f"{work.title}: {quantity(len(queue.failed), 'part')} ({names}) killed a worker {MOST_DEATHS} times, "
            "perhaps for lack of memory; all others are made. Run the same command again, it goes on where it stopped, "
            "with fewer --workers"
        )


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


def _remove_leftovers(folder: Path, parts: Iterable[Part], suffix: str) -> None:
    """Removes what workers that were killed have begun to write: nobody else makes these parts."""
    own = {part.name for part in parts}
    for path in folder.glob(f".*{suffix}.*{TEMPORARY}"):
        if path.name[1:].partition(suffix)[0] in own:
            path.unlink(missing_ok=True)


def _kept(work: Work, parts: Sequence[tuple[Part, Path]], reporter: Reporter, warn: Callable[[str], None]) -> set[str]:
    """Names of the parts that earlier runs made; those that were damaged since are made again."""
    found = [(part, path) for part, path in parts if path.exists()]
    kept: set[str] = set()
    damaged = 0
    if found:
        with reporter.task("checking what is done", len(found), "parts") as task:
            for part, path in found:
                try:
                    if work.keeps(path):
                        kept.add(part.name)
                except DataError:
                    damaged += 1
                task.advance()
    if damaged:
        warn(f"{damaged:,} of {len(found):,} parts in {found[0][1].parent} were damaged; they are made again")
    return kept
