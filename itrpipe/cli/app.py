"""The application that all commands belong to; in a module of its own, so that they can register with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from itrpipe import __version__
from itrpipe.cli.help import Command, Commands


class _App(typer.Typer):
    """Commands whose options stand in groups."""

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any) -> Any:
        return super().command(name, cls=cls or Command, **settings)


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
        from itrpipe.commands.where import print_where

        print_where(Path(os.environ.get("ITRPIPE_DATA", "data")))
