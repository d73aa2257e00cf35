"""Run a recipe."""

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from itrpipe.cli.launcher import restart_with
from itrpipe.cli.options import (
    ColumnOption,
    DecisionsOption,
    DevicesOption,
    File,
    Number,
    PartOption,
    PlacedOptions,
    Text,
    Texts,
    named_columns,
    overrides_of,
)
from itrpipe.cli.request import absolute_path
from itrpipe.config import EVERYWHERE, Override
from itrpipe.datasets.hub import fetch_source
from itrpipe.errors import NoCaptionsError
from itrpipe.progress import Reporter


@dataclass(kw_only=True)
class Run(PlacedOptions):
    """Run a recipe, or some of its runs, and compare their scores with the published ones.

    Several jobs on one file system share it with --part 1/3 ... --part 3/3: they run at the same time and wait for each
    other; one of them trains, while the others wait.

    --decisions FILE brings answers of itrpipe serve into mined lists, what is trained with these, and the report.

    Example: itrpipe run demo
    """

    recipe: Annotated[str, Argument(help="Name in stages/recipes/ or path of a recipe.")]
    source: Annotated[File, Option(help="Folder or table of the dataset, or hf:OWNER/NAME.")] = None
    column: ColumnOption = None
    vision: Annotated[Text, Option(metavar="ID|FOLDER", help="Vision encoder, instead of the recipe's.")] = None
    text: Annotated[Text, Option(metavar="ID|FOLDER", help="Text encoder, likewise.")] = None
    only: Annotated[Texts, Option(metavar="NAME|[METHOD][.BACKBONE]", help="Only these runs; repeatable.")] = None
    seeds: Annotated[Number, Option(min=1, help="Train every run with seeds 0 to N - 1.", metavar="N")] = None
    tiny: Annotated[bool, Option("--tiny", help="Toy models on a few hundred images, in the folder DATA-tiny.")] = False
    keep_going: Annotated[bool, Option("--keep-going", help="Go on when a run fails, and fail at the end.")] = False
    decisions: DecisionsOption = None
    part: PartOption = None
    devices: DevicesOption = None

    def run(self) -> None:
        from itrpipe.cli.index import Index
        from itrpipe.datasets.decisions import read_decisions
        from itrpipe.pipeline.recipes import load_recipe
        from itrpipe.pipeline.reproduction import Options, run_recipe

        restart_with(self.devices)
        overrides = overrides_of(self.settings, {}) + self.placed
        if self.part:
            overrides.append(Override(EVERYWHERE, "part", self.part))
        if self.decisions:
            decisions = absolute_path(self.decisions)
            overrides.append(Override("mine_negatives", "decisions", decisions))
            # Others change no evaluation, and none is made again for them.
            if read_decisions(self.decisions.expanduser()).of_evaluation:
                overrides.append(Override("evaluate", "decisions", decisions))
        source = None
        if self.source:
            source = fetch_source(self.source)
        encoders = {}
        if self.vision:
            encoders["vision"] = absolute_path(self.vision)
        if self.text:
            encoders["text"] = absolute_path(self.text)
        options = Options(
            source=source,
            encoders=encoders,
            columns=named_columns(self.column),
            overrides=overrides,
            only=self.only or (),
            seeds=self.seeds,
            tiny=self.tiny,
            keep_going=self.keep_going,
            dry_run=self.dry_run,
        )
        try:
            run_recipe(self.data, self.recipe, options)
        except NoCaptionsError:
            encoders = {**load_recipe(self.recipe).encoders, **encoders}
            if self.source is None or "vision" not in encoders:
                raise
            Reporter().say(
                f"{self.source} has no captions, so it is indexed for search alone; write captions.csv (file, caption) "
                "into it, and the same command trains, mines and reports"
            )
            photographs = Index(photos=self.source, named=encoders["vision"], data=self.data, dry_run=self.dry_run)
            photographs.complete()
            photographs.run()
