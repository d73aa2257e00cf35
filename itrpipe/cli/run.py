"""Run a recipe."""

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from itrpipe.cli.asked import whole_file
from itrpipe.cli.launcher import restart_with
from itrpipe.cli.options import DevicesOption, File, PartOption, PlacedOptions, Text, Texts, overrides_of
from itrpipe.config import EVERYWHERE, Override
from itrpipe.datasets.hub import fetch_source


@dataclass(kw_only=True)
class Run(PlacedOptions):
    """Run a recipe, or some of its runs, and compare their scores with the published ones.

    Several jobs on one file system share it with --part 1/3 ... --part 3/3: they run at the same time and wait for each
    other; one of them trains, while the others wait.

    Example: itrpipe run demo
    """

    recipe: Annotated[str, Argument(help="Name in stages/recipes/ or path of a recipe.")]
    source: Annotated[File, Option(help="Folder or table of the dataset, or hf:OWNER/NAME.")] = None
    vision: Annotated[Text, Option(metavar="ID|FOLDER", help="Vision encoder, in the place of the recipe's.")] = None
    text: Annotated[Text, Option(metavar="ID|FOLDER", help="Text encoder, likewise.")] = None
    only: Annotated[Texts, Option(metavar="NAME|[METHOD][.BACKBONE]", help="Only these runs; repeatable.")] = None
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
        named = {"vision": self.vision, "text": self.text}
        options = Options(
            source=fetch_source(self.source) if self.source else None,
            encoders={side: whole_file(encoder) for side, encoder in named.items() if encoder},
            overrides=overrides,
            only=self.only or (),
            tiny=self.tiny,
            keep_going=self.keep_going,
            dry_run=self.dry_run,
        )
        run_recipe(self.data, self.recipe, options)
