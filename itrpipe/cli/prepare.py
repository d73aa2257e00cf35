"""Prepare a dataset: captions, pictures, splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from typer import Option

from itrpipe.cli.asked import run_stage
from itrpipe.cli.datasets import define_dataset
from itrpipe.cli.help import command, option
from itrpipe.cli.options import (
    Number,
    PartOption,
    RunOptions,
    Text,
)


@dataclass
class PrepareOptions(RunOptions):
    """What prepares a dataset."""

    format: Text = option(None, "--format", "Format of the captions, if it is not recognised.")
    train: Number = option(None, "--train", "scenes: training images.")
    val: Number = option(None, "--val", "scenes: validation images.")
    test: Number = option(None, "--test", "scenes: test images.")
    seed: Number = option(None, "--seed", "scenes: seed.")
    part: PartOption = None


@command()
def prepare(
    given: PrepareOptions,
    source: Path | None = Option(None, "--source", help="Caption file or folder of the dataset."),
    strict: bool = Option(False, "--strict", help="Refuse a dataset with images that cannot be used."),
) -> None:
    """Read captions, check images.

    Images that are missing or do not decode are left out with their captions, listed, and make the exit code 7.

    Example: itrpipe prepare --dataset flickr30k --source /data/flickr30k
    """
    overrides = given.overrides(**{"bad_images": "refuse"} if strict else {})
    definition, overrides = define_dataset(*given.where, source, overrides)
    run_stage(*given.where, "prepare", overrides, definition=definition, **given.how)
