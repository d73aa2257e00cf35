"""Run a recipe."""

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from itrpipe.cli.launcher import restart_with
from itrpipe.cli.options import DevicesOption, File, PartOption, PlacedOptions, Texts, overrides_of
from itrpipe.config import EVERYWHERE, Override


@dataclass(kw_only=True)
class Run(PlacedOptions):
    """Run a recipe, or some of its runs, and compare their scores with the published ones.

    Several jobs on one file system share it with --part 1/3 ... --part 3/3: they run at the same time and wait for each
    other; one of them trains, while the others wait.

    Example: itrpipe run demo
    """

    recipe: Annotated[str, Argument(help="Name in stages/recipes/ or path of a recipe.")]
    source: Annotated[File, Option(help="Folder of the dataset, where the recipe needs one.")] = None
    only: Annotated[Texts, Option(metavar="[METHOD][.BACKBONE]", help="Only these runs; repeatable.")] = None
    tiny: Annotated[bool, Option("--tiny", help="Toy models on a few hundred images, in the folder DATA-tiny.")] = False
    keep_going: Annotated[bool, Option("--keep-going", help="Go on when a run fails, and fail at the end.")] = False
    part: PartOption = None
    devices: DevicesOption = None

    def run(self) -> None:
        from itrpipe.pipeline.reproduction import Options, run_recipe

        restart_with(self.devices)
        overrides = overrides_of(self.settings, {}) + self.placed
        if self.part:
            overrides.append(Override(EVERYWHERE, "part", self.part))
        options = Options(self.source, overrides, self.only or (), self.tiny, self.keep_going, self.dry_run)
        run_recipe(self.data, self.recipe, options)
