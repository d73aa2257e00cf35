"""The command line. Thin: it turns options into a plan and runs it; nothing heavy is imported before that.

Commands stand in the order in which their modules are imported here.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn

import typer

from itrpipe.cli import datasets, models, photographs, results, upkeep
from itrpipe.cli.app import app
from itrpipe.cli.failures import known_failure
from itrpipe.cli.launcher import run_together
from itrpipe.errors import BROKEN_PIPE, ItrpipeError, MissingSourceError
from itrpipe.printable import printable, printable_lines

__all__ = ["app", "datasets", "main", "models", "photographs", "results", "upkeep"]

INTERRUPTED = 130


def main() -> None:
    """Entry point: runs a command and turns a user's error into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every letter
    os.environ.setdefault("GOMP_SPINCOUNT", spin_count())  # read when torch is loaded
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run_together(app)
    except ItrpipeError as error:
        _end(error)
    except (SystemExit, KeyboardInterrupt) as leaving:
        # Typer turns an interrupt into this exit code and says nothing.
        code = leaving.code if isinstance(leaving, SystemExit) else INTERRUPTED
        if code == INTERRUPTED:
            typer.echo("interrupted; the same command goes on where it stopped", err=True)
        _flush()
        sys.exit(code)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        known = known_failure(error)
        if known is None:
            raise
        _end(known)


def spin_count() -> str:
    """How often an OpenMP thread looks for work before it sleeps.

    Threads that spin for long between two small operations stand still where the cores have other work, threads
    that hardly spin lose time where they have none. Training VSRN on two cores: 7.3 steps a second with OpenMP's
    own 300,000 turns, 7.1 with 20,000, 5.7 with 2,000; beside one busy process 0.3, 1.4 and 4.0.
    """
    return "20000" if os.getloadavg()[0] < (os.cpu_count() or 1) / 2 else "2000"


def _end(error: ItrpipeError) -> NoReturn:
    """Prints an error in one line, or that of a recipe in several, and leaves with its exit code."""
    shown = printable_lines if isinstance(error, MissingSourceError) else printable
    typer.echo(f"error: {shown(str(error))}", err=True)
    _flush()
    sys.exit(error.exit_code)


def _flush() -> None:
    """Writes what is still to be printed, or forgets it where nobody reads on, as behind `| head`."""
    if sys.stdout is None:  # closed by `>&-`
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try again at its end
        sys.exit(BROKEN_PIPE)


def _interrupt(number: int, frame: object) -> None:
    """A batch system's SIGTERM ends a run like Ctrl-C."""
    raise KeyboardInterrupt
