"""Prepare a dataset: captions, pictures, splits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from itrpipe.cli.asked import place_of, remembered
from itrpipe.cli.options import File, Number, PartOption, RunOptions, Text, Texts
from itrpipe.datasets.definition import EMBEDDED, StageDefinition, load_definition
from itrpipe.datasets.formats.columns import ColumnSettings
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
    column: Annotated[
        Texts,
        Option(metavar="WHAT=COLUMN", help="Table: column of image, captions, id, split or group; repeatable."),
    ] = None
    source: Annotated[File, Option(help="Table or folder of the dataset, or hf:OWNER/NAME.")] = None
    strict: Annotated[bool, Option("--strict", help="Refuse a dataset with images that cannot be used.")] = False

    def run(self) -> Path:
        bad_images = "refuse" if self.strict else None
        names = "format", "train", "val", "test", "seed", "part"
        overrides = self.overrides(*names, bad_images=bad_images, **self._columns())
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

    def _columns(self) -> dict[str, Any]:
        """Return the settings of the columns that were named.

        Raises:
            UsageError: one is not of the form WHAT=COLUMN.
        """
        settings = {}
        for option in self.column or ():
            what, _, column = option.partition("=")
            if what not in ColumnSettings.model_fields or not column:
                known = ", ".join(f"{name}=COLUMN" for name in ColumnSettings.model_fields)
                raise UsageError(f"--column {option!r} is none of {known}")
            key = f"columns.{what}"
            if what == "captions":
                settings.setdefault(key, []).append(column)
            elif settings.setdefault(key, column) != column:
                raise UsageError(f"--column {what} is given twice with different values")
        return settings
