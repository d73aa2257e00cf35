"""Synthesize negative sentences."""

from __future__ import annotations

from dataclasses import dataclass

from typer import Option

from itrpipe.cli.asked import run_stage
from itrpipe.cli.help import command, option
from itrpipe.cli.options import (
    LanguageModelOption,
    PartOption,
    Split,
    Text,
    TrainedOptions,
)


@dataclass
class SynthesizeOptions(TrainedOptions):
    """What writes sentences."""

    method: Text = option(None, "--method", "-m", "Configuration that trains the writing model; default: pretrain.")
    backbone: Text = option(None, "--backbone", "-b", "Model: uniter, uniter-large.")
    split: Split | None = option(None, "--split", "Whose captions: train, val or test.")
    language_model: LanguageModelOption = None
    part: PartOption = None


@command()
def synthesize(
    given: SynthesizeOptions, by: str = Option("phrases", "--by", help="See above.", metavar="MAKER")
) -> None:
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
    run_stage(*given.where, "synthesize", given.overrides(), conf=by, **given.how)
