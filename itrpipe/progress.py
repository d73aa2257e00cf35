"""Progress of long jobs: a live bar on a terminal, plain lines elsewhere.

Both show how much is done, the rate, the time left and the memory in use.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from itrpipe.printable import printable, printable_json, printable_lines

PLAIN_INTERVAL_SECONDS = 15.0


class SafeConsole(Console):
    """A console whose texts cannot control the terminal: only its own styles and control sequences do.

    Args:
        stderr: print to standard error.
        file: print to this; None for a standard stream.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(highlight=False, emoji=False, soft_wrap=True, stderr=stderr, file=file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments that are printed, control characters of texts written out; see `printable_lines`."""
        for segment in super().render(renderable, options):
            if not segment.control:
                segment = segment._replace(text=printable_lines(segment.text))
            yield segment


@dataclass(eq=False)
class Reporter:
    """Prints messages and progress; one per process.

    Args:
        console: where to print; standard output by default.

    Attributes:
        warnings: that were shown.
    """

    console: Console = field(default_factory=SafeConsole)
    warnings: set[str] = field(default_factory=set)

    def say(self, message: str, style: str | None = None) -> None:
        """Print one line, whatever the names and captions in it hold; square brackets are printed as they are."""
        self.say_lines(printable(message), style)

    def say_lines(self, text: str, style: str | None = None) -> None:
        """Print several lines, whose line breaks are our own, as `say` does."""
        self.console.print(text, style=style, markup=False)

    def say_json(self, value: Any) -> None:
        """Print an object as JSON."""
        self.say_lines(printable_json(value))

    @contextmanager
    def task(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Task]:
        """Show the progress of a job.

        Args:
            name: of the job.
            total: number of units in all; if 0, nothing is shown.
            unit: name of the counted things, in the plural.
            done: units that an earlier, interrupted run finished.
        """
        task = Task(self, name, total, unit, done)
        if not self.console.is_terminal:
            yield task
            task.print_line()
            return
        columns = (
            TextColumn("  {task.description:<28}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[rate]}", markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=self.console) as bar:
            bar.add_task(name, total=total, completed=done, visible=total > 0, note="", unit=unit, rate="")
            task.bar = bar
            yield task


@dataclass
class Task:
    """A running job: a bar of rich on a terminal, elsewhere a line now and then, for logs of batch jobs.

    Args:
        reporter: prints the lines.
        name, total, unit, done: see `Reporter.task`.

    Attributes:
        bar: of rich, which has this task alone; None if lines are printed.
    """

    reporter: Reporter
    name: str
    total: int
    unit: str
    done: int
    bar: Progress | None = None
    _count: int = 0
    _rate: float = 0.0
    _note: str = ""
    _printed: int = -1
    _start: float = field(default_factory=time.monotonic)
    _last: float = field(default_factory=time.monotonic)

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more units as done and show `note` (a loss, a file name)."""
        self.done += count
        self._count += count
        self._rate = self._count / max(1e-9, time.monotonic() - self._start)
        self._note = note or self._note
        if self.bar is not None:
            rate = f"{_per_second(self._rate)} {memory_gib():.1f} GiB"
            self.bar.update(self.bar.task_ids[0], advance=count, note=printable(note), rate=rate)
        elif time.monotonic() - self._last >= PLAIN_INTERVAL_SECONDS:
            self.print_line()

    def print_line(self) -> None:
        """Print the progress, unless it was printed already, or there is nothing to do."""
        if not self.total or self.done == self._printed:
            return
        self._last = time.monotonic()
        self._printed = self.done
        facts = [_per_second(self._rate), f"{memory_gib():.1f} GiB"]
        if self._rate and self.done < self.total:
            facts.insert(1, f"{(self.total - self.done) / self._rate:,.0f} s left")
        if self._note:
            facts.append(self._note)
        self.reporter.say(f"  {self.name}: {self.done:,}/{self.total:,} {self.unit} ({', '.join(facts)})")


PEAK_MEMORY = "peak_gib"
"""Metric of every artifact: `memory_gib` of the process that made it."""
_largest_worker = 0.0


def memory_gib() -> float:
    """Return the largest resident memory of this process so far, or of one of its workers, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    units_of_gib = 2**30 if sys.platform == "darwin" else 2**20  # macOS counts bytes, Linux KiB
    return max(_largest_worker, peak / units_of_gib)


def note_memory(gib: float) -> None:
    """Count the memory of a worker in `memory_gib`."""
    global _largest_worker
    _largest_worker = max(_largest_worker, gib)


def _per_second(rate: float) -> str:
    if rate >= 10:
        return f"{rate:,.0f}/s"
    return f"{rate:.2g}/s"
