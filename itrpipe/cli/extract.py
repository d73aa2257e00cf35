"""Extract or import the features of a dataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.datasets import define_features
from itrpipe.cli.options import DeviceOption, File, PartOption, RunOptions, Text, Texts
from itrpipe.errors import UsageError


@dataclass
class Extract(RunOptions):
    """Write visual features of every image as features.h5.

    An extractor computes them from the images; several, joined as in frcnn+resnet, fill one file. An importer reads
    files that others have made: --from recognises it, --features names it.

    In a job array: --part 1/8 ... --part 8/8 on one file system; the job that makes the last part joins them all.
    Images that cannot be used are left out, listed in manifest.json, and make the exit code 7.

    Example: itrpipe extract --dataset flickr30k --from /data/f30k_precomp
    """

    strict: Annotated[bool, Option("--strict", help="Stop at the first image that cannot be used.")] = False
    ids: Annotated[File, Option(help="arrays: text file of image ids, one a line.")] = None
    device: DeviceOption = None
    part: PartOption = None
    features: Annotated[
        Text, Option("--features", "-f", help="Extractor or importer, several as A+B, or features' name.")
    ] = None
    source: Annotated[File, Option("--from", help="Import these files instead of extracting.")] = None
    name: Annotated[Text, Option(help="Name of the features, for several versions side by side.")] = None
    arrays: Annotated[Texts, Option("--map", metavar="NAME=ARRAY", help="arrays: dataset=array in the file.")] = None

    def run(self) -> Path:
        arrays: dict[str, str] = {}
        for text in self.arrays or ():
            dataset, equals, array = text.partition("=")
            if not (dataset and equals):
                raise UsageError(f"--map {text!r} is not of the form NAME=ARRAY, such as regions=features")
            if arrays.setdefault(f"map.{dataset}", array) != array:
                raise UsageError(f"--map gives {dataset} twice; name one array")
        overrides = self.overrides("strict", "ids", "device", "part", **arrays)
        definition, conf, overrides = define_features(*self.where, self.features, self.source, self.name, overrides)
        return self.run_stage("extract", overrides, conf=conf, definition=definition)
