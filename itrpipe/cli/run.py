"""Run a recipe."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from itrpipe.cli.help import command
from itrpipe.cli.launcher import restart_with
from itrpipe.cli.options import (
    DevicesOption,
    PartOption,
    PlacedOptions,
    Texts,
    overrides_of,
)
from itrpipe.pipeline.planning import EVERYWHERE, Override


@command()
def run(
    given: PlacedOptions,
    recipe: str = Argument(help="Name in stages/recipes/ or path of a recipe."),
    source: Path | None = Option(None, "--source", help="Folder of the dataset, where the recipe needs one."),
    only: Texts = Option(None, "--only", metavar="[METHOD][.BACKBONE]", help="Only these runs; repeatable."),
    tiny: bool = Option(False, "--tiny", help="Toy models on a few hundred images, in the folder DATA-tiny."),
    keep_going: bool = Option(False, "--keep-going", help="Go on when a run fails, and fail at the end."),
    part: PartOption = None,
    devices: DevicesOption = None,
) -> None:
    """Run a recipe, or some of its runs, and compare their scores with the published ones.

    Several jobs on one file system share it with --part 1/3 ... --part 3/3: they run at the same time and wait for each
    other; one of them trains, while the others wait.

    Example: itrpipe run demo
    """
    from itrpipe.pipeline.reproduction import Options, run_recipe

    restart_with(devices)
    overrides = overrides_of(given.settings, {}) + given.placed + ([Override(EVERYWHERE, "part", part)] if part else [])
    run_recipe(given.data, recipe, Options(source, overrides, only or (), tiny, keep_going, given.dry_run))
