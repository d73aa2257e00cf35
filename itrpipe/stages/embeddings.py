"""Embeddings from files or of a model of another library, which mining and evaluations read instead of a training."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from itrpipe.config import Outside, Settings
from itrpipe.datasets.definition import DatasetDefinition, image_root
from itrpipe.encoders.folders import PROCESSORS, fetch_folder, has_any, refuse_pickles, require_model
from itrpipe.engine.run import Device, MapExecution
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import (
    EMBEDS_NO,
    GIVEN,
    LIBRARIES,
    OPEN_CLIP,
    SENTENCE_TRANSFORMERS,
    GivenFiles,
    is_given,
)
from itrpipe.stages.base import Job, Need, Stage, Step, prepare_need
from itrpipe.storage.artifact import LOCAL_MODEL, DigestCache
from itrpipe.training.settings import ModelName


def _digests_of_files(_: str, files: GivenFiles, cache: DigestCache) -> dict[str, str]:
    digests = {}
    for name, path in files.paths.items():
        digests[name] = cache.place(path, "hashing", "*.parquet")
    return digests


GIVEN_FILES = Outside(_digests_of_files)
_NEEDED = {
    SENTENCE_TRANSFORMERS: ("modules.json", "config.json"),
    OPEN_CLIP: ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors"),
}
"""Library -> files of which the folder of a model has at least one."""


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


class EmbedderSettings(Settings):
    """Embeddings of a split that a model of another library makes.

    Attributes:
        name: `given-NAME`.
        split: that they are of.
        measure: how they are compared; for the cosine they are made unit vectors.
        library: that opens the model.
        model: hub id or folder.
        revision: branch, tag or commit of the hub id.
    """

    name: str
    split: Literal["train", "val", "test"]
    measure: Literal["cosine", "inner-product"] = "cosine"
    library: Literal["sentence-transformers", "open-clip"]
    model: Annotated[str, LOCAL_MODEL]
    revision: str = "main"


class EmbeddingsExecution(MapExecution):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: of a model of another library; `auto` takes CUDA when there is one.
    """

    device: Device


class EmbeddingsStage(Stage):
    """Writes embeddings that no training here has made, in the order of a dataset."""

    settings = EmbeddingsSettings
    execution = EmbeddingsExecution

    def settings_class(self, values: Mapping[str, Any]) -> type[Settings]:
        """Return `EmbedderSettings` if a library is named, else `EmbeddingsSettings`."""
        if "library" in values:
            return EmbedderSettings
        return EmbeddingsSettings

    def label(self, conf: str, settings: Any) -> str:
        """Return `NAME.SPLIT`."""
        return f"{settings.name}.{settings.split}"

    def needs(self, settings: Any, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the images and captions of the split.

        Raises:
            UsageError: a model is to embed a dataset without photographs.
        """
        need = prepare_need(definition, settings.split)
        if isinstance(settings, EmbedderSettings) and need.conf == GIVEN:
            raise UsageError(
                f"{settings.model} embeds photographs, and this dataset was made of embeddings alone; name a dataset "
                "of `itrpipe prepare` with --dataset"
            )
        return {"prepare": need}

    def check(self, step: Step) -> None:
        """Refuse a model that is neither here nor on the hub, or whose library is not installed."""
        settings = step.settings
        if isinstance(settings, EmbedderSettings):
            if importlib.util.find_spec(LIBRARIES[settings.library]) is None:
                raise MissingInputError(
                    f"--model {settings.model} needs {settings.library}, which is not installed; run "
                    f"`pip install itrpipe[{settings.library}]`"
                )
            require_embedder(settings.model, settings.revision, settings.library)

    def run(self, job: Job) -> None:
        """Write embeddings.h5."""
        from itrpipe.datasets.prepared import PreparedDataset
        from itrpipe.features.embeddings import EMBEDDINGS
        from itrpipe.features.given import GivenSplit, write_given

        prepare = job.inputs["prepare"]
        settings = job.settings
        split = PreparedDataset.open(prepare.folder).split(settings.split)
        path = job.folder / EMBEDDINGS
        if isinstance(settings, EmbedderSettings):
            _embed(job, settings, split, path)
            return
        given = GivenSplit(settings.files, settings.split)
        by_row = prepare.manifest.conf != GIVEN
        rows = len(given.images) + len(given.captions)
        with job.reporter.task("reading embeddings", rows, "rows") as task:
            job.metrics |= write_given(path, given, split, settings.measure, by_row=by_row, advance=task.advance)


def require_embedder(model: str, revision: str, library: str) -> None:
    """Refuse a model that another library cannot open, as `require_model` does for encoders.

    Args:
        model: folder or hub id.
        revision: branch, tag or commit of the hub id.
        library: that opens the model.

    Raises:
        MissingInputError: there is no such model, or its folder has none of the library's files.
        DataError: its weights, or those of a part of it, are a pickle.
        UsageError: it is one of sentence-transformers that reads no images.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        require_model(model, revision)
        return
    needed = _NEEDED[library]
    if not has_any(folder, needed):
        raise MissingInputError(f"{folder} has none of {', '.join(needed)}; name the folder or hub id of a model")
    if library == SENTENCE_TRANSFORMERS and not any(any(folder.rglob(name)) for name in PROCESSORS):
        raise UsageError(EMBEDS_NO.format(folder, "images"))
    for part in [folder, *folder.rglob("*")]:
        if part.is_dir() and not any(part.glob("*.safetensors")):
            refuse_pickles(part)


def _embed(job: Job, settings: EmbedderSettings, split: Any, path: Path) -> None:
    from itrpipe.features.embedders import EmbedSplit
    from itrpipe.features.extraction import ImageFiles

    folder = Path(settings.model).expanduser()
    if not folder.is_dir():
        folder = fetch_folder(settings.model, settings.revision)
        job.warn(f"{settings.model} is at commit {folder.name}")
    require_embedder(str(folder), settings.revision, settings.library)
    images = ImageFiles.of_split(image_root(job.inputs["prepare"].folder), split)
    work = EmbedSplit(settings.library, folder.absolute(), images, split.texts, job.execution.device)
    job.metrics |= work.join(job.made(work).paths, path, split, settings.measure)


def embeddings_need(model: ModelName, split: str, **training: Any) -> Need:
    """Return the need of the embeddings of a split: of a training, or given ones.

    Args:
        model: a training, or the name of given embeddings as its backbone.
        split: that is read.
        training: settings that the training must have beside backbone and seed; `features` of given ones do not count.

    Raises:
        UsageError: given embeddings are to have a method, a seed or a share of the training images.
    """
    if not is_given(model.backbone):
        settings = {"backbone": model.backbone, "seed": model.seed, **training}
        return Need("train", model.method, settings)
    if model.method != GIVEN:
        raise UsageError(f"{model.backbone} is made of given embeddings; give --method given, and not {model.method}")
    refused = {"seed": model.seed, "train_share": training.get("train_share")}
    for name, value in refused.items():
        if value:
            raise UsageError(f"{model.backbone} is made of given embeddings and has no {name}; leave {value} out")
    return Need("embeddings", GIVEN, {"name": model.backbone, "split": split})
