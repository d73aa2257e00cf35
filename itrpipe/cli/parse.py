"""Parse the captions of a dataset into scene graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from typer import Option

from itrpipe.cli.asked import run_stage
from itrpipe.cli.help import command, option
from itrpipe.cli.options import (
    PartOption,
    RunOptions,
    Text,
)
from itrpipe.datasets.definition import EMBEDDED
from itrpipe.pipeline.planning import Planner
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need


@dataclass
class ParseOptions(RunOptions):
    """What parses captions."""

    tagger: Text = option(None, "--tagger", "hanta or lexicon.")
    file: Path | None = option(None, "--from", "Import this file of graphs instead.")
    format: Text = option(None, "--format", "Format of that file, if it is not recognised.")
    part: PartOption = None


@command()
def parse(
    given: ParseOptions,
    show: Text = Option(None, "--show", metavar="CAPTION", help="Print the graph of one caption and end."),
) -> None:
    """Write the scene graph of every caption.

    Rules make it, with a tagger of English words. --from imports graphs of FACTUAL, SPICE or another parser.

    Example: itrpipe parse --show "A dog in a red sweater jumps over two logs"
    """
    if show is None:
        run_stage(*given.where, "parse", given.overrides(), **given.how)
        return
    from itrpipe.stages.parse import print_graph

    settings, _, _ = Planner(given.data, EMBEDDED, given.overrides()).configure_checked(Need("parse", "rules"))
    print_graph(settings, show, Reporter())
