"""Extract or import the features of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer import Option

from itrpipe.cli.asked import run_stage
from itrpipe.cli.datasets import define_features
from itrpipe.cli.help import command, option
from itrpipe.cli.options import (
    PartOption,
    RunOptions,
    Text,
    Texts,
)
from itrpipe.errors import UsageError


@dataclass
class ExtractOptions(RunOptions):
    """What extracts or imports features."""

    strict: bool = option(False, "--strict", "Stop at the first image that cannot be used.")
    ids: Path | None = option(None, "--ids", "arrays: text file of image ids, one a line.")
    device: Text = option(None, "--device", "auto, cpu or cuda.")
    part: PartOption = None


@command(lists=["extractors"])
def extract(
    given: ExtractOptions,
    features: Text = Option(None, "--features", "-f", help="Extractor or importer, several as A+B, or features' name."),
    source: Path | None = Option(None, "--from", help="Import these files instead of extracting."),
    name: Text = Option(None, "--name", help="Name of the features, for several versions side by side."),
    arrays: Texts = Option(None, "--map", metavar="NAME=ARRAY", help="arrays: dataset=array in the file."),
) -> None:
    """Write visual features of every image as features.h5.

    An extractor computes them from the images; several, joined as in frcnn+resnet, fill one file. An importer reads
    files that others have made: --from recognises it, --features names it.

    In a job array: --part 1/8 ... --part 8/8 on one file system; the job that makes the last part joins them all.
    Images that cannot be used are left out, listed in manifest.json, and make the exit code 7.

    Example: itrpipe extract --dataset flickr30k --from /data/f30k_precomp
    """
    overrides = given.overrides(**_mapping(arrays or []))
    definition, known, overrides = define_features(*given.where, features, source, name, overrides)
    run_stage(*given.where, "extract", overrides, conf=known, definition=definition, **given.how)


def _mapping(assignments: list[str]) -> dict[str, Any]:
    """Arrays by the dataset that they become, as settings."""
    given: dict[str, Any] = {}
    for text in assignments:
        dataset, equals, array = text.partition("=")
        if not (dataset and equals):
            raise UsageError(f"--map {text!r} is not of the form NAME=ARRAY, such as regions=features")
        if given.setdefault(f"map.{dataset}", array) != array:
            raise UsageError(f"--map gives {dataset} twice; name one array")
    return given
