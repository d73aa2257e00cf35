"""Prepare a dataset: captions, pictures, splits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from itrpipe.cli.options import ColumnOption, File, Number, PartOption, RunOptions, Text, named_columns
from itrpipe.cli.request import place_of, remembered
from itrpipe.datasets.definition import EMBEDDED, StageDefinition, load_definition
from itrpipe.datasets.hub import fetch_source
from itrpipe.errors import MissingInputError, UsageError


@dataclass
class Prepare(RunOptions):
    """Read captions, check images.

    A source is a table of captions beside its photographs, a folder of Parquet, of an image folder, of `save_to_disk`
    or of WebDataset, one of a published dataset, or `hf:OWNER/NAME[:CONFIG]`, which the library `datasets` fetches.

    Images that are missing or do not decode are left out with their captions, listed, and make the exit code 7.

    Example: itrpipe prepare --dataset flickr30k --source /data/flickr30k
    """

    format: Annotated[Text, Option(help="Format of the captions, if it is not recognised.")] = None
    train: Annotated[Number, Option(help="scenes: training images.")] = None
    val: Annotated[Number, Option(help="scenes: validation images.")] = None
    test: Annotated[Number, Option(help="scenes: test images.")] = None
    seed: Annotated[Number, Option(help="scenes: seed.")] = None
    part: PartOption = None
    column: ColumnOption = None
    source: Annotated[File, Option(help="Table or folder of the dataset, or hf:OWNER/NAME.")] = None
    strict: Annotated[bool, Option("--strict", help="Refuse a dataset with images that cannot be used.")] = False

    def run(self) -> Path:
        bad_images = "refuse" if self.strict else None
        names = "format", "train", "val", "test", "seed", "part"
        overrides = self.overrides(*names, bad_images=bad_images, **named_columns(self.column))
        definition = load_definition(*self.where)
        defined = definition.prepare
        if self.source is not None:
            if self.dataset == EMBEDDED:
                raise UsageError(
                    "the dataset 'scenes' is generated and takes no --source; choose another --dataset name"
                )
            defined = StageDefinition(conf="files", source=place_of("--source", fetch_source(self.source)))
        elif defined is None:
            raise MissingInputError(
                f"dataset {self.dataset!r} is not known yet; give --source with its caption file or folder"
            )
        stage, overrides = remembered("prepare", defined, definition.prepare, overrides)
        return self.run_stage("prepare", overrides, definition=definition.model_copy(update={"prepare": stage}))
