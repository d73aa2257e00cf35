"""`itrpipe index`: embeddings of the photographs of a folder, of which earlier indexes have most already."""

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

MODEL, PHOTOGRAPHS = "model", "photographs"
"""Sources: digest of the model, and of paths, sizes and times of the photographs."""
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
        """Return nothing: where the model lies and what it is called does not count, and its digest is a source."""
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

    settings, execution = IndexSettings, IndexExecution
    schema_version = 4

    def label(self, conf: str, settings: IndexSettings) -> str:
        """The model's name, so that a folder may have indexes of several models."""
        return settings.called or conf

    def sources(
        self, settings: IndexSettings, definition: StageDefinition | None, cache: DigestCache
    ) -> dict[str, str]:
        """Digests of the model, which the manifest of a training knows, and of what lies in the folder."""
        from itrpipe.search.photos import list_photographs

        folder = source_of(definition, NO_SOURCE)
        if not settings.model:
            raise MissingInputError("an index needs a model; run `itrpipe index --photos FOLDER --model NAME`")
        model = Path(settings.model)
        known = (model / MANIFEST).is_file()
        digest = read_manifest(model).digest if known else folder_digest(MODEL, model, cache)
        return {MODEL: digest, PHOTOGRAPHS: list_photographs(folder, cache.path.parents[1]).digest}

    def run(self, job: Job) -> None:
        """Encodes the photographs that no earlier index has, and joins all."""
        from itrpipe.search import photos

        folder = source_of(job.definition, NO_SOURCE)
        listed = photos.list_photographs(folder, job.folder.parents[2])
        if listed.digest != job.sources[PHOTOGRAPHS]:
            raise DataError(f"{folder} has changed since this run began; run the same command again")
        every = listed.photographs
        vectors: dict[photos.PhotoFile, np.ndarray] = {}
        for earlier in filter(is_finished, folders_in(job.folder.parent)):
            with contextlib.suppress(DataError):  # a damaged one, which `status` tells, does not count
                manifest = check_artifact(earlier)
                if manifest.sources.get(MODEL) == job.sources[MODEL] and manifest.schema_version == self.schema_version:
                    vectors |= zip(*photos.read_index(earlier), strict=True)
        todo = [each for each in every if each not in vectors]
        if vectors:
            job.reporter.say(f"  {len(every) - len(todo):,} of {len(every):,} photographs are encoded already")
        failed: dict[str, str] = {}
        if todo:
            model = Path(job.settings.model)
            how = job.execution
            key = f"{job.sources[MODEL]} {how.block} {photos.PhotoFolder(todo).digest}"
            made = job.made(photos.EncodePhotographs(folder, todo, model, how.batch, how.block, how.device, key))
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
        counts = {"photographs": len(whole), "encoded": len(todo) - len(failed), "kept": len(every) - len(todo)}
        job.metrics = {**counts, **job.metrics, "width": width}
        if listed.note:
            job.warn(f"{folder}: {listed.note}")
