"""Remove artifacts that nothing needs."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Option

from itrpipe.cli.help import command
from itrpipe.cli.named import forget_model
from itrpipe.cli.options import (
    DataOption,
    Text,
)
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.pipeline.folders import collect_garbage


@command()
def gc(
    dataset: Text = Option(None, "--dataset", "-d", envvar="ITRPIPE_DATASET", help="Name; default: scenes."),
    damaged: bool = Option(False, "--damaged", help="Remove damaged artifacts only."),
    verify: bool = Option(False, "--verify", help="Find damage by content hashes too."),
    superseded: bool = Option(False, "--superseded", help="Also evaluated models that have newer settings."),
    forget: Text = Option(None, "--forget", metavar="NAME", help="Forget a model's name, and remove nothing."),
    yes: bool = Option(False, "--yes", "-y", help="Do not ask."),
    data: DataOption = Path("data"),
) -> None:
    """Remove interrupted, damaged and unused artifacts after asking; evaluated models stay.

    \b
    unused      a newer artifact of the same run is there, and nothing that stays was made from this one
    superseded  evaluated, or made for an evaluation, with other settings than the newest of the run; these go
                with --superseded only

    Example: itrpipe gc --dataset scenes
    """
    if forget is not None:
        typer.echo(f"{forget_model(data, dataset, forget)}: {forget} is forgotten; what was trained stays")
        return
    ask = None if yes else typer.confirm
    collect_garbage(data, dataset or EMBEDDED, damaged_only=damaged, verify=verify, superseded_too=superseded, ask=ask)
