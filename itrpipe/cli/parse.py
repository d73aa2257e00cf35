"""Parse the captions of a dataset into scene graphs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.options import File, PartOption, RunOptions, Text
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.pipeline.planning import Planner
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need


@dataclass
class Parse(RunOptions):
    """Write the scene graph of every caption.

    Rules make it, with a tagger of English words. --from imports graphs of FACTUAL, SPICE or another parser.

    Example: itrpipe parse --show "A dog in a red sweater jumps over two logs"
    """

    tagger: Annotated[Text, Option(help="hanta or lexicon.")] = None
    file: Annotated[File, Option("--from", help="Import this file of graphs instead.")] = None
    part: PartOption = None
    show: Annotated[Text, Option(metavar="CAPTION", help="Print the graph of one caption and end.")] = None

    def run(self) -> Path | None:
        overrides = self.overrides("tagger", "file", "part")
        if self.show is None:
            return self.run_stage("parse", overrides)
        from itrpipe.stages.parse import print_graph

        settings, _, _ = Planner(self.data, EMBEDDED, overrides).configure(Need("parse", "rules"))
        print_graph(settings, self.show, Reporter())
        return None
