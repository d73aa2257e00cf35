"""Progress of long jobs: a live bar on a terminal, plain lines elsewhere.

Both show how much is done, the rate, the time left and the memory in use.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from itrpipe.printable import printable, printable_json, printable_lines

PLAIN_INTERVAL_SECONDS = 15.0


class Task(Protocol):
    """Handle of one running job."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """Counts `count` more units as done and shows `note` (a loss, a file name)."""
        ...


class SafeConsole(Console):
    """A console whose texts cannot steer the terminal: only its own styles and its own control sequences do.

    Args:
        stderr: print to standard error.
        file: print to this; None for a standard stream.
    """

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(highlight=False, emoji=False, soft_wrap=True, stderr=stderr, file=file)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of whatever is printed, with what steers a terminal written out; see `printable_lines`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


class Reporter:
    """Prints messages and progress; one per process.

    Args:
        console: where to print; standard output by default.

    Attributes:
        warnings: that were shown.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or SafeConsole()
        self.warnings: set[str] = set()

    def say(self, message: str, style: str | None = None) -> None:
        """Prints one line, whatever the names and captions in it hold; square brackets are printed as they are."""
        self.say_lines(printable(message), style)

    def say_lines(self, text: str, style: str | None = None) -> None:
        """Prints lines of ours, as `say` does."""
        self.console.print(text, style=style, markup=False)

    def say_json(self, value: Any) -> None:
        """Prints an object as JSON."""
        self.say_lines(printable_json(value))

    @contextmanager
    def task(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Task]:
        """Shows the progress of a job.

        Args:
            name: what is being done.
            total: number of units in all; of none nothing is shown.
            unit: what is counted, in the plural.
            done: units that an earlier, interrupted run finished.
        """
        if self.console.is_terminal:
            with _live_progress(self.console) as progress:
                identifier = progress.add_task(
                    name, total=total, completed=done, visible=total > 0, note="", unit=unit, rate=""
                )
                yield _LiveTask(progress, identifier, unit)
        else:
            task = _PlainTask(self, name, total, unit, done)
            yield task
            task.close()


PEAK_MEMORY = "peak_gib"
"""Metric of every artifact: `memory_gib` of the process that made it."""
_largest_worker = 0.0


def memory_gib() -> float:
    """Largest resident memory of this process so far, or of one of its workers, in GiB."""
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(_largest_worker, kibibytes / (2**30 if sys.platform == "darwin" else 2**20))


def note_memory(gib: float) -> None:
    """Lets the memory of a worker count."""
    global _largest_worker
    _largest_worker = max(_largest_worker, gib)


def _live_progress(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description:<28}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]} {task.fields[rate]}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=False,
    )


class _LiveTask:
    """Advances a bar of rich."""

    def __init__(self, progress: Progress, identifier, unit: str) -> None:
        self._progress, self._identifier, self._unit = progress, identifier, unit
        self._meter = _Rate()

    def advance(self, count: int = 1, note: str = "") -> None:
        rate = f"{_per_second(self._meter.update(count))} {memory_gib():.1f} GiB"
        self._progress.update(self._identifier, advance=count, note=printable(note), rate=rate)


class _PlainTask:
    """Prints a line now and then, for logs of batch jobs."""

    def __init__(self, reporter: Reporter, name: str, total: int, unit: str, done: int) -> None:
        self._reporter, self._name, self._total, self._unit, self._done = reporter, name, total, unit, done
        self._meter = _Rate()
        self._last = time.monotonic()
        self._note = ""
        self._printed = -1

    def advance(self, count: int = 1, note: str = "") -> None:
        self._done += count
        self._meter.update(count)
        self._note = note or self._note
        if self._total and time.monotonic() - self._last >= PLAIN_INTERVAL_SECONDS:
            self._print()

    def close(self) -> None:
        if self._total and self._done != self._printed:
            self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        self._printed = self._done
        rate = self._meter.rate
        left = f", {(self._total - self._done) / rate:,.0f} s left" if rate and self._done < self._total else ""
        note = f", {self._note}" if self._note else ""
        self._reporter.say(
            f"  {self._name}: {self._done:,}/{self._total:,} {self._unit} ({_per_second(rate)}{left}, "
            f"{memory_gib():.1f} GiB{note})"
        )


def _per_second(rate: float) -> str:
    """A rate with as many digits as tell slow jobs apart."""
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


class _Rate:
    """Units per second since the first call."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._count = 0
        self.rate = 0.0

    def update(self, count: int) -> float:
        self._count += count
        elapsed = time.monotonic() - self._start
        self.rate = self._count / elapsed if elapsed > 0 else 0.0
        return self.rate
