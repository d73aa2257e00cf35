"""Remove artifacts that nothing needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.options import DataOption, Text
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.pipeline.folders import collect_garbage
from itrpipe.pipeline.models import forget_model


@dataclass
class Gc(BaseCommand):
    """Remove interrupted, damaged and unused artifacts after asking; evaluated models stay.

    \b
    unused      a newer artifact of the same run is there, and nothing that stays was made from this one
    superseded  evaluated, or made for an evaluation, with other settings than the newest of the run; these go
                with --superseded only

    Example: itrpipe gc --dataset scenes
    """

    dataset: Annotated[Text, Option("--dataset", "-d", envvar="ITRPIPE_DATASET", help="Name; default: scenes.")] = None
    damaged: Annotated[bool, Option("--damaged", help="Remove damaged artifacts only.")] = False
    verify: Annotated[bool, Option("--verify", help="Find damage by content hashes too.")] = False
    superseded: Annotated[bool, Option("--superseded", help="Also evaluated models that have newer settings.")] = False
    forget: Annotated[Text, Option(metavar="NAME", help="Forget a model's name, and remove nothing.")] = None
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False
    data: DataOption = Path("data")

    def run(self) -> None:
        if self.forget is not None:
            dataset = forget_model(self.data, self.dataset, self.forget)
            typer.echo(f"{dataset}: {self.forget} is forgotten; what was trained stays")
            return
        collect_garbage(
            self.data,
            self.dataset or EMBEDDED,
            damaged_only=self.damaged,
            verify=self.verify,
            superseded_too=self.superseded,
            ask=None if self.yes else typer.confirm,
        )
