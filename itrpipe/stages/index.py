"""The stage of `itrpipe index`: embeddings of the photographs of a folder, most of them from earlier indexes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import StageDefinition
from itrpipe.engine.run import Device, MapExecution
from itrpipe.errors import DataError, MissingInputError
from itrpipe.stages.base import Job, Stage, source_of
from itrpipe.storage.artifact import (
    MANIFEST,
    DigestCache,
    check_artifact,
    folder_digest,
    folders_in,
    is_finished,
    read_manifest,
)

if TYPE_CHECKING:
    import numpy as np

MODEL = "model"
"""Source: digest of the model."""
PHOTOGRAPHS = "photographs"
"""Source: digest of paths, sizes and times of the photographs."""
RATE = "photographs/s"
NO_SOURCE = "no photographs are named; run `itrpipe index --photos FOLDER --model NAME`"


class IndexSettings(Settings):
    """Settings of an index.

    Attributes:
        model: folder of the model.
        called: name of the model, in the name of the artifact.
    """

    model: str = ""
    called: str = ""

    def counted(self) -> dict[str, Any]:
        """Return no settings: the model counts by its digest, which is a source, and neither by path nor name."""
        return {}


class IndexExecution(MapExecution):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        batch: photographs per forward pass.
        block: photographs per part.
    """

    device: Device
    batch: int = Field(ge=1, le=100_000)
    block: int = Field(ge=1, le=1_000_000)


class IndexStage(Stage):
    """Embeds the photographs of a folder."""

    settings = IndexSettings
    execution = IndexExecution
    schema_version = 4

    def label(self, conf: str, settings: IndexSettings) -> str:
        """Return the model's name, so that a folder may have indexes of several models."""
        return settings.called or conf

    def sources(
        self, settings: IndexSettings, definition: StageDefinition | None, cache: DigestCache
    ) -> dict[str, str]:
        """Return the digests of the model, which the manifest of a training has, and of the folder's photographs."""
        from itrpipe.search.photos import list_photographs

        folder = source_of(definition, NO_SOURCE)
        if not settings.model:
            raise MissingInputError("an index needs a model; run `itrpipe index --photos FOLDER --model NAME`")
        model = Path(settings.model)
        is_training = (model / MANIFEST).is_file()
        digest = read_manifest(model).digest if is_training else folder_digest(MODEL, model, cache)
        photographs = list_photographs(folder, cache.path.parents[1])
        return {MODEL: digest, PHOTOGRAPHS: photographs.digest}

    def run(self, job: Job) -> None:
        """Encode the photographs that no earlier index has, and join all."""
        from itrpipe.search import photos

        folder = source_of(job.definition, NO_SOURCE)
        listed = photos.list_photographs(folder, job.folder.parents[2])
        if listed.digest != job.sources[PHOTOGRAPHS]:
            raise DataError(f"{folder} has changed since this run began; run the same command again")
        every = listed.photographs
        vectors: dict[photos.PhotoFile, np.ndarray] = {}
        for earlier in filter(is_finished, folders_in(job.folder.parent)):
            with contextlib.suppress(DataError):  # a damaged index does not count; `itrpipe status` shows it
                manifest = check_artifact(earlier)
                if manifest.sources.get(MODEL) == job.sources[MODEL] and manifest.schema_version == self.schema_version:
                    vectors |= zip(*photos.read_index(earlier), strict=True)
        todo = [each for each in every if each not in vectors]
        if vectors:
            job.reporter.say(f"  {len(every) - len(todo):,} of {len(every):,} photographs are encoded already")
        failed: dict[str, str] = {}
        if todo:
            model = Path(job.settings.model)
            execution = job.execution
            key = f"{job.sources[MODEL]} {execution.block} {photos.PhotoFolder(todo).digest}"
            work = photos.EncodePhotographs(
                folder, todo, model, execution.batch, execution.block, execution.device, key
            )
            made = job.made(work)
            for path in made.paths:
                encoded, reasons = photos.encoded_part(path)
                vectors |= encoded
                failed |= reasons
            job.metrics[RATE] = round(made.rows / made.seconds, 2)
        whole = [each for each in every if each.file not in failed]
        if not whole:
            file, reason = next(iter(failed.items()))
            raise DataError(
                f"none of the {len(every):,} photographs of {folder} can be used; the first: {file} {reason}"
            )
        with job.reporter.task("joining", len(whole), "photographs") as task:
            width = photos.write_index(job.folder, whole, vectors, task.advance)
        job.failed |= listed.unusable | failed
        job.metrics = {
            "photographs": len(whole),
            "encoded": len(todo) - len(failed),
            "kept": len(every) - len(todo),
            **job.metrics,
            "width": width,
        }
        if listed.note:
            job.warn(f"{folder}: {listed.note}")
