"""Embeddings that another program has made: what mines and evaluates reads them instead of a training."""

from typing import Annotated, Any, Literal

from itrpipe.config import Outside, Settings
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import GIVEN, GivenFiles, is_given
from itrpipe.stages.base import Job, Need, Stage, prepare_need
from itrpipe.training.settings import Model

GIVEN_FILES = Outside(
    lambda _, files, cache: {name: cache.place(path, "hashing", "*.parquet") for name, path in files.paths.items()}
)


class EmbeddingsSettings(Settings):
    """Embeddings of a split that are read.

    Attributes:
        name: `given`, or `given-NAME` where they have a name.
        split: that they are of.
        measure: how they are compared; for the cosine they are made unit vectors.
        files: that hold them.
    """

    name: str
    split: Literal["train", "val", "test"]
    measure: Literal["cosine", "inner-product", "order"] = "cosine"
    files: Annotated[GivenFiles, GIVEN_FILES] = GivenFiles()


class Embeddings(Stage):
    """Writes given embeddings in the order of a dataset."""

    settings, execution = EmbeddingsSettings, Settings

    def label(self, conf: str, settings: EmbeddingsSettings) -> str:
        """Return `NAME.SPLIT`."""
        return f"{settings.name}.{settings.split}"

    def needs(self, settings: EmbeddingsSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the images and captions of the split."""
        return {"prepare": prepare_need(definition, settings.split)}

    def run(self, job: Job) -> None:
        """Write embeddings.h5."""
        from itrpipe.datasets.prepared import PreparedDataset
        from itrpipe.features.embeddings import EMBEDDINGS
        from itrpipe.features.given import GivenSplit, write_given

        prepare, settings = job.inputs["prepare"], job.settings
        split = PreparedDataset.open(prepare.folder).split(settings.split)
        given = GivenSplit(settings.files, settings.split)
        by_row = prepare.manifest.conf != GIVEN
        with job.reporter.task("reading embeddings", len(given.images) + len(given.captions), "rows") as task:
            path = job.folder / EMBEDDINGS
            job.metrics |= write_given(path, given, split, settings.measure, by_row=by_row, advance=task.advance)


def embeddings_need(model: Model, split: str, **training: Any) -> Need:
    """Ask for the embeddings of a split: of a model that is trained, or given ones of this name.

    Args:
        model: a training, or the name of given embeddings as its backbone.
        split: that is read.
        training: settings that the training must have beside backbone and seed; `features` of given ones do not count.

    Raises:
        UsageError: given embeddings are to have a method, a seed or a share of the training images.
    """
    if not is_given(model.backbone):
        return Need("train", model.method, {"backbone": model.backbone, "seed": model.seed, **training})
    if model.method != GIVEN:
        raise UsageError(f"{model.backbone} is made of given embeddings; give --method given, and not {model.method}")
    for name, value in (("seed", model.seed), ("train_share", training.get("train_share"))):
        if value:
            raise UsageError(f"{model.backbone} is made of given embeddings and has no {name}; leave {value} out")
    return Need("embeddings", GIVEN, {"name": model.backbone, "split": split})
