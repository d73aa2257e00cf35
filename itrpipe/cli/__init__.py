"""The command line. Thin: it turns options into a plan and runs it; nothing heavy is imported before that.

Commands stand in the order in which their modules are imported here.
"""

from __future__ import annotations

import os
import signal
import sys

import typer

from itrpipe.cli import datasets, models, results, upkeep
from itrpipe.cli.app import app
from itrpipe.errors import ItrpipeError

__all__ = ["app", "datasets", "main", "models", "results", "upkeep"]

INTERRUPTED = 130


def main() -> None:
    """Entry point: runs a command and turns a user's error into one line and an exit code."""
    # Read when torch is loaded. OpenMP threads that spin for long between two small operations stand still on a
    # machine with other work (a hundred times slower was measured); threads that do not spin at all lose a third.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except ItrpipeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as leaving:
        # Typer turns an interrupt into this exit code and says nothing.
        if leaving.code == INTERRUPTED:
            typer.echo("interrupted; the same command goes on where it stopped", err=True)
        raise


def _interrupt(number: int, frame: object) -> None:
    """A batch system's SIGTERM ends a run like Ctrl-C."""
    raise KeyboardInterrupt
