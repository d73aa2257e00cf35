"""Synthesize negative sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.options import LanguageModelOption, PartOption, Split, Text, TrainedOptions


@dataclass
class Synthesize(TrainedOptions):
    """Write negative sentences for every caption of a split.

    \b
    Makers (--by):
      phrases      masks objects, attributes and relations; a UNITER that sees the image writes others (TAGS-DC)
      words        the same with single words masked
      vse-c        replaces nouns, numerals and relations by rules; needs no model
      graph-edits  changes one detail, so that only the image shows which is true; needs no model

    The split is the training split unless --split names another. Sentences that may be true of the image are dropped;
    of the others the hardest are kept (--set keep=).

    Example: itrpipe synthesize --dataset scenes
    """

    method: Annotated[
        Text, Option("--method", "-m", help="Configuration that trains the writing model; default: pretrain.")
    ] = None
    backbone: Annotated[Text, Option("--backbone", "-b", help="Model: uniter, uniter-large.")] = None
    split: Annotated[Split | None, Option(help="Whose captions: train, val or test.")] = None
    language_model: LanguageModelOption = None
    part: PartOption = None
    by: Annotated[str, Option(help="See above.", metavar="MAKER")] = "phrases"

    def run(self) -> Path:
        overrides = self.overrides("method", "backbone", "split", "language_model", "part")
        return self.run_stage("synthesize", overrides, conf=self.by)
