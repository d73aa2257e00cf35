"""The application that all commands belong to; in a module of its own, so that they can register with it."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from itrpipe import __version__
from itrpipe.cli.help import Command, Commands
from itrpipe.errors import UsageError


class _App(typer.Typer):
    """Commands whose options stand in groups, and whose paths can be those of files and folders."""

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any) -> Any:
        register = super().command(name, cls=cls or Command, **settings)

        def with_paths(function: Callable[..., None]) -> Callable[..., None]:
            @functools.wraps(function)
            def run(**values: Any) -> None:
                function(**{key: _usable(value) for key, value in values.items()})

            return register(run)

        return with_paths


def _usable(value: Any) -> Any:
    """What an option was given, of a path with the home folder in the place of `~`.

    Raises:
        UsageError: no file and no folder can be at such a path.
    """
    if isinstance(value, list | tuple):
        return type(value)(map(_usable, value))
    if not isinstance(value, Path):
        return value
    path = Path(os.path.expanduser(value))
    try:
        mode = path.stat().st_mode
    except OSError as error:  # what is missing or cannot be read, the commands say with codes of their own
        if error.errno == errno.ELOOP:
            raise UsageError(f"{path}: links lead in a circle; replace one of them") from None
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{path} is a pipe or a device; name a file or a folder")
    return path


app = _App(
    name="itrpipe",
    cls=Commands,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Staged, disk-backed training of image-text retrieval models with better negatives.",
    epilog="The chain: prepare, extract, parse, train, mine-negatives, synthesize, train --method aoq, evaluate, "
    "report. To see all of it: itrpipe demo",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"itrpipe {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        from itrpipe.commands.upkeep import print_where

        print_where(Path(os.environ.get("ITRPIPE_DATA", "data")))
