"""The application that all commands belong to; in a module of its own, so that they can register with it."""

from __future__ import annotations

from typing import Annotated

import typer

from itrpipe import __version__

app = typer.Typer(
    name="itrpipe",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Staged, disk-backed training of image-text retrieval models with better negatives.",
    epilog="The chain: prepare, extract, parse, train, mine-negatives, synthesize, train --method aoq, evaluate, "
    "report. To see all of it: itrpipe run demo",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"itrpipe {__version__}")
        raise typer.Exit
