"""Datasets of files: how their captions are read, and where their photographs lie."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import StageDefinition, load_definition
from itrpipe.errors import MissingInputError
from itrpipe.storage.artifact import read_manifest

if TYPE_CHECKING:
    from itrpipe.datasets.captions import Annotations


class FilesSettings(Settings):
    """How a published dataset is read.

    Attributes:
        format: one of `itrpipe.datasets.formats.FORMATS`; empty to recognise it.
        restval: what becomes of COCO's `restval` images: `train` or `drop`.
        val_fraction, test_fraction: of a dataset without splits.
        split_seed: of the split by hash.
        bad_images: `drop` images that are missing or do not decode, with their captions, and list them; or `refuse`
            the dataset.
    """

    kind: Literal["files"]
    format: str
    restval: Literal["train", "drop"]
    val_fraction: float = Field(ge=0, lt=1)
    test_fraction: float = Field(ge=0, lt=1)
    split_seed: int = Field(ge=0)
    bad_images: Literal["refuse", "drop"]


def read_source(settings: FilesSettings, definition: StageDefinition | None) -> Annotations:
    """Reads the captions from where the dataset's definition says they lie.

    Raises:
        MissingInputError: no source is defined or it is not there.
        DataError: see `itrpipe.datasets.formats.read_annotations`.
    """
    from itrpipe.datasets.formats import read_annotations

    if definition is None or definition.source is None:
        raise MissingInputError("the dataset has no source; run `itrpipe prepare --dataset NAME --source FOLDER`")
    decided = settings.restval, settings.val_fraction, settings.test_fraction, settings.split_seed
    return read_annotations(Path(definition.source), settings.format, *decided)


def image_root(folder: Path) -> Path:
    """Return the folder that the `file` column of `images.parquet` is relative to.

    Args:
        folder: a prepared dataset.

    Raises:
        MissingInputError: its source is not there, or it was made of embeddings alone.
        DataError: its source cannot be read any more.
    """
    settings = read_manifest(folder).settings
    if settings["kind"] == "scenes":
        return folder
    if settings["kind"] == "given":
        raise MissingInputError(
            "the dataset was made of embeddings alone and has no photographs; prepare captions and photographs with "
            "`itrpipe prepare`, and give that dataset the embeddings"
        )
    # data/<dataset>/<stage>/<name>: the definition lies in the folder of the dataset.
    dataset = folder.parents[1]
    definition = load_definition(dataset.parent, dataset.name)
    return read_source(FilesSettings.model_validate(settings), definition.prepare).root
